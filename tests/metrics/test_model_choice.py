"""The choice among several models: who is best, by how much, and how certain that is."""

import math

import pytest
import torch

from dualfocal import metrics
from dualfocal.metrics import resampling
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.model_choice import choose_model
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(1500, 5, generator=GENERATOR)
TARGET = torch.multinomial(LOGITS.softmax(1), 1, generator=GENERATOR)[:, 0]


def scored(logits, target=TARGET, **options):
    rows = as_rows(logits, target, input="logits", **options)
    stats = scan(rows, num_bins=15, scores=True, classwise=True)
    return rows, stats, evaluate_rows(rows, stats, 15)


def test_two_models_have_the_intervals_of_compare():
    choice = choose_model({"sharp": scored(2 * LOGITS), "right": scored(LOGITS)}, 15, level=0.8, seed=3)
    expected = metrics.compare(LOGITS, 2 * LOGITS, TARGET, level=0.8, seed=3).differences
    assert choice.best == "right"
    for metric, actual in choice.differences["sharp"].items():
        assert actual.difference == pytest.approx(expected[metric].difference)
        assert (actual.low, actual.high) == pytest.approx((expected[metric].low, expected[metric].high)), metric
    assert [choice.outcome("sharp", metric) for metric in ("nll", "debiased_ece", "error")] == [
        "better",
        "better",
        "equal",
    ]
    nll = choice.differences["sharp"]["nll"]
    assert choice.verdict().startswith(
        f"right is better than sharp: its NLL is lower by {nll.difference:.4f} nats ({nll.low:.4f} to {nll.high:.4f})."
    )


def test_more_models_have_simultaneous_intervals():
    noise = torch.randn(LOGITS.shape, generator=GENERATOR)
    models = {"a": scored(LOGITS), "b": scored(LOGITS + 0.05 * noise), "c": scored(2 * LOGITS)}
    choice = choose_model(models, 15)
    pair = metrics.compare(LOGITS, 2 * LOGITS, TARGET).differences["nll"]
    wide = choice.differences["c"]["nll"]
    assert choice.best == "a"
    assert wide.difference == pytest.approx(pair.difference)
    assert 1.05 < (wide.high - wide.low) / (pair.high - pair.low) < 1.6
    # Oracle: the largest studentized deviation of all pairs, from the same resamples.
    drawn = resampling.resample([(rows, stats) for rows, stats, _ in models.values()], 15, slow=())["nll"].numpy()
    deviations = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        difference = drawn[:, j] - drawn[:, i]
        deviations.append(abs(difference - difference.mean()) / difference.std(ddof=1))
    largest = sorted(max(values) for values in zip(*deviations, strict=True))
    critical = largest[899] + 0.1 * (largest[900] - largest[899])  # the quantile 0.9 of 1000 values
    half = critical * (drawn[:, 2] - drawn[:, 0]).std(ddof=1)
    assert wide.high - wide.difference == pytest.approx(half, rel=1e-6)
    assert "simultaneous for all 3 pairs of models" in choice.verdict()


def test_an_infinite_loss_loses():
    impossible = LOGITS.clone()
    impossible[0, TARGET[0]] = -math.inf
    choice = choose_model({"bad": scored(impossible), "good": scored(LOGITS)}, 15)
    assert choice.best == "good"
    assert choice.outcome("bad", "nll") == "better"
    assert choice.to_dict()["differences"]["bad"]["nll"]["difference"] is None
    assert "whose NLL is infinite" in choice.verdict()
    many = choose_model({"bad": scored(impossible), "good": scored(LOGITS), "sharp": scored(2 * LOGITS)}, 15)
    assert [many.outcome(name, "nll") for name in ("bad", "sharp")] == ["better", "better"]


def test_clusters_are_resampled_whole():
    clusters = torch.arange(150).repeat_interleave(10)
    independent = choose_model({"a": scored(LOGITS), "b": scored(2 * LOGITS)}, 15)
    ten = {"a": LOGITS[::10].repeat_interleave(10, 0), "b": 2 * LOGITS[::10].repeat_interleave(10, 0)}
    same = TARGET[::10].repeat_interleave(10)
    copied = choose_model({name: scored(logits, same, clusters=clusters) for name, logits in ten.items()}, 15)
    once = choose_model({name: scored(logits[::10], same[::10]) for name, logits in ten.items()}, 15)
    length = [c.differences["b"]["nll"].high - c.differences["b"]["nll"].low for c in (independent, copied, once)]
    assert copied.num_clusters == 150
    assert length[1] == pytest.approx(length[2], rel=0.15)  # ten copies are worth one sample
    assert length[1] > 2 * length[0]


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ({"a": LOGITS}, "at least two models, got 1"),
        ({"a": LOGITS[:9], "b": LOGITS[:9]}, "at least 10 samples, got 9"),
    ],
)
def test_too_little_to_compare(models, problem):
    with pytest.raises(ValueError, match=problem):
        choose_model({name: scored(logits, TARGET[: len(logits)]) for name, logits in models.items()}, 15)


def test_models_of_other_samples_are_refused():
    with pytest.raises(ValueError, match="a and b were scored on different samples: their labels or weights differ"):
        choose_model({"a": scored(LOGITS), "b": scored(LOGITS, TARGET.flip(0))}, 15)


@pytest.mark.parametrize("tied", [False, True])
def test_the_aurc_of_many_samples_is_linear_in_the_copies(monkeypatch, tied):
    logits = LOGITS.round() if tied else LOGITS
    rows, stats, _ = scored(logits)
    exact = resampling.resample([(rows, stats)], 15, slow=("aurc",))["aurc"][:, 0]
    monkeypatch.setattr(resampling, "LOOP_SAMPLES", 1)
    linear = resampling.resample([(rows, stats)], 15, slow=("aurc",))["aurc"][:, 0]
    assert not linear.isnan().any()
    assert float(torch.corrcoef(torch.stack([exact, linear]))[0, 1]) > 0.995
    assert float(linear.std() / exact.std()) == pytest.approx(1, abs=0.03)
    assert float(linear.mean() - exact.mean()) == pytest.approx(0, abs=0.1 * float(exact.std()))
