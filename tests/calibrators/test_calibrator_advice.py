"""Which calibrator to use, in words: nothing that is not finite, and nothing that the intervals do not bear."""

import math
import re
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from calibrator_cases import sample, texts
from torch import Tensor

from dualfocal.calibrators import Calibrator, MethodScore, compare_calibrators, make_calibrator
from dualfocal.calibrators._base import Fit
from dualfocal.calibrators.comparison import advise, recommend
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.evaluation import evaluate


class Idle(Calibrator):
    """Learns nothing, and changes nothing."""

    learned: ClassVar[tuple[str, ...]] = ("nothing",)

    def _fit(self, rows) -> Fit:
        return Fit({"nothing": torch.zeros(1)}, nll=(0.0, 0.0))

    def _map(self, logits: Tensor) -> Tensor:
        return logits.clone()


def test_where_the_model_rules_out_the_truth() -> None:
    logits, target = sample(300, 4, sharp=1.0)
    logits[0, target[0]] = -math.inf
    result = compare_calibrators(logits, target, ["temperature", "isotonic"])
    nll = result["isotonic"].scores["nll"]
    assert result.verdict() == (
        f"Use isotonic: it has the lowest NLL, {nll:.4f} nats. "
        "That of the model as it is is infinite: a true class has probability 0."
    )
    rows = {row[0]: row for row in result.table().rows}
    assert (rows["as it is"][1], rows["isotonic"][2]) == ("inf", "-inf")  # and no interval
    assert "nan" not in str(result)


def test_where_the_model_rules_out_the_truth_simple_methods_come_first_too() -> None:
    def method(name: str, nll: float, behind: tuple[float, float]) -> MethodScore:
        return replace(scored(name, nll, (-math.inf, math.inf), behind), changes={"nll": infinite})

    infinite = Difference(math.inf, 0.98, -math.inf, math.inf)
    as_is = replace(scored("as it is", math.inf, (0.0, 0.0), (-math.inf, math.inf)), changes={"nll": infinite})
    methods = [method("vector", 0.98, (0.0, 0.0)), method("temperature", 0.99, (-0.01, 0.03)), as_is]
    assert recommend(methods, ["temperature", "vector"]) == "temperature"
    assert advise(methods, "temperature", 0.9) == (
        "Use temperature: its NLL is 0.9900 nats. That of the model as it is is infinite: a true class has probability "
        "0. vector has the lowest NLL, but by 0.0100 nats (-0.0100 to +0.0300) only, which chance can explain, and "
        "temperature is simpler."
    )
    methods[1] = method("temperature", 0.99, (0.001, 0.03))
    assert recommend(methods, ["temperature", "vector"]) == "vector"
    few = [method("vector", 0.98, (-math.inf, math.inf)), method("temperature", 0.99, (-math.inf, math.inf)), as_is]
    assert recommend(few, ["temperature", "vector"]) == "vector"


def test_where_every_method_does() -> None:
    logits, target = sample(300, 4, sharp=1.0)
    logits[0, target[0]] = -math.inf
    result = compare_calibrators(logits, target, {"idle": Idle()})
    assert result.verdict() == "The NLL is infinite, as it is and after each method: a true class has probability 0."
    assert result.recommended == "as it is"
    assert "nan" not in str(result)


def scored(name: str, nll: float, change: tuple[float, float], behind: tuple[float, float]) -> MethodScore:
    """A method by its NLL, which is 1 for the model as it is and 0.98 for the best, and the intervals of both gaps."""
    return MethodScore(
        name=name,
        evaluation=evaluate(torch.eye(2), torch.arange(2)),
        scores={"nll": nll},
        changes={"nll": Difference(1.0, nll, *change)},
        behind=Difference(0.98, nll, *behind),
    )


AS_IS = scored("as it is", 1.0, (0.0, 0.0), (-0.01, 0.05))
VECTOR = scored("vector", 0.98, (-0.05, 0.01), (0.0, 0.0))


def test_a_sure_gain_is_not_left_for_the_model_as_it_is() -> None:
    # The best may be no better than the model as it is, but temperature surely is.
    methods = [VECTOR, scored("temperature", 0.99, (-0.015, -0.005), (-0.01, 0.03)), AS_IS]
    assert recommend(methods, ["temperature", "vector"]) == "temperature"
    text = advise(methods, "temperature", 0.9)
    assert text.startswith(
        "Use temperature: it lowers the NLL by 0.0100 nats (0.0050 to 0.0150, 90 % interval). vector"
    )


def test_without_a_sure_gain_the_model_stays() -> None:
    methods = [VECTOR, scored("temperature", 0.99, (-0.02, 0.0), (-0.01, 0.03)), AS_IS]
    assert recommend(methods, ["temperature", "vector"]) == "as it is"
    text = advise(methods, "as it is", 0.9)
    assert text.startswith("Leave the model as it is: no method lowers its NLL by more than chance may. vector has")


def test_few_samples_have_no_interval() -> None:
    ends = (-math.inf, math.inf)
    methods = [scored("temperature", 0.98, ends, ends), scored("as it is", 1.0, ends, ends)]
    text = advise(methods, recommend(methods, ["temperature"]), 0.9)
    assert text == (
        "Too few samples for an interval, and for advice: temperature has the lowest NLL, 0.9800 nats, "
        "0.0200 less than the model as it is."
    )


# Gains that do not show


@pytest.mark.parametrize(
    ("change", "recommended"),
    [((-0.0002, -0.00001), "as it is"), ((-0.0002, -0.0000499), "as it is"), ((-0.0003, -0.00006), "temperature")],
)
def test_a_gain_must_show_in_the_digits_that_are_printed(change, recommended) -> None:
    methods = [scored("temperature", 0.9999, change, (0.0, 0.0)), AS_IS]
    assert recommend(methods, ["temperature"]) == recommended
    if recommended == "as it is":
        text = "Leave the model as it is: no method is sure to lower its NLL by 0.0001 nats."
        assert advise(methods, recommended, 0.9) == text


def test_constant_logits_of_one_class_are_left_alone() -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0]]).repeat(200, 1)  # and right: nothing to gain, to ten digits
    result = compare_calibrators(logits, torch.zeros(200, dtype=torch.int64), ["temperature", "platt"], repeats=1)
    assert result.recommended == "as it is"
    assert result.verdict().startswith("Leave the model as it is")
    assert "by 0.0000 nats" not in result.verdict()


# Classes without samples


def without_class_3(n: int = 600) -> tuple[Tensor, Tensor]:
    logits, target = sample(n, 4, sharp=1.0)
    keep = target != 3
    return logits[keep], target[keep]


def test_what_rules_out_an_absent_class_is_not_recommended() -> None:
    logits, target = without_class_3()
    result = compare_calibrators(logits, target, ["temperature", "vector", "isotonic", "temperature+platt"], repeats=1)
    assert result.methods[0].name != "temperature"  # by these samples, the class had better be ruled out
    assert result.recommended in ("temperature", "as it is")
    assert set(result.left_out) == {"vector", "isotonic", "temperature+platt"}
    names = ", ".join(result.left_out)
    sentence = f"1 of 4 classes have no sample (3): left out of this advice is what all but rules them out ({names})."
    assert result.verdict().endswith(sentence)
    assert "vector" not in result.verdict().removesuffix(sentence)
    assert result.to_dict()["left_out"] == list(result.left_out)
    complete = compare_calibrators(*sample(600, 4, sharp=1.0), ["temperature", "vector"], repeats=1)
    assert complete.left_out == ()
    assert "left out" not in complete.verdict()


def test_where_everything_would_rule_it_out() -> None:
    result = compare_calibrators(*without_class_3(), ["vector", "isotonic"], repeats=1)
    assert result.recommended == "as it is"
    assert result.verdict().startswith("Leave the model as it is. 1 of 4 classes have no sample (3): ")


def test_the_note_on_absent_classes_is_true() -> None:
    logits, target = without_class_3()
    for name in ("vector", "matrix", "dirichlet", "platt", "beta", "histogram", "isotonic", "bbq"):
        calibrator = make_calibrator(name).fit(logits, target)
        assert texts(calibrator.report.notes) == ["1 of 4 classes have no sample (3): the fit all but rules them out"]
        before, after = (of.softmax(1)[:, 3].mean() for of in (logits, calibrator(logits)))
        assert before > 0.1
        assert after < 0.02


# Notes of all folds


def test_notes_that_differ_in_a_count_are_one_line() -> None:
    logits, target = sample(120, 40)
    result = compare_calibrators(logits, target, ["vector", "temperature"])
    [note] = texts(result["vector"].notes)
    found = re.fullmatch(r"up to (\d+) of 40 classes have no sample in a fold: the fit all but rules them out", note)
    assert found
    absent = 40 - len(target.unique())
    assert absent < int(found[1]) < 40
    assert result["temperature"].notes == ()


def test_notes_that_do_not_differ_stay() -> None:
    result = compare_calibrators(*without_class_3(), ["vector"])
    assert texts(result["vector"].notes) == ["1 of 4 classes have no sample (3): the fit all but rules them out"]


class Tired(Idle):
    """Stops before it is done."""

    def _fit(self, rows) -> Fit:
        return replace(super()._fit(rows), converged=False)


def test_a_fit_that_does_not_converge_is_told() -> None:
    logits, target = sample(300, 4, sharp=1.5)
    methods = {"tired": Tired(), "idle": Idle()}
    crossed = compare_calibrators(logits, target, methods)
    held_out = compare_calibrators(logits, target, methods, validation=(logits, target))
    for result, note in ((crossed, "a fit did not converge"), (held_out, "the fit did not converge")):
        assert note in texts(result["tired"].notes)
        assert note not in texts(result["idle"].notes)
