"""Cross-validation: no sample is scored by a fit that used it, and the scores equal those of a plain loop."""

import html
import json
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from calibrator_cases import draw, sample
from case_loops import for_each
from samples import draw_logits
from torch import Tensor

from dualfocal import metrics as M
from dualfocal.calibrators import (
    Calibrator,
    MatrixScaling,
    TemperatureScaling,
    compare_calibrators,
    log_probs,
    make_calibrator,
)
from dualfocal.calibrators._fit_report import Fit

METHODS = ["temperature", "vector", "isotonic"]


class Spy(Calibrator):
    """Records the first logit of each row that it was fitted on, and returns logits unchanged."""

    learned: ClassVar[tuple[str, ...]] = ("fitted_logits",)
    fits: ClassVar[list[tuple[Tensor, Tensor]]] = []  # (logits, labels) of every fit
    asked: ClassVar[list[tuple[Tensor, Tensor]]] = []  # (first logits of the fit, logits to map)

    def _fit(self, rows) -> Fit:
        Spy.fits.append((rows.values.clone(), rows.target.clone()))
        return Fit({"fitted_logits": rows.values[:, 0].double()}, nll=(0.0, 0.0))

    def _map(self, logits: Tensor) -> Tensor:
        Spy.asked.append((self.fitted_logits, logits))
        return logits.clone()


@pytest.fixture
def spy() -> Spy:
    Spy.fits.clear()
    Spy.asked.clear()
    return Spy()


def test_folds_keep_clusters_whole(spy) -> None:
    logits, target = sample(300, 3)
    cluster = np.minimum(np.arange(300), 100 + np.arange(300) // 3)
    cluster_of = dict(zip(logits[:, 0].tolist(), cluster.tolist(), strict=True))
    compare_calibrators(logits, target, {"spy": spy}, folds=5, repeats=2, clusters=cluster)
    folds = [sorted(asked[:, 0].tolist()) for _, asked in Spy.asked]
    assert [len(fold) for fold in folds] == [60] * 10
    assert folds[:5] != folds[5:]
    for fitted, asked in Spy.asked:
        seen, scored = ({cluster_of[value] for value in part.float().tolist()} for part in (fitted, asked[:, 0]))
        assert seen.isdisjoint(scored)
    with pytest.raises(ValueError, match="need at least 5 of them, got 4 with labels"):
        compare_calibrators(logits, target, {"spy": spy}, folds=5, clusters=np.arange(300) % 4)


def test_no_sample_is_scored_by_a_fit_that_saw_it(spy) -> None:
    logits, target = sample(97, 3)
    label_of = dict(zip(logits[:, 0].tolist(), target.tolist(), strict=True))
    assert len(label_of) == 97
    compare_calibrators(logits, target, {"spy": spy}, folds=4, repeats=3)
    assert len(Spy.asked) == len(Spy.fits) == 12
    for fitted_logits, asked in Spy.asked:
        held_out = set(asked[:, 0].double().tolist())
        assert not held_out & set(fitted_logits.tolist())
        assert len(held_out) + len(fitted_logits) == 97  # and all others were used
    for repeat in range(3):
        scored = torch.cat([asked[:, 0] for _, asked in Spy.asked[4 * repeat : 4 * repeat + 4]])
        assert torch.equal(scored.sort().values, logits[:, 0].sort().values)  # each sample once
    for z, y in Spy.fits:  # labels stay with their rows
        assert [label_of[x] for x in z[:, 0].tolist()] == y.tolist()
    assert not spy.is_fitted  # copies were fitted


def test_folds_have_their_share_of_each_class(spy) -> None:
    logits, target = sample(211, 5)
    total = torch.bincount(target, minlength=5)
    compare_calibrators(logits, target, {"spy": spy}, folds=4, repeats=2)
    for repeat in range(2):
        counts = torch.stack([
            total - torch.bincount(labels, minlength=5) for _, labels in Spy.fits[4 * repeat : 4 * repeat + 4]
        ])  # fmt: skip
        assert (counts.amax(0) - counts.amin(0) <= 1).all()
        assert counts.sum(1).max() - counts.sum(1).min() <= 1
    first, second = (torch.cat([asked[:, 0] for _, asked in Spy.asked[i : i + 1]]) for i in (0, 4))
    assert set(first.tolist()) != set(second.tolist())  # different folds


@pytest.mark.parametrize(("images", "folds"), [(7, 5), (3, 2), (5, 5)])
def test_images_stay_whole(spy, images, folds) -> None:
    logits = torch.randn(images, 3, 4, 6)
    logits[:, 0] = torch.arange(images).view(-1, 1, 1)  # the number of the image
    target = torch.randint(3, (images, 4, 6))
    target[1, :2] = -100
    shares = []
    compare_calibrators(logits, target, {"spy": spy}, folds=folds, repeats=1, progress=shares.append)
    scored = []
    for fitted_logits, asked in Spy.asked:
        held_out = set(asked[:, 0].double().tolist())
        assert not held_out & set(fitted_logits.tolist())
        scored += asked[:, 0].tolist()
    assert sorted(scored) == sorted([i for i in range(images) for _ in range(12 if i == 1 else 24)])
    assert shares[-1] == 1.0


def test_one_image_cannot_be_split_into_folds() -> None:
    logits, target = sample(100, 3)
    with pytest.raises(ValueError, match="5 folds of whole images need at least 5 images with labels, got 1"):
        compare_calibrators(logits.T.reshape(1, 3, 10, 10), target.view(1, 10, 10), ["temperature"], clusters="none")


def by_hand(logits: Tensor, target: Tensor, name: str, folds: int, deal: Tensor) -> Tensor:
    result = torch.empty_like(logits)
    for k in range(folds):
        here = deal == k
        result[here] = make_calibrator(name).fit(logits[~here], target[~here])(logits[here])
    return result


def test_scores_are_those_of_a_plain_loop(spy) -> None:
    logits, target = sample(300, 4)
    compare_calibrators(logits, target, {"spy": spy}, folds=3, repeats=2, seed=5)
    place = {x: i for i, x in enumerate(logits[:, 0].tolist())}
    deals = torch.empty(2, 300, dtype=torch.int64)
    for i, (_, asked) in enumerate(Spy.asked):
        deals[i // 3, [place[x] for x in asked[:, 0].tolist()]] = i % 3
    outputs = {name: [by_hand(logits, target, name, 3, deal) for deal in deals] for name in METHODS}
    metrics = {"nll": M.nll, "brier": M.brier_score, "error": M.error_rate, "ece": M.ece}
    for repeats in (1, 2):
        result = compare_calibrators(logits, target, METHODS, folds=3, repeats=repeats, seed=5)
        for metric, function in metrics.items():
            before = function(logits, target)
            assert result["uncalibrated"].scores[metric] == pytest.approx(before, abs=1e-9)
            for name in METHODS:
                expected = np.mean([function(z, target) for z in outputs[name][:repeats]])
                assert result[name].scores[metric] == pytest.approx(expected, abs=1e-7)
                change = result[name].changes[metric]
                assert change.difference == pytest.approx(expected - before, abs=1e-7)  # negative where it helps
                assert change.low <= change.difference <= change.high
        for name in METHODS:
            moved = np.mean([float((z.argmax(1) != logits.argmax(1)).double().mean()) for z in outputs[name][:repeats]])
            assert result[name].argmax_changed == pytest.approx(moved)
            assert result[name].evaluation.nll == pytest.approx(M.nll(outputs[name][0], target), abs=1e-7)
            assert result[name].evaluation.inference is not None


def test_order_and_differences() -> None:
    logits, target = sample(600, 4, sharp=3.0)
    result = compare_calibrators(logits, target, METHODS, folds=4)
    scores = [method.scores["nll"] for method in result.methods]
    assert scores == sorted(scores)
    assert {method.name for method in result.methods} == {"uncalibrated", *METHODS}
    best = result.methods[0]
    assert best.behind.difference == best.behind.low == best.behind.high == 0
    for method in result.methods:
        assert method.behind.difference == pytest.approx(method.scores["nll"] - best.scores["nll"])
    assert result["uncalibrated"].changes["nll"].difference == 0
    gain = result["temperature"].changes["nll"]
    assert gain.high < 0  # three times too sharp: clearly significant
    assert result["temperature"].argmax_changed == 0
    page = result._repr_html_()
    assert page.index("<td>temperature</td>") < page.index("<td>uncalibrated</td>") < page.index("Cross-validated")
    assert page.endswith(f"<b>{html.escape(result.verdict())}</b></p>")
    wider = compare_calibrators(logits, target, ["temperature"], folds=4, level=0.99)["temperature"].changes["nll"]
    assert wider.low < gain.low < gain.high < wider.high


def test_cross_validated_intervals_include_the_variation_of_the_fits() -> None:
    logits, target = draw_logits(2000, 5)
    result = compare_calibrators(logits, target, ["temperature", "histogram"])
    # About k / N for a fit of k parameters to N samples.
    assert 0.3 < 2000 * result["temperature"].optimism < 3
    for name in ("temperature", "histogram"):
        method, before = result[name], result["uncalibrated"]
        alone = (method.draws["nll"] - before.draws["nll"]).std()
        change = method.changes["nll"]
        expected = 1.645 * math.sqrt(alone**2 + 2 * method.optimism / 2000)
        assert (change.high - change.low) / 2 == pytest.approx(expected, rel=0.1)


def test_the_seed_decides() -> None:
    logits, target = sample(200, 3)
    first = compare_calibrators(logits, target, ["temperature"], seed=3)
    torch.manual_seed(17)  # must have no effect
    state = torch.get_rng_state()
    assert compare_calibrators(logits, target, ["temperature"], seed=3).to_dict() == first.to_dict()
    assert torch.equal(torch.get_rng_state(), state)
    other = compare_calibrators(logits, target, ["temperature"], seed=4)
    assert other["temperature"].scores["nll"] != first["temperature"].scores["nll"]
    assert other["temperature"].changes["nll"].low != first["temperature"].changes["nll"].low
    assert other["uncalibrated"].scores == first["uncalibrated"].scores


def test_refusals_are_listed_and_the_others_scored() -> None:
    logits, target = sample(60, 8)
    shares = []
    result = compare_calibrators(logits, target, ["temperature", "matrix"], progress=shares.append)
    assert set(result.refused) == {"matrix"}
    assert "72 parameters" in result.refused["matrix"]
    assert {method.name for method in result.methods} == {"uncalibrated", "temperature"}
    assert f"matrix skipped: {result.refused['matrix']}" in str(result)
    assert result.to_dict()["refused"] == result.refused
    assert shares[-1] == 1.0  # also after a method was skipped
    given = compare_calibrators(logits, target, {"mine": MatrixScaling(force=True)})
    assert given.refused == {}


def test_notes_of_the_fits_come_along() -> None:
    logits, target = sample(100, 4)
    result = compare_calibrators(logits, target.clamp(max=2), ["vector"])
    [note] = result["vector"].notes
    assert (note.kind, note.count, note.total, note.values) == ("absent_classes", 1, 4, (3,))


WORLDS = {
    "calibrated": (1.0, 0.0, {"uncalibrated"}),
    "too sharp": (2.5, 0.0, {"temperature"}),
    "biased": (1.0, 1.0, {"vector"}),
    "sharp and biased": (2.5, 1.0, {"vector"}),
}


@for_each(kind=WORLDS)
def test_recommendation(kind) -> None:
    sharp, bias, expected = WORLDS[kind]
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(1500, 4, generator=generator)
    target = draw((logits + bias * torch.tensor([1.0, -1.0, 0.5, 0.0])).softmax(1), generator)
    result = compare_calibrators(sharp * logits, target, ["temperature", "vector", "isotonic"], repeats=1)
    assert result.recommended in expected
    first = result.verdict().split(":")[0]
    assert first == ("Keep the model uncalibrated" if kind == "calibrated" else f"Use {result.recommended}")


def test_where_all_methods_are_refused_the_model_stays_uncalibrated() -> None:
    logits, target = sample(100, 4)
    logits[torch.arange(100), target] = -math.inf
    result = compare_calibrators(logits, target, ["temperature"])
    assert result.recommended == "uncalibrated"
    assert set(result.refused) == {"temperature"}
    json.dumps(result.to_dict(), allow_nan=False)


def test_probabilities_are_their_logits() -> None:
    logits, target = sample(300, 3, dtype=torch.float64)
    probs = logits.softmax(1)
    a = compare_calibrators(probs, target, METHODS, input="probs", repeats=1)
    b = compare_calibrators(logits, target, METHODS, repeats=1)
    for name in ("uncalibrated", "temperature", "isotonic"):
        assert a[name].scores == pytest.approx(b[name].scores, abs=1e-7)
    c = compare_calibrators(log_probs(probs), target, ["vector"], repeats=1)  # vector scaling sees a shift of logits
    assert a["vector"].scores == pytest.approx(c["vector"].scores, abs=1e-9)
    d = compare_calibrators(probs.numpy(), target.numpy(), METHODS, input="probs", repeats=1)
    assert d.to_dict() == a.to_dict()


@for_each(binary=[None, "positive"])
def test_one_score_per_sample(binary) -> None:
    methods = ["temperature", "vector"]
    logits, target = sample(300, 2, dtype=torch.float64)
    odds = logits[:, 1] - logits[:, 0]
    pair = torch.stack([torch.zeros_like(odds), odds], dim=1)
    one = compare_calibrators(odds, target, methods, binary=binary, repeats=1)
    two = compare_calibrators(pair, target, methods, binary=binary or "top_label", repeats=1)
    assert one.to_dict() == two.to_dict()
    assert one["uncalibrated"].scores["ece"] == pytest.approx(M.ece(odds, target, binary=binary or "top_label"))
    probs = compare_calibrators(odds.sigmoid(), target, ["temperature"], binary=binary, input="probs", repeats=1)
    assert probs["temperature"].scores["nll"] == pytest.approx(one["temperature"].scores["nll"], abs=1e-7)


def test_report_in_words_and_numbers() -> None:
    logits, target = sample(200, 3)
    result = compare_calibrators(logits, target, [*METHODS, "temperature+isotonic"])
    text = str(result)
    assert result.caveat() in text
    assert result.verdict() in text
    assert "5 folds, repeated 2 times" in text
    for method in result.methods:
        assert method.name in text
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain == result.to_dict()
    assert plain["recommended"] == result.recommended
    by_name = {method["method"]: method for method in plain["methods"]}
    assert by_name["vector"]["nll"] == result["vector"].scores["nll"]
    low, high = by_name["vector"]["change"]["nll"]["interval"]
    assert (low, high) == (result["vector"].changes["nll"].low, result["vector"].changes["nll"].high)
    with pytest.raises(KeyError, match="platt"):
        result["platt"]


def test_progress_goes_up_to_one() -> None:
    logits, target = sample(60, 3)
    shares = []
    compare_calibrators(logits, target, METHODS, folds=3, progress=shares.append)
    assert len(shares) >= 3 * 3 * 2
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == 1.0


def test_half_precision_is_widened() -> None:
    logits, target = sample(300, 3, dtype=torch.bfloat16)
    a, b = (compare_calibrators(values, target, METHODS, repeats=1) for values in (logits, logits.float()))
    for name in METHODS:
        assert a[name].scores == pytest.approx(b[name].scores, abs=1e-6)


@for_each(dtype=[torch.float32, torch.float64])
def test_nothing_is_written_to(dtype) -> None:
    logits, target = sample(100, 3, dtype=dtype)
    before = logits.clone(), target.clone()
    fitted = TemperatureScaling().fit(logits, target)
    t = fitted.temperature.clone()
    compare_calibrators(logits, target, {"a": fitted, "b": make_calibrator("isotonic")})
    assert torch.equal(logits, before[0])
    assert torch.equal(target, before[1])
    assert torch.equal(fitted.temperature, t)


def test_one_method_may_be_a_text() -> None:
    logits, target = sample(200)
    names = [method.name for method in compare_calibrators(logits, target, "temperature", repeats=1).methods]
    assert sorted(names) == ["temperature", "uncalibrated"]


@for_each(methods=[[TemperatureScaling()], TemperatureScaling()])
def test_calibrators_need_names(methods) -> None:
    with pytest.raises(
        TypeError, match=r"names of calibrators, got TemperatureScaling; .*\{'mine': TemperatureScaling"
    ):
        compare_calibrators(*sample(200), methods)


def test_bad_arguments_are_refused() -> None:
    logits, target = sample(40, 3)
    holed = logits.clone()
    holed[7, 1] = math.nan
    bad = [
        ({"folds": 1}, ValueError, "folds must be at least 2, got 1"),
        ({"folds": 2.5}, TypeError, "folds must be an integer"),
        ({"folds": 41}, ValueError, "needs at least 41 samples, got 40"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1, got 0"),
        ({"level": 1.0}, ValueError, "level must be"),
        ({"methods": []}, ValueError, "at least one calibrator"),
        ({"methods": {}}, ValueError, "at least one calibrator"),
        ({"methods": ["temperature", "magic"]}, ValueError, "calibrator.*'magic'"),
        ({"methods": {"uncalibrated": TemperatureScaling()}}, ValueError, "'uncalibrated' is a reserved name"),
        ({"methods": {"x": "temperature"}}, TypeError, "got {'x': 'str'}"),
        ({"logits": logits[:19], "target": target[:19]}, ValueError, "needs at least 20 samples, got 19"),
        ({"logits": holed}, ValueError, "row 7 holds NaN"),
        ({"input": "probs"}, ValueError, "probabilities must"),
        ({"target": target + 1}, IndexError, "out of range"),
        ({"binary": "positive"}, ValueError, "two classes"),
        ({"num_bins": 0}, ValueError, "num_bins"),
    ]
    for options, error, message in bad:
        with pytest.raises(error, match=message):
            compare_calibrators(**({"logits": logits, "target": target, "methods": METHODS} | options))


# Held-out validation data


def test_held_out_scores_are_those_of_one_fit_on_the_validation_data() -> None:
    validation, (logits, target) = sample(300, 4, seed=1), sample(200, 4)
    shares = []
    result = compare_calibrators(logits, target, METHODS, validation=validation, progress=shares.append)
    assert result.held_out
    for name in METHODS:
        fitted = make_calibrator(name).fit(*validation)
        expected = M.evaluate(fitted(logits), target)
        assert result[name].scores == pytest.approx(
            {metric: getattr(expected, metric) for metric in result[name].scores}, abs=1e-9
        )
        assert torch.equal(result[name].fitted(logits), fitted(logits))
        assert result[name].optimism == 0  # held-out samples score the fits themselves
    assert result["temperature"].temperature == float(result["temperature"].fitted.temperature)
    assert result["vector"].temperature is None
    assert shares[-1] == 1.0
    plain = result.to_dict()
    assert plain["fitted_on"] == {"num_samples": 300}
    assert plain["scored_on"] == {"num_samples": 200}
    assert "(Chosen among 3 methods" in result.verdict()
    assert "validation split (300 samples)" in str(result)
    assert "scored on 200 other samples" in str(result)


def test_validation_data_of_other_classes_are_an_error() -> None:
    with pytest.raises(ValueError, match="validation has 3 classes, but logits have 4"):
        compare_calibrators(*sample(100, 4), METHODS, validation=sample(100, 3))
