"""Verdicts on the claims of the replication: what is decided about each quantity of a claim, and about the claim."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dualfocal_lab.paper.intervals import Interval
from dualfocal_lab.paper.measurements import MEASUREMENTS

LEAST_RUNS = 2  # an interval needs two seeds


class Verdict(StrEnum):
    """What the runs say about a claim, or about one quantity of it."""

    REPRODUCED = "reproduced"
    PARTLY = "partly reproduced"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTED = "contradicted"  # the interval lies entirely on the other side of the bound
    NOT_SHOWN = "not shown"  # the interval includes the bound
    INSIDE = "inside"
    OUTSIDE = "outside"
    UNDECIDED = "cannot be decided"
    PENDING = "pending"
    TOO_FEW = "too few runs"  # fewer than two seeds of a loss are left without the known runs
    REPORTED = "reported"  # not judged


@dataclass(frozen=True, kw_only=True)
class Part:
    """A quantity of a claim, with our runs and the verdict on it.

    Attributes:
        kind: ``"one more run"``, ``"mean"``, ``"temperature"`` or ``"difference"``.
        role: ``"claim"``, ``"addition"`` (ours, with a verdict of its own) or ``"reported"``.
        values: A number for each seed, by group of runs.
        wanted: The seeds of the plan, by group.
        mean: Mean over the seeds, or difference of the means.
        interval: Prediction interval, or interval of the mean or difference; of temperatures, the range of the runs.
    """

    kind: str
    metric: str
    role: str = "claim"
    published: float | None = None
    values: Mapping[str, Mapping[int, float]]
    wanted: Mapping[str, tuple[int, ...]]
    mean: float | None = None
    interval: Interval | None = None
    level: float | None = None
    verdict: Verdict

    @property
    def label(self) -> str:
        """The quantity in words."""
        endings = {"difference": f" minus {list(self.values)[-1]}", "mean": ", mean of repetitions"}
        return MEASUREMENTS[self.metric].shown.label + endings.get(self.kind, "")

    @property
    def judged_interval(self) -> Interval | None:
        """The interval that the verdict is read from."""
        return self.interval

    @property
    def reason(self) -> str:
        """The quantity and its verdict."""
        return f"{self.label}: {self.verdict}"

    def shortages(self) -> list[str]:
        """The groups that lack runs, in words."""
        finished = {group: len(self.values[group]) for group in self.wanted}
        return [
            f"{group} has {finished[group]} of {len(seeds)} runs"
            for group, seeds in self.wanted.items()
            if finished[group] < max(len(seeds), LEAST_RUNS)
        ]

    def cells(self) -> list[str]:
        """Quantity, published, ours, interval and number of runs, as text."""
        shown, sign = MEASUREMENTS[self.metric].shown, self.kind == "difference"
        numbers = [shown.text(number, sign=sign) for number in (self.published, self.mean)]
        interval = " to ".join(shown.text(end, sign=sign) for end in self.judged_interval or ())
        runs = ", ".join(f"{len(self.values[group])}/{len(seeds)}" for group, seeds in self.wanted.items())
        return [self.label + (" [%]" if shown.unit == "%" else ""), *numbers, interval, runs]


@dataclass(frozen=True, kw_only=True)
class Difference(Part):
    """A difference of means, dual focal minus another loss; ``interval`` is Welch's, without adjustment.

    Attributes:
        direction: 1 if the claim is "above the bound", -1 if it is "below".
        p_value: One-sided, of Welch's test against the bound.
        adjusted_p_value: By Holm over the family (None: not a member, or too few runs).
        adjusted_interval: Welch's interval at ``adjusted_level``, that of its step of Holm's procedure.
        bootstrap: Percentile interval over seeds and test samples.
    """

    direction: int
    bound: float
    p_value: float | None = None
    adjusted_p_value: float | None = None
    adjusted_level: float | None = None
    adjusted_interval: Interval | None = None
    bootstrap: Interval | None = None

    @property
    def judged_interval(self) -> Interval | None:
        """The adjusted interval; outside the Holm family, the plain one."""
        return self.adjusted_interval or self.interval

    @property
    def reason(self) -> str:
        """The quantity, its verdict and the adjusted p-value."""
        adjusted = self.adjusted_p_value
        return f"{self.label}: {self.verdict}" + ("" if adjusted is None else f", adjusted p = {adjusted:.2g}")


@dataclass(frozen=True)
class Claim:
    """A claim of the plan, decided."""

    id: str
    claim: str
    rule: str
    verdict: Verdict
    parts: tuple[Part, ...]

    def sentence(self) -> str:
        """The verdict, its reasons, and the claim."""
        judged = [part for part in self.parts if part.role != "reported"]
        reasons = "; ".join(part.reason for part in judged)
        if self.verdict in (Verdict.PENDING, Verdict.TOO_FEW):
            reasons = ", ".join(dict.fromkeys(shortage for part in judged for shortage in part.shortages()))
        return f"{self.id}, {self.verdict} ({reasons or 'the Holm family lacks runs'}): {self.claim}"


def shortage(values: Mapping[str, Mapping[int, float]], wanted: Mapping[str, tuple[int, ...]]) -> Verdict | None:
    """Why nothing can be decided yet: too few runs are wanted, or some are missing."""
    if any(len(seeds) < LEAST_RUNS for seeds in wanted.values()):
        return Verdict.TOO_FEW
    return Verdict.PENDING if any(len(values[group]) < len(seeds) for group, seeds in wanted.items()) else None


def position_verdict(interval: Interval | None, published: float, others: Iterable[float] = ()) -> Verdict:
    """Whether an interval, ends included, holds the published value and none of the other losses (None: pending).

    >>> str(position_verdict((1.0, 2.0), 1.5)), str(position_verdict((1.0, 2.0), 1.5, others=[2.0]))
    ('inside', 'cannot be decided')
    """
    if interval is None:
        return Verdict.PENDING
    low, high = interval
    if not low <= published <= high:
        return Verdict.OUTSIDE
    return Verdict.UNDECIDED if any(low <= other <= high for other in others) else Verdict.INSIDE


def direction_verdict(interval: Interval | None, bound: float, direction: int) -> Verdict:
    """Whether the interval lies entirely above the bound (direction 1) or below it (direction -1) (None: pending).

    >>> [str(direction_verdict(interval, 0.0, -1)) for interval in ((-2, -1), (-2, 0), (1, 2))]
    ['reproduced', 'not shown', 'contradicted']
    """
    if interval is None:
        return Verdict.PENDING
    nearest, farthest = sorted(direction * (end - bound) for end in interval)
    if nearest > 0:
        return Verdict.REPRODUCED
    return Verdict.CONTRADICTED if farthest < 0 else Verdict.NOT_SHOWN


def claim_verdict(parts: Sequence[Part]) -> Verdict:
    """The verdict on a claim from those on its quantities; additions and reported quantities do not count."""
    verdicts = [part.verdict for part in parts if part.role == "claim"]
    for missing in (Verdict.TOO_FEW, Verdict.PENDING):
        if missing in verdicts:
            return missing
    if parts[0].kind == "one more run":
        means = [part.verdict for part in parts if part.kind == "mean"]
        return _one_more_run_verdict([part.verdict for part in parts if part.kind != "mean"], means)
    if len(set(verdicts)) == 1:
        return verdicts[0]
    is_partly = parts[0].kind == "difference" and Verdict.REPRODUCED in verdicts
    return Verdict.PARTLY if is_partly else Verdict.NOT_REPRODUCED


def _one_more_run_verdict(metrics: Sequence[Verdict], means: Sequence[Verdict]) -> Verdict:
    """All inside: reproduced; two of three: partly; a published mean must agree, too.

    Quantities that cannot be decided count as outside, then as inside: if that makes a difference, nor can the claim.
    """
    if Verdict.OUTSIDE in means:
        return Verdict.NOT_REPRODUCED
    least = metrics.count(Verdict.INSIDE)
    most = least + metrics.count(Verdict.UNDECIDED)
    partly = {2: Verdict.PARTLY} if len(metrics) == 3 else {}
    ranks = {len(metrics): Verdict.REPRODUCED} | partly
    worst, best = (ranks.get(inside, Verdict.NOT_REPRODUCED) for inside in (least, most))
    return best if worst == best else Verdict.UNDECIDED
