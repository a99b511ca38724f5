"""Methods side by side, the model as it is among them: by NLL, with paired intervals, and which one to use."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dualfocal.metrics.comparison import LEAST, Difference, interval
from dualfocal.metrics.evaluation import Evaluation
from dualfocal.metrics.resampling import Models, resample

AS_IS = "as it is"
COMPARED = ("nll", "brier", "error", "ece")
LARGE = 1e7  # from here on a loss is written as 1.234e+07
LEAST_GAIN = 1e-4  # nats: less would be written as 0.0000


@dataclass(frozen=True)
class Scored:
    """A method: what it made of samples that its fits had not seen."""

    name: str
    evaluation: Evaluation  # of the first repeat, with floors
    scores: dict[str, float]  # nll, brier, error and ece, means over the repeats
    changes: dict[str, Difference]  # of these, from the model as it is (a) to this method (b)
    behind: Difference  # in NLL: from the best method that may be advised (a) to this one (b)
    argmax_changed: float  # share of samples whose predicted class is another
    notes: tuple[str, ...]  # what the fits had to say


class Unranked(NamedTuple):
    """A method's scores, on all samples and on resampled ones."""

    name: str
    evaluation: Evaluation
    scores: dict[str, float]
    draws: dict[str, Tensor]  # none where there are too few samples to draw from
    changed: float
    notes: tuple[str, ...]


def unranked(
    name: str,
    found: Sequence[Evaluation],
    seen: Models,
    *,
    num_bins: int,
    seed: int,
    changed: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Unranked:
    """The scores of one or several repeats, and the same on resampled data: with the same draws for all methods."""
    scores = {metric: sum(getattr(of, metric) for of in found) / len(found) for metric in COMPARED}
    draws = {metric: torch.empty(0) for metric in COMPARED}
    if len(seen[0][0]) >= LEAST:
        drawn = resample(seen, num_bins, seed=seed, every_metric=False)
        draws = {metric: drawn[metric].mean(1) for metric in COMPARED}
    return Unranked(name, found[0], scores, draws, changed, notes)


def ranked(found: Sequence[Unranked], level: float, left_out: Collection[str] = ()) -> tuple[Scored, ...]:
    """The lowest NLL first; differences from the first of ``found``, the model as it is.

    Those ``left_out`` of the advice are not the best, whatever their NLL.
    """
    before = found[0]
    best = min((of for of in found if of.name not in left_out), key=lambda of: of.scores["nll"])

    def between(a: Unranked, b: Unranked, metric: str) -> Difference:
        centre, draws = b.scores[metric] - a.scores[metric], b.draws[metric] - a.draws[metric]
        ends = interval(draws, centre, level) if len(draws) else (-math.inf, math.inf)
        return Difference(a.scores[metric], b.scores[metric], *ends)

    scored = [
        Scored(
            name=of.name,
            evaluation=of.evaluation,
            scores=of.scores,
            changes={metric: between(before, of, metric) for metric in COMPARED},
            behind=between(best, of, "nll"),
            argmax_changed=of.changed,
            notes=of.notes,
        )
        for of in found
    ]
    return tuple(sorted(scored, key=lambda of: of.scores["nll"]))


def recommend(methods: Sequence[Scored], simple_first: Sequence[str]) -> str:
    """The simplest method that helps for certain and is not told apart from the lowest NLL; the model as it is if none.

    ``methods`` have the lowest NLL first.
    """
    lowest, as_is = methods[0].scores["nll"], next(of.scores["nll"] for of in methods if of.name == AS_IS)
    helpful = {of.name for of in methods if -of.changes["nll"].high >= LEAST_GAIN / 2}  # and it must show
    if math.isinf(as_is) and math.isfinite(lowest):  # which has no interval, and is behind any finite one
        helpful = {of.name for of in methods if math.isfinite(of.scores["nll"]) and has_ends(of.behind)}
        helpful.add(methods[0].name)
    if not helpful:
        return AS_IS
    equal = {of.name for of in methods if of.behind.low <= 0 and math.isfinite(of.scores["nll"])}
    return next((name for name in simple_first if name in equal & helpful), methods[0].name)


def advice(methods: Sequence[Scored], recommended: str, level: float) -> str:
    """What to do, in a sentence or two; ``methods`` have the lowest NLL first."""
    by_name = {of.name: of for of in methods}
    best, advised, as_is = methods[0], by_name[recommended], by_name[AS_IS]
    gain = advised.changes["nll"]
    if len(methods) == 1:
        return "No method could be fitted to these data."
    if not math.isfinite(best.scores["nll"]):
        return "The NLL is infinite, as it is and after each method: a true class has probability 0."
    if not math.isfinite(as_is.scores["nll"]):
        size = f"{'it has the lowest' if best is advised else 'its'} NLL{',' if best is advised else ' is'}"
        text = (
            f"Use {advised.name}: {size} {nats(advised.scores['nll'])} nats. "
            "That of the model as it is is infinite: a true class has probability 0."
        )
        return text if best is advised else f"{text} {_behind(best, advised)}"
    if not all(has_ends(of.changes["nll"]) for of in (best, advised)):
        lowest = f"{best.name} has the lowest NLL, {nats(best.scores['nll'])} nats"
        less = "" if best is as_is else f", {nats(-best.changes['nll'].difference)} less than the model as it is"
        return f"Too few samples for an interval, and for advice: {lowest}{less}."
    if advised is as_is:
        if any(of.changes["nll"].high < 0 for of in methods):
            return f"Leave the model as it is: no method is sure to lower its NLL by {LEAST_GAIN:.4f} nats."
        text = "Leave the model as it is: no method lowers its NLL by more than chance may."
    else:
        text = (
            f"Use {advised.name}: it lowers the NLL by {nats(-gain.difference)} nats "
            f"({nats(-gain.high)} to {nats(-gain.low)}, {100 * level:.4g} % interval)."
        )
    return text if best is advised or advised.behind.difference < LEAST_GAIN / 2 else f"{text} {_behind(best, advised)}"


def has_ends(d: Difference) -> bool:
    """Whether it has an interval: too few samples, or an infinite NLL, give none."""
    return math.isfinite(d.low) and math.isfinite(d.high)


def nats(value: float, sign: str = "-") -> str:
    """Four decimals; of logits that are very far apart a loss has hundreds of digits before them.

    >>> nats(0.12345), nats(0.5, "+"), nats(2e297)
    ('0.1235', '+0.5000', '2.000e+297')
    """
    return f"{value:{sign}{'.4f' if not abs(value) >= LARGE else '.3e'}}"


def _behind(best: Scored, advised: Scored) -> str:
    d = advised.behind
    simpler = "" if advised.name == AS_IS else f", and {advised.name} is simpler"
    ends = f"{nats(d.low, '+')} to {nats(d.high, '+')}"
    return (
        f"{best.name} has the lowest NLL, but by {nats(d.difference)} nats ({ends}) only, "
        f"which chance can explain{simpler}."
    )
