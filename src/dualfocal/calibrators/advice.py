"""Which calibrator to use, and why, in words."""

import math
from collections.abc import Sequence

from dualfocal.calibrators._scoring import MethodScore
from dualfocal.metrics.comparison import Difference

UNCALIBRATED = "as it is"  # the name of the uncalibrated model among the methods
LARGE = 1e7  # from here on a loss is written as 1.234e+07
LEAST_GAIN = 1e-4  # nats: less would be written as 0.0000


def recommend(methods: Sequence[MethodScore], simple_first: Sequence[str]) -> str:
    """The simplest method that is sure to help and not significantly worse than the lowest NLL.

    The uncalibrated model if no method is sure to help. ``methods`` have the lowest NLL first.
    """
    lowest = methods[0].scores["nll"]
    uncalibrated = next(method.scores["nll"] for method in methods if method.name == UNCALIBRATED)
    helpful = {method.name for method in methods if -method.changes["nll"].high >= LEAST_GAIN / 2}  # and it must show
    if math.isinf(uncalibrated) and math.isfinite(lowest):  # which has no interval, and is behind any finite one
        finite = (method for method in methods if math.isfinite(method.scores["nll"]))
        helpful = {methods[0].name, *(method.name for method in finite if has_interval(method.behind))}
    if not helpful:
        return UNCALIBRATED
    equal = {m.name for m in methods if m.behind.low <= 0 and math.isfinite(m.scores["nll"])}
    return next((name for name in simple_first if name in equal & helpful), methods[0].name)


def advise(methods: Sequence[MethodScore], recommended: str, level: float) -> str:
    """What to do, in a sentence or two; ``methods`` have the lowest NLL first."""
    by_name = {method.name: method for method in methods}
    best, advised, uncalibrated = methods[0], by_name[recommended], by_name[UNCALIBRATED]
    if len(methods) == 1:
        return "No method could be fitted to these data."
    if not math.isfinite(best.scores["nll"]):
        return "The NLL is infinite, as it is and after each method: a true class has probability 0."
    if not math.isfinite(uncalibrated.scores["nll"]):
        size = "it has the lowest NLL," if best is advised else "its NLL is"
        text = (
            f"Use {advised.name}: {size} {nats(advised.scores['nll'])} nats. "
            "That of the model as it is is infinite: a true class has probability 0."
        )
        return text if best is advised else f"{text} {_behind(best, advised)}"
    if not all(has_interval(method.changes["nll"]) for method in (best, advised)):
        lowest = f"{best.name} has the lowest NLL, {nats(best.scores['nll'])} nats"
        less = "" if best is uncalibrated else f", {nats(-best.changes['nll'].difference)} less than the model as it is"
        return f"Too few samples for an interval, and for advice: {lowest}{less}."
    if advised is uncalibrated:
        if any(method.changes["nll"].high < 0 for method in methods):
            return f"Leave the model as it is: no method is sure to lower its NLL by {LEAST_GAIN:.4f} nats."
        text = "Leave the model as it is: no method lowers its NLL by more than chance may."
    else:
        gain = advised.changes["nll"]
        text = (
            f"Use {advised.name}: it lowers the NLL by {nats(-gain.difference)} nats "
            f"({nats(-gain.high)} to {nats(-gain.low)}, {100 * level:.4g} % interval)."
        )
    return text if best is advised or advised.behind.difference < LEAST_GAIN / 2 else f"{text} {_behind(best, advised)}"


def has_interval(d: Difference) -> bool:
    """Whether a difference has an interval: too few samples, or an infinite NLL, give none."""
    return math.isfinite(d.low) and math.isfinite(d.high)


def nats(value: float, sign: str = "-") -> str:
    """Four decimals; of logits that are very far apart a loss has hundreds of digits before them.

    >>> nats(0.12345), nats(0.5, "+"), nats(2e297)
    ('0.1235', '+0.5000', '2.000e+297')
    """
    return f"{value:{sign}{'.4f' if not abs(value) >= LARGE else '.3e'}}"


def _behind(best: MethodScore, advised: MethodScore) -> str:
    d = advised.behind
    simpler = "" if advised.name == UNCALIBRATED else f", and {advised.name} is simpler"
    return (
        f"{best.name} has the lowest NLL, but by {nats(d.difference)} nats ({nats(d.low, '+')} to {nats(d.high, '+')}) "
        f"only, which chance can explain{simpler}."
    )
