"""Recommendations follow from the confidence intervals, and their texts hold no NaN."""

import json
import math
import re
from dataclasses import replace
from typing import ClassVar

import torch
from calibrator_cases import sample, texts
from case_loops import for_each
from torch import Tensor

from dualfocal.calibrators import Calibrator, MethodScore, Note, compare_calibrators, make_calibrator
from dualfocal.calibrators._fit_report import Fit
from dualfocal.calibrators.comparison import advise, recommend
from dualfocal.metrics import Difference, evaluate


class Idle(Calibrator):
    """A calibrator that changes nothing."""

    learned: ClassVar[tuple[str, ...]] = ("nothing",)

    def _fit(self, rows) -> Fit:
        return Fit({"nothing": torch.zeros(1)}, nll=(0.0, 0.0))

    def _map(self, logits: Tensor) -> Tensor:
        return logits.clone()


def test_infinite_nll_of_the_model() -> None:
    logits, target = sample(300, 4, sharp=1.0)
    logits[0, target[0]] = -math.inf
    result = compare_calibrators(logits, target, ["temperature", "isotonic"], repeats=1)
    assert set(result.refused) == {"temperature"}
    assert result["uncalibrated"].scores["nll"] == math.inf
    json.dumps(result.to_dict(), allow_nan=False)
    nll = result["isotonic"].scores["nll"]
    assert result.verdict().startswith(f"Use isotonic: it has the lowest NLL, {nll:.4f} nats.")
    assert "uncalibrated model has infinite NLL" in result.verdict()
    rows = {row[0]: row for row in result.table().rows}
    assert (rows["uncalibrated"][1], rows["isotonic"][2]) == ("inf", "-inf")  # without an interval
    assert "nan" not in str(result)


def test_infinite_nll_of_the_model_simple_methods_still_come_first() -> None:
    def method(name: str, nll: float, behind: tuple[float, float]) -> MethodScore:
        return replace(scored(name, nll, (-math.inf, math.inf), behind), changes={"nll": infinite})

    infinite = Difference(math.inf, 0.98, -math.inf, math.inf)
    uncalibrated = replace(
        scored("uncalibrated", math.inf, (0.0, 0.0), (-math.inf, math.inf)), changes={"nll": infinite}
    )
    methods = [method("vector", 0.98, (0.0, 0.0)), method("temperature", 0.99, (-0.01, 0.03)), uncalibrated]
    assert recommend(methods, ["temperature", "vector"]) == "temperature"
    text = advise(methods, "temperature", 0.9)
    assert text.startswith("Use temperature: its NLL is 0.9900 nats.")
    assert "uncalibrated model has infinite NLL" in text
    assert (
        "vector has the lowest NLL, but the difference of 0.0100 nats (-0.0100 to +0.0300) is not significant" in text
    )
    assert text.endswith("temperature is simpler.")
    methods[1] = method("temperature", 0.99, (0.001, 0.03))
    assert recommend(methods, ["temperature", "vector"]) == "vector"
    few = [
        method("vector", 0.98, (-math.inf, math.inf)),
        method("temperature", 0.99, (-math.inf, math.inf)),
        uncalibrated,
    ]
    assert recommend(few, ["temperature", "vector"]) == "vector"


def test_infinite_nll_of_every_method() -> None:
    logits, target = sample(300, 4, sharp=1.0)
    logits[0, target[0]] = -math.inf
    result = compare_calibrators(logits, target, {"idle": Idle()})
    assert result.verdict().startswith("The NLL is infinite with and without calibration")
    assert result.recommended == "uncalibrated"
    assert "nan" not in str(result)


def scored(name: str, nll: float, change: tuple[float, float], behind: tuple[float, float]) -> MethodScore:
    """A method with this NLL and these intervals; the uncalibrated NLL is 1, the best 0.98."""
    return MethodScore(
        name=name,
        evaluation=evaluate(torch.eye(2), torch.arange(2), input="logits"),
        scores={"nll": nll},
        changes={"nll": Difference(1.0, nll, *change)},
        behind=Difference(0.98, nll, *behind),
    )


UNCALIBRATED = scored("uncalibrated", 1.0, (0.0, 0.0), (-0.01, 0.05))
VECTOR = scored("vector", 0.98, (-0.05, 0.01), (0.0, 0.0))


def test_a_significant_gain_is_recommended_although_the_best_is_not_significant() -> None:
    methods = [VECTOR, scored("temperature", 0.99, (-0.015, -0.005), (-0.01, 0.03)), UNCALIBRATED]
    assert recommend(methods, ["temperature", "vector"]) == "temperature"
    text = advise(methods, "temperature", 0.9)
    assert text.startswith(
        "Use temperature: it lowers the NLL by 0.0100 nats (0.0050 to 0.0150, 90 % confidence interval). vector"
    )


def test_without_a_significant_gain_the_model_stays_uncalibrated() -> None:
    methods = [VECTOR, scored("temperature", 0.99, (-0.02, 0.0), (-0.01, 0.03)), UNCALIBRATED]
    assert recommend(methods, ["temperature", "vector"]) == "uncalibrated"
    text = advise(methods, "uncalibrated", 0.9)
    assert text.startswith("Keep the model uncalibrated: no method lowers the NLL significantly. vector has")


def test_few_samples_have_no_interval() -> None:
    ends = (-math.inf, math.inf)
    methods = [scored("temperature", 0.98, ends, ends), scored("uncalibrated", 1.0, ends, ends)]
    text = advise(methods, recommend(methods, ["temperature"]), 0.9)
    assert text.startswith("Too few samples for a confidence interval")
    assert text.endswith("temperature has the lowest NLL, 0.9800 nats, 0.0200 less than uncalibrated.")


# Gains too small to be printed


@for_each(
    "change, recommended",
    [
        ((-0.0002, -0.00001), "uncalibrated"),
        ((-0.0002, -0.0000499), "uncalibrated"),
        ((-0.0003, -0.00006), "temperature"),
    ],
)
def test_a_gain_must_be_visible_in_the_printed_digits(change, recommended) -> None:
    methods = [scored("temperature", 0.9999, change, (0.0, 0.0)), UNCALIBRATED]
    assert recommend(methods, ["temperature"]) == recommended
    if recommended == "uncalibrated":
        text = advise(methods, recommended, 0.9)
        assert text.startswith("Keep the model uncalibrated: ")
        assert "0.0001 nats" in text


def test_constant_logits_of_one_class_stay_uncalibrated() -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0]]).repeat(200, 1)  # always correct: the possible gain is below 1e-10
    result = compare_calibrators(logits, torch.zeros(200, dtype=torch.int64), ["temperature", "platt"], repeats=1)
    assert result.recommended == "uncalibrated"
    assert result.verdict().startswith("Keep the model uncalibrated")
    assert "by 0.0000 nats" not in result.verdict()


# Classes without samples


def without_class_3(n: int = 600) -> tuple[Tensor, Tensor]:
    logits, target = sample(n, 4, sharp=1.0)
    keep = target != 3
    return logits[keep], target[keep]


def test_methods_that_rule_out_an_absent_class_are_not_recommended() -> None:
    logits, target = without_class_3()
    result = compare_calibrators(logits, target, ["temperature", "vector", "isotonic", "temperature+platt"], repeats=1)
    assert result.methods[0].name != "temperature"  # these samples reward giving the class zero probability
    assert result.recommended in ("temperature", "uncalibrated")
    assert set(result.left_out) == {"vector", "isotonic", "temperature+platt"}
    advice, _, rule = result.verdict().partition("1 of 4 classes have no samples (3)")
    assert rule.endswith(f"not recommended ({', '.join(result.left_out)}).")
    assert "vector" not in advice
    assert result.to_dict()["left_out"] == list(result.left_out)
    complete = compare_calibrators(*sample(600, 4, sharp=1.0), ["temperature", "vector"], repeats=1)
    assert complete.left_out == ()
    assert "not recommended" not in complete.verdict()


def test_if_all_methods_rule_it_out_the_model_stays_uncalibrated() -> None:
    result = compare_calibrators(*without_class_3(), ["vector", "isotonic"], repeats=1)
    assert result.recommended == "uncalibrated"
    assert result.verdict().startswith("Keep the model uncalibrated. 1 of 4 classes have no samples (3)")


def test_the_note_on_absent_classes_is_true() -> None:
    logits, target = without_class_3()
    for name in ("vector", "matrix", "dirichlet", "platt", "beta", "histogram", "isotonic", "bbq"):
        calibrator = make_calibrator(name).fit(logits, target)
        assert calibrator.report.notes == (Note("absent_classes", 1, 4, (3,)),)
        before, after = (values.softmax(1)[:, 3].mean() for values in (logits, calibrator(logits)))
        assert before > 0.1
        assert after < 0.02


# Notes of all folds


def test_notes_that_differ_in_a_count_are_one_line() -> None:
    logits, target = sample(120, 40)
    result = compare_calibrators(logits, target, ["vector", "temperature"])
    [note] = texts(result["vector"].notes)
    match = re.match(r"up to (\d+) of 40 classes have no samples in a fold", note)
    assert match
    absent = 40 - len(target.unique())
    assert absent < int(match[1]) < 40
    assert result["temperature"].notes == ()


def test_notes_that_do_not_differ_stay() -> None:
    result = compare_calibrators(*without_class_3(), ["vector"])
    assert result["vector"].notes == (Note("absent_classes", 1, 4, (3,)),)


class NotConverged(Idle):
    """A calibrator whose fit does not converge."""

    def _fit(self, rows) -> Fit:
        return replace(super()._fit(rows), converged=False)


def test_a_fit_that_does_not_converge_is_noted() -> None:
    logits, target = sample(300, 4, sharp=1.5)
    methods = {"stuck": NotConverged(), "idle": Idle()}
    crossed = compare_calibrators(logits, target, methods)
    held_out = compare_calibrators(logits, target, methods, validation=(logits, target))
    for result, kind in ((crossed, "fold_not_converged"), (held_out, "not_converged")):
        assert result["stuck"].notes == (Note(kind),)
        assert "did not converge" in str(result["stuck"].notes[0])
        assert result["idle"].notes == ()
