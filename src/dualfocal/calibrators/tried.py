"""Calibrators that were tried on data that their fits had not seen: a table, notes, and which one to use."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dualfocal._table import Table
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._notes import absent_classes
from dualfocal.calibrators.chain import Chain
from dualfocal.calibrators.ranking import AS_IS, Scored, Unranked, advice, has_ends, nats, ranked, recommend
from dualfocal.calibrators.registry import CALIBRATORS
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.evaluation import finite


@dataclass(frozen=True, kw_only=True)
class Tried(ABC):
    """Calibrators and the model as it is, by NLL; ``print`` it, or see :meth:`to_dict`."""

    methods: tuple[Scored, ...]  # the lowest NLL first; the model as it is is one of them
    refused: dict[str, str]  # method to reason
    recommended: str  # the simplest that helps for certain and is not told apart from the lowest NLL
    absent: tuple[int, ...]  # classes that no label names
    left_out: tuple[str, ...]  # methods that are not to be recommended: they would rule these classes out
    level: float
    seed: int

    def __getitem__(self, name: str) -> Scored:
        return {scored.name: scored for scored in self.methods}[name]

    def verdict(self) -> str:
        """What to do, in a few sentences."""
        if not self.left_out:
            return advice(self.methods, self.recommended, self.level)
        allowed = [of for of in self.methods if of.name not in self.left_out]
        text = advice(allowed, self.recommended, self.level) if len(allowed) > 1 else "Leave the model as it is."
        classes = f"Class {self.absent[0]} has" if len(self.absent) == 1 else f"{len(self.absent)} classes have"
        them = "it" if len(self.absent) == 1 else "them"
        names = ", ".join(self.left_out)
        return f"{text} {classes} no sample here: left out of this advice is what all but rules {them} out ({names})."

    @abstractmethod
    def caveat(self) -> str:
        """What the numbers are of."""

    def notes(self) -> dict[str, list[str]]:
        """What the fits had to say, and which methods did."""
        found: dict[str, list[str]] = {}
        for of in self.methods:
            for note in of.notes:
                found.setdefault(note, []).append(of.name)
        return found

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of text; the last column is the share of samples whose predicted class is another."""
        rows = []
        for of in self.methods:
            change, floors = of.changes["nll"], of.evaluation.inference
            size = "" if of.name == AS_IS or math.isnan(change.difference) else nats(change.difference, "+")
            half = f" ± {nats((change.high - change.low) / 2)}" if has_ends(change) else ""
            rows.append(
                [
                    of.name,
                    nats(of.scores["nll"]),
                    f"{size}{half}" if size else "",
                    f"{100 * of.scores['ece']:.2f}",
                    "" if floors is None else f"{100 * floors.floors['ece'].mean:.2f}",
                    f"{100 * of.scores['error']:.2f}",
                    f"{100 * of.argmax_changed:.2f}",
                ]
            )
        return ["method", "NLL", f"change ± {100 * self.level:.4g} %", "ECE %", "floor", "error", "moved"], rows

    def to_dict(self) -> dict[str, object]:
        """Plain numbers: fractions, NLL in nats; what is not finite is None."""

        def plain(d: Difference) -> dict[str, object]:
            return {"difference": finite(d.difference), "interval": [finite(d.low), finite(d.high)]}

        return {
            "schema": 1,
            **self._how(),
            "level": self.level,
            "seed": self.seed,
            "recommended": self.recommended,
            "methods": [
                {
                    "method": of.name,
                    **{name: finite(value) for name, value in of.scores.items()},
                    "ece_floor": None
                    if of.evaluation.inference is None
                    else of.evaluation.inference.floors["ece"].mean,
                    "change": {name: plain(d) for name, d in of.changes.items()},
                    "nll_behind_best": plain(of.behind),
                    "argmax_changed": of.argmax_changed,
                    "notes": list(of.notes),
                }
                for of in self.methods
            ],
            "refused": self.refused,
            "left_out": list(self.left_out),
        }

    @abstractmethod
    def _how(self) -> dict[str, object]:
        """How they were come by, for :meth:`to_dict`."""

    def __str__(self) -> str:
        refused = [f"{name} refused: {reason}" for name, reason in self.refused.items()]
        return "\n".join([Table(*self.table()).text(), *refused, self.caveat(), self.verdict()])


class Ranking(NamedTuple):
    """What follows from the scores of all methods."""

    methods: tuple[Scored, ...]
    recommended: str
    absent: tuple[int, ...]
    left_out: tuple[str, ...]


def rank(
    found: list[Unranked], tried: Mapping[str, Calibrator], target: Tensor, num_classes: int, level: float
) -> Ranking:
    """By NLL, and which to use; ``target`` are all labels there are.

    Of a class that none of them names the scores cannot tell what a method does to it, and ruling it out pays.
    """
    absent = tuple(absent_classes(target, num_classes))
    by_class = {name for name, calibrator in tried.items() if _learns_by_class(calibrator)} if absent else set()
    methods = ranked(found, level, by_class)
    allowed = [of for of in methods if of.name not in by_class]
    simple_first = [*(name for name in CALIBRATORS if name in tried), *tried]
    left_out = tuple(of.name for of in methods if of.name in by_class)
    return Ranking(methods, recommend(allowed, simple_first), absent, left_out)


def _learns_by_class(calibrator: Calibrator) -> bool:
    return any(map(_learns_by_class, calibrator)) if isinstance(calibrator, Chain) else calibrator.by_class is not None
