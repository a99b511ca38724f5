"""Which calibrator to use, in words: nothing that is not finite, and nothing that the intervals do not bear."""

import math
from typing import ClassVar

import torch
from calibrator_cases import sample
from torch import Tensor

from dualfocal.calibrators import Calibrator, cross_fit
from dualfocal.calibrators._base import Fit
from dualfocal.calibrators.ranking import Scored, advice, recommend
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
    result = cross_fit(logits, target, ["temperature", "isotonic"])
    nll = result["isotonic"].scores["nll"]
    assert result.verdict() == (
        f"Use isotonic: it has the lowest NLL, {nll:.4f} nats. "
        "That of the model as it is is infinite: a true class has probability 0."
    )
    rows = {row[0]: row for row in result.table()[1]}
    assert (rows["as it is"][1], rows["isotonic"][2]) == ("inf", "-inf")  # and no interval
    assert "nan" not in str(result)


def test_where_every_method_does() -> None:
    logits, target = sample(300, 4, sharp=1.0)
    logits[0, target[0]] = -math.inf
    result = cross_fit(logits, target, {"idle": Idle()})
    assert result.verdict() == "The NLL is infinite, as it is and after each method: a true class has probability 0."
    assert result.recommended == "as it is"
    assert "nan" not in str(result)


def scored(name: str, nll: float, change: tuple[float, float], behind: tuple[float, float]) -> Scored:
    """A method by its NLL, which is 1 for the model as it is and 0.98 for the best, and the intervals of both gaps."""
    return Scored(
        name=name,
        evaluation=evaluate(torch.eye(2), torch.arange(2)),
        scores={"nll": nll},
        changes={"nll": Difference(1.0, nll, *change)},
        behind=Difference(0.98, nll, *behind),
        argmax_changed=0.0,
        notes=(),
    )


AS_IS = scored("as it is", 1.0, (0.0, 0.0), (-0.01, 0.05))
VECTOR = scored("vector", 0.98, (-0.05, 0.01), (0.0, 0.0))


def test_a_sure_gain_is_not_left_for_the_model_as_it_is() -> None:
    # The best may be no better than the model as it is, but temperature surely is.
    methods = [VECTOR, scored("temperature", 0.99, (-0.015, -0.005), (-0.01, 0.03)), AS_IS]
    assert recommend(methods, ["temperature", "vector"]) == "temperature"
    text = advice(methods, "temperature", 0.9)
    assert text.startswith(
        "Use temperature: it lowers the NLL by 0.0100 nats (0.0050 to 0.0150, 90 % interval). vector"
    )


def test_without_a_sure_gain_the_model_stays() -> None:
    methods = [VECTOR, scored("temperature", 0.99, (-0.02, 0.0), (-0.01, 0.03)), AS_IS]
    assert recommend(methods, ["temperature", "vector"]) == "as it is"
    text = advice(methods, "as it is", 0.9)
    assert text.startswith("Leave the model as it is: no method lowers its NLL by more than chance may. vector has")


def test_few_samples_have_no_interval() -> None:
    ends = (-math.inf, math.inf)
    methods = [scored("temperature", 0.98, ends, ends), scored("as it is", 1.0, ends, ends)]
    text = advice(methods, recommend(methods, ["temperature"]), 0.9)
    assert text == (
        "Too few samples for an interval, and for advice: temperature has the lowest NLL, 0.9800 nats, "
        "0.0200 less than the model as it is."
    )
