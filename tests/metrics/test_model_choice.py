"""The choice among several models in a report: who is best, by how much, and how certain that is."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from report_pages import contents_of
from samples import draw_logits
from torch.nn.functional import cross_entropy

from dualfocal import metrics
from dualfocal.predictions import Reading
from dualfocal.report import write_report

LOGITS, TARGET = draw_logits(1500, 5)


@pytest.fixture
def choose(tmp_path):
    """What a report on models says about the best one, as numbers and as texts."""

    def choose(models, target=TARGET, clusters=None, **options):
        page = tmp_path / "page.html"
        labels = target if isinstance(target, dict) else dict.fromkeys(models, target)
        named = {name: (logits, labels[name]) for name, logits in models.items()}
        write_report(named, page, calibrators=(), clusters=clusters, reading=Reading(**options))
        content = contents_of(page)
        return content["results"]["comparison"], str(content)

    return choose


def test_two_models_have_the_intervals_of_compare(choose):
    choice, text = choose({"sharp": 2 * LOGITS, "right": LOGITS}, level=0.8, seed=3)
    expected = metrics.compare(LOGITS, 2 * LOGITS, TARGET, level=0.8, seed=3).differences
    assert choice["best"] == "right"
    sharp = choice["differences"]["sharp"]
    assert {"nll", "debiased_ece", "error", "aurc"} == sharp.keys()
    for metric, actual in sharp.items():
        assert actual["difference"] == pytest.approx(expected[metric].difference)
        assert actual["interval"] == pytest.approx([expected[metric].low, expected[metric].high]), metric
    assert [sharp[metric]["outcome"] for metric in ("nll", "debiased_ece", "error")] == ["better", "better", "equal"]
    low, high = sharp["nll"]["interval"]
    size = f"{sharp['nll']['difference']:.4f} nats ({low:.4f} to {high:.4f})"
    assert f"right is better than sharp: its NLL is lower by {size}." in text


def test_more_models_have_simultaneous_intervals(choose):
    noise = torch.randn(LOGITS.shape, generator=torch.Generator().manual_seed(1))
    models = {"a": LOGITS, "b": LOGITS + 0.05 * noise, "c": 2 * LOGITS}
    choice, text = choose(models)
    pair = metrics.compare(LOGITS, 2 * LOGITS, TARGET).differences["nll"]
    wide = choice["differences"]["c"]["nll"]
    low, high = wide["interval"]
    assert choice["best"] == "a"
    assert wide["difference"] == pytest.approx(pair.difference)
    assert 1.05 < (high - low) / (pair.high - pair.low) < 1.6
    # Oracle: the largest studentized deviation of all pairs, from the same resamples.
    picks = np.random.default_rng(0).integers(1500, size=(1000, 1500))
    losses = [cross_entropy(logits.double(), TARGET, reduction="none").numpy() for logits in models.values()]
    drawn = np.stack([loss[picks].mean(1) for loss in losses])
    pairs = [drawn[j] - drawn[i] for i, j in combinations(range(3), 2)]
    largest = np.max([abs(draws - draws.mean()) / draws.std(ddof=1) for draws in pairs], axis=0)
    # The sharper model is compared with at least the noise of labels that the other one states.
    p, sharp = (logits.double().softmax(1) for logits in (LOGITS, 2 * LOGITS))
    change = p.log() - sharp.log()
    noise = math.sqrt(float(((p * change**2).sum(1) - (p * change).sum(1) ** 2).sum())) / 1500
    half = np.quantile(largest, 0.9) * max(noise, (drawn[2] - drawn[0]).std(ddof=1))
    assert high - wide["difference"] == pytest.approx(half, rel=1e-6)
    assert "simultaneous for all 3 pairs of models" in text


def test_an_infinite_loss_loses(choose):
    impossible = LOGITS.clone()
    impossible[0, TARGET[0]] = -math.inf
    choice, text = choose({"bad": impossible, "good": LOGITS})
    assert choice["best"] == "good"
    assert choice["differences"]["bad"]["nll"]["outcome"] == "better"
    assert choice["differences"]["bad"]["nll"]["difference"] is None
    assert "whose NLL is infinite" in text
    many, _ = choose({"bad": impossible, "good": LOGITS, "sharp": 2 * LOGITS})
    assert [many["differences"][name]["nll"]["outcome"] for name in ("bad", "sharp")] == ["better", "better"]


def test_clusters_are_resampled_whole(choose):
    logits, target = LOGITS[::10].repeat_interleave(10, 0), TARGET[::10].repeat_interleave(10)
    choices = [
        choose({"a": LOGITS, "b": 2 * LOGITS}),
        choose({"a": logits, "b": 2 * logits}, target, torch.arange(150).repeat_interleave(10)),
        choose({"a": LOGITS[::10], "b": 2 * LOGITS[::10]}, TARGET[::10]),
    ]
    ends = [choice["differences"]["b"]["nll"]["interval"] for choice, _ in choices]
    independent, copied, once = (high - low for low, high in ends)
    assert choices[1][0]["num_clusters"] == 150
    assert copied == pytest.approx(once, rel=0.15)  # ten copies are worth one sample
    assert copied > 2 * independent


def test_too_little_to_compare(choose):
    assert choose({"a": LOGITS})[0] is None
    assert choose({"a": LOGITS[:9], "b": 2 * LOGITS[:9]}, TARGET[:9])[0] is None


def test_models_of_other_samples_are_not_compared(choose):
    assert choose({"a": LOGITS, "b": LOGITS}, {"a": TARGET, "b": TARGET.flip(0)})[0] is None


def test_without_errors_no_model_of_several_is_better(choose):
    certain = torch.tensor([1.0, -1.0, -1.0]) * torch.linspace(2, 4, 100)[:, None]
    choice, _ = choose(
        {"a": certain, "sharp": 1.5 * certain, "sharper": 2 * certain}, torch.zeros(100, dtype=torch.int64)
    )
    assert choice["best"] == "sharper"
    for name in ("a", "sharp"):
        assert {choice["differences"][name][metric]["outcome"] for metric in ("nll", "debiased_ece")} == {"equal"}
