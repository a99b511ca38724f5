"""Probabilities that were rounded to a few decimals: recognised, made to sum to 1, and named."""

import contextlib
import json
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from case_loops import for_each

from dualfocal import metrics as M
from dualfocal.cli import main
from dualfocal.predictions import PredictionsError, load_predictions, stream_predictions, sum_predictions

evaluate = partial(M.evaluate, input="probs")


def draw(n: int, num_classes: int, *, scale: float = 2.0, tau: float = 1.0, seed: int = 0):
    """Probabilities of a model and labels; with tau = 1 it is calibrated."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal((n, num_classes))
    probs, truth = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (logits, logits / tau))
    return probs, (truth.cumsum(1) <= rng.random((n, 1))).sum(1).clip(max=num_classes - 1)


def adjusted(rounded, decimals: int) -> list[list[float]]:
    """Rows of rounded probabilities, with the missing sum spread over all classes, or an excess over those above 0."""
    one = 10**decimals
    rows = []
    for units in np.rint(np.asarray(rounded, np.float64) * one).astype(int).tolist():
        missing = one - sum(units)
        sharing = [missing > 0 or unit > 0 for unit in units]
        share = Fraction(missing, sum(sharing))
        rows.append([float((unit + share * shares) / one) for unit, shares in zip(units, sharing, strict=True)])
    return rows


def decimals_of(probs) -> int | None:
    """Number of decimals that an evaluation finds; None if it finds no grid."""
    rounding = evaluate(probs, np.zeros(len(probs), np.int64)).rounding
    return None if rounding is None else rounding.decimals


@for_each(decimals=(1, 2, 3, 4))
def test_a_grid_is_recognised(decimals) -> None:
    probs = draw(300, 5)[0].round(decimals)
    assert decimals_of(probs) == decimals_of(np.float32(probs)) == decimals
    assert decimals_of(np.float64(np.float32(probs))) == decimals  # stored as float32, read as float64
    two_classes = draw(300, 2)[0].round(decimals)
    two_classes[299] = [0.2 + 0.3 * 10.0**-decimals, 0.8 - 0.3 * 10.0**-decimals]  # the last row has a decimal more
    assert decimals_of(two_classes) == (decimals + 1 if decimals < 4 else None)


def test_a_grid_is_recognised_in_half_precision() -> None:
    probs = torch.from_numpy(draw(300, 5)[0])
    assert decimals_of(probs.mul(100).round().div(100).half()) == 2
    assert decimals_of(probs.mul(10).round().div(10).bfloat16()) == 1
    for dtype in (torch.float16, torch.bfloat16):
        assert decimals_of(probs.to(dtype)) is None


def test_predicted_classes_and_other_values_are_on_no_grid() -> None:
    for probs in ([[0.0, 1.0], [1.0, 0.0]], [[1 / 3, 2 / 3]], [[0.5, 0.5], [0.25001, 0.74999]]):
        assert decimals_of(probs) is None
    for values in ([[0.3, 2.0]], [[-0.3, 1.3]], [[0.3, float("nan")]]):
        with pytest.raises(ValueError, match="are these logits"):
            evaluate(values, [0])


@for_each(dtype=(torch.float64, torch.float32, torch.float16))
def test_rows_are_made_to_sum_to_1(dtype) -> None:
    probs, target = draw(500, 8)
    rounded, sums = torch.from_numpy(probs.round(2)).to(dtype), probs.round(2).sum(1)
    off, before = np.abs(sums - 1) > 0.001, rounded.clone()
    expected = rounded.clone()
    expected[off] = torch.tensor(adjusted(rounded[off], 2), dtype=torch.float64).to(dtype)
    result = evaluate(rounded, target)
    assert 100 < off.sum() < 400
    assert (result.rounding.decimals, result.rounding.num_rows, result.rounding.adjusted) == (2, 500, off.sum())
    assert torch.equal(rounded, before)  # the caller's numbers stay
    if dtype != torch.float16:  # where the quotients, rounded to half precision, are on the grid again
        assert evaluate(expected, target).scalars() == pytest.approx(result.scalars(), rel=1e-12)
    brier = np.square(expected.double().numpy() - np.eye(8)[target]).sum(1).mean()
    assert result.brier == pytest.approx(brier, rel=1e-12)


def test_metrics_are_those_of_the_adjusted_rows() -> None:
    probs, target = draw(1000, 10)
    rounded = probs.round(2)
    assert (abs(rounded.sum(1) - 1) > 0.0101).sum() > 20  # beyond the tolerance of other probabilities
    exact = np.array(adjusted(rounded, 2))
    for name in ("ece", "nll", "brier_score", "classwise_ece", "aurc"):
        metric = getattr(M, name)
        expected = metric(exact, target, input="probs")
        assert metric(rounded, target, input="probs") == pytest.approx(expected, rel=1e-12)
    result, expected = evaluate(rounded, target, inference=True), evaluate(exact, target, inference=True)
    assert expected.rounding is None
    assert result.scalars() == pytest.approx(expected.scalars(), rel=1e-9)


def test_the_error_is_half_a_step_and_what_is_spread() -> None:
    rounded, target = [[0.5, 0.5, 0.0], [0.4, 0.3, 0.2]] * 10, [0, 0] * 10
    first, second = 0.05**2, (0.05 + 0.1 / 3) ** 2
    assert evaluate(rounded, target).rounding.error ** 2 == pytest.approx((first + second) / 2, rel=1e-12)
    weighted = evaluate(rounded, target, sample_weight=[0.5, 1.5] * 10).rounding
    assert weighted.error**2 == pytest.approx(0.25 * first + 0.75 * second, rel=1e-12)


@for_each("num_classes, decimals", ((2, 1), (5, 2), (50, 2), (50, 1)))
def test_the_error_bounds_what_rounding_changes(num_classes, decimals) -> None:
    probs, target = draw(2000, num_classes)
    rounded = probs.round(decimals)
    kept = rounded.sum(1) > 0
    confidence = np.array(adjusted(rounded[kept], decimals)).max(1)
    true = np.take_along_axis(probs[kept], rounded[kept].argmax(1)[:, None], 1)[:, 0]
    error = evaluate(rounded[kept], target[kept]).rounding.error
    assert 0.2 * error < np.sqrt(np.mean((confidence - true) ** 2)) <= error


REFUSED = {
    "too low": ([0.5, 0.2, 0.1, 0.1, 0.07], "sums to 0.97, but must lie between 0.975 and 1.025"),
    "too high for two that are not 0": (
        [0.53, 0.5, 0.0, 0.0, 0.0],
        "sums to 1.03, but must lie between 0.975 and 1.01",
    ),
    "several labels": ([0.9, 0.5, 0.1, 0.0, 0.0], "sums to 1.5, but must .* task='multilabel'"),
    "nothing left": ([0.0] * 5, "sums to 0, but must lie"),
}


@for_each(case=REFUSED)
def test_a_sum_that_rounding_does_not_explain_is_an_error(case) -> None:
    row, problem = REFUSED[case]
    probs, target = draw(300, 5, seed=3)
    rounded = probs.round(2)
    assert evaluate(rounded, target).num_samples == 300
    rounded[170] = row
    for metric in (M.ece, M.nll, M.evaluate, M.CalibrationSums.from_predictions):
        with pytest.raises(ValueError, match=f"rounded to two decimals.* at most 0.005: row 170 {problem}"):
            metric(rounded, target, input="probs")
    with pytest.raises(ValueError, match="write the probabilities with more decimals"):
        evaluate(rounded, target)


def test_the_tolerance_of_other_probabilities_stays() -> None:
    for row, total in (([0.48, 0.5, 0.0], "0.98"), ([0.9, 0.5, 0.1], "1.5")):
        probs, target = draw(300, 3)
        probs[170] = row
        with pytest.raises(ValueError, match=rf"\(within 0\.01\).*row 170 sums to {total} .*task='multilabel'"):
            evaluate(probs, target)


def test_a_row_of_zeros_is_refused() -> None:
    """Rounding explains it, but which class was predicted is lost: equal probabilities would be a guess."""
    probs, target = draw(300, 250, scale=1.0)
    rounded = probs.round(2)
    rounded[20] = 0.0
    with pytest.raises(ValueError, match=r"row 20 sums to 0: all 250 .* predicted class is lost; .* more decimals"):
        evaluate(rounded, target)
    kept = np.arange(300) != 20
    assert evaluate(rounded[kept], target[kept]).rounding.decimals == 2


def test_other_probabilities_and_logits_are_untouched() -> None:
    probs, target = draw(300, 6)
    rounded = probs.round(2)
    nll = torch.nn.functional.cross_entropy(torch.from_numpy(rounded), torch.from_numpy(target))
    as_logits = M.evaluate(rounded, target, input="logits")
    assert as_logits.nll == pytest.approx(float(nll), rel=1e-12)
    assert as_logits.rounding is None
    rounded[299] = probs[299]  # one row that is not rounded: the plain tolerance, and no division
    close = np.abs(rounded.sum(1) - 1) <= 0.0101
    result = evaluate(rounded[close], target[close])
    assert result.rounding is None
    assert result.confidence == pytest.approx(rounded[close].max(1).mean(), rel=1e-9)
    assert result.confidence != pytest.approx((rounded[close].max(1) / rounded[close].sum(1)).mean(), rel=1e-5)


def test_shares_of_votes_are_not_rounded() -> None:
    """A forest of 100 trees: multiples of 0.01 that sum to 1 exactly, which rounding would not give in so many rows."""
    probs, target = draw(200, 4)
    votes = np.random.default_rng(0).multinomial(100, probs) / 100
    assert evaluate(votes, target).rounding is None


def test_one_score_per_sample() -> None:
    probs, target = draw(300, 2)
    scores = torch.from_numpy(probs[:, 1]).float().mul(100).round().div(100)
    result = evaluate(scores, target, binary="positive")
    assert (result.rounding.decimals, result.rounding.adjusted) == (2, 0)
    assert result.rounding.error == pytest.approx(0.005)
    assert M.evaluate(scores, target, input="confidence").rounding == result.rounding


def test_the_sentence_names_decimals_error_and_rows() -> None:
    probs, target = draw(1000, 10)
    result = evaluate(probs.round(2), target, inference=True)
    rounding = result.rounding
    sentence = result.verdict()[-len(rounding.sentence()) :]
    assert sentence == rounding.sentence()
    assert sentence.startswith("Probabilities look rounded to two decimals, which alone can cause gaps of up to 0.")
    assert sentence.endswith(
        f"; {rounding.adjusted} of 1,000 rows did not sum to 1; the difference was spread over their classes."
    )
    assert str(evaluate(probs.round(2), target)).endswith(sentence)
    assert "one decimal, which" in evaluate(probs.round(1), target).rounding.sentence()
    assert "rounded" not in evaluate(probs, target, inference=True).verdict()
    texts = {0.05: "5.0", 0.1: "10", 0.00005: "0.0050", 0.0061001: "0.62", 0.0999: "10.0"}
    for error, text in texts.items():
        assert f"gaps of up to {text} points" in replace(rounding, error=error).sentence()


def test_json_keeps_it() -> None:
    probs, target = draw(300, 5)
    content = json.loads(json.dumps(evaluate(probs.round(2), target, inference=True).to_dict()))
    assert M.Evaluation.from_dict(content).to_dict() == content
    assert M.Evaluation.from_dict(content).rounding == evaluate(probs.round(2), target).rounding
    assert "rounding" not in evaluate(probs, target).to_dict()


def test_rounded_probabilities_are_refused_as_logits() -> None:
    probs, target = draw(300, 6)
    with pytest.raises(ValueError, match="logits must not be probabilities"):
        M.ece(probs.round(2), target)
    other = probs.round(2)
    other[299, 0] += 0.1  # rounding does not explain this sum
    assert M.ece(other, target) == M.ece(other, target, input="logits")


CALLED = ("Over-confident", "Under-confident", "Miscalibrated", ": miscalibrated (")


@for_each("num_classes, decimals", ((2, 1), (10, 1)))
def test_rounding_alone_is_not_called_miscalibrated(num_classes, decimals) -> None:
    probs, target = draw(100_000, num_classes, scale=3.0)
    result = evaluate(probs.round(decimals), target, inference=True)
    verdict = result.verdict()
    assert result.inference.joint_p_value <= 0.05  # the tests notice the rounding
    assert verdict.startswith("No miscalibration beyond what the rounding of the input can cause: ECE is ")
    assert not any(words in verdict for words in CALLED)


@for_each("num_classes, decimals, n", ((2, 2, 5000), (10, 2, 1000), (10, 4, 1000), (10, 1, 10_000)))
def test_a_clearly_over_confident_model_is_called_so(num_classes, decimals, n) -> None:
    probs, target = draw(n, num_classes, scale=3.0, tau=2.0)
    verdict = evaluate(probs.round(decimals), target, inference=True).verdict()
    assert verdict.startswith("Over-confident: ECE is ")
    assert ": miscalibrated (p" in verdict


def write(path, probs, target, names: list[str]):
    """A CSV file of probabilities with two decimals and labels by name."""
    lines = [",".join([*(f"{p:.2f}" for p in row), names[k]]) for row, k in zip(probs, target, strict=True)]
    path.write_text("\n".join([",".join([*names, "label"]), *lines]))
    return path


def test_columns_that_are_named_like_the_labels_may_be_rounded(tmp_path) -> None:
    probs, target = draw(1000, 5)
    rounded, names = probs.round(2), list("abcde")
    assert (abs(rounded.sum(1) - 1) > 0.0101).any()
    data = load_predictions(write(tmp_path / "a.csv", rounded, target, names))
    assert (data.input, data.class_names) == ("probs", tuple(names))
    rounded[0] = [0.9, 0.5, 0.1, 0.0, 0.0]
    with pytest.raises(PredictionsError, match="name the logits or probabilities"):
        load_predictions(write(tmp_path / "b.csv", rounded, target, names))


def test_a_stream_is_treated_like_the_file(tmp_path) -> None:
    probs, target = draw(1000, 10)
    rounded, names = probs.round(2), list("abcdefghij")
    path = write(tmp_path / "a.csv", rounded, target, names)
    stream = stream_predictions(path, num_rows=300)
    state, expected = stream.sums(), evaluate(rounded, target)
    assert state.evaluate(inference=False).ece == pytest.approx(expected.ece, rel=1e-12)
    assert state.rounding.error == pytest.approx(expected.rounding.error, rel=1e-12)
    assert replace(state.rounding, error=0.0) == replace(expected.rounding, error=0.0)
    rounded[777] = 0.08
    with pytest.raises(PredictionsError, match=r"b\.csv: .*rounded to two decimals.* row 777 sums to 0\.8"):
        sum_predictions(write(tmp_path / "b.csv", rounded, target, names), probs=",".join(names))


def test_a_file_read_in_one_pass_gets_the_same_verdict(tmp_path, capsys) -> None:
    probs, target = draw(2000, 10)
    path = str(write(tmp_path / "a.csv", probs.round(2), target, list("abcdefghij")))
    sentences = []
    for options in ([], ["--max-memory", "60KB"]):
        with contextlib.suppress(SystemExit):
            main(["evaluate", path, "--json", *options])
        printed = capsys.readouterr()
        assert ("read in one pass" in printed.err) == bool(options)
        [content] = json.loads(printed.out)["files"]
        sentences.append(content["verdict"].partition("Probabilities look rounded to two decimals")[2])
    assert sentences[0] == sentences[1] != ""
