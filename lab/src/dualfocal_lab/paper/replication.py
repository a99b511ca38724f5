"""Decide the claims of a replication, which were fixed in advance in ``replication_PLAN.json``, from finished runs.

print(decide_claims(find_runs(results_folder("cifar10"))).table().text())

One more run: a published value is inside or outside the prediction interval of our runs; an interval that also holds
the published value of another loss cannot decide. Differences: Welch's interval over seeds, at the level of its step of
Holm's procedure. The family has all judged differences of the claims that the plan names. A member that lacks runs
counts with a p-value of 1, so that later runs cannot undo a verdict.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any, NamedTuple

from dualfocal.metrics import holm
from dualfocal.tables import Table
from dualfocal_lab.paper.intervals import Estimate, holm_levels, prediction_interval
from dualfocal_lab.paper.measurements import MEASUREMENTS
from dualfocal_lab.paper.replication_plan import LOSS, ControlRun, Sample, replication_plan, sort_runs
from dualfocal_lab.paper.verdicts import (
    LEAST_RUNS,
    Claim,
    Difference,
    Part,
    Verdict,
    claim_verdict,
    direction_verdict,
    position_verdict,
    shortage,
)
from dualfocal_lab.runs import Run

SCHEMA = 1
DRAWS = 1000  # of the bootstrap
HEADINGS = ("claim", "quantity", "published", "ours", "interval", "runs", "verdict", "without known runs")
ROLES = {"metric": "claim", "also": "addition", "reported": "reported"}  # key of a claim: role of its quantity


@dataclass(frozen=True)
class Replication:
    """All claims, decided with all runs, and without those known in advance.

    Attributes:
        missing: Commands of the trainings and controls that have no finished run.
    """

    plan: str
    claims: tuple[Claim, ...]
    without_known: tuple[Claim, ...]
    controls: tuple[ControlRun, ...]
    unfinished: tuple[str, ...]
    not_in_plan: tuple[str, ...]
    missing: tuple[str, ...]

    def table(self) -> Table:
        """A row for each claim, and below it one for each of its quantities."""
        rows = []
        for claim, other in zip(self.claims, self.without_known, strict=True):
            group = next(iter(claim.parts[0].values))
            rows.append([claim.id, group, "", "", "", "", claim.verdict, other.verdict])
            for part, without in zip(claim.parts, other.parts, strict=True):
                rows.append(["", *part.cells(), part.verdict, without.verdict])
        width = len(HEADINGS) if replication_plan(self.plan)["known_in_advance"] else len(HEADINGS) - 1
        left = tuple(column for column in (0, 1, 6, 7) if column < width)
        return Table(HEADINGS[:width], [row[:width] for row in rows], "Claims of the replication", left=left)

    def controls_table(self) -> Table:
        """Numbers of the controls."""
        names = ("error", "ece", "nll", "ece_temperature", "temperature_ece", "temperature")
        rows = [
            [control.name, *(MEASUREMENTS[name].shown.text(control.numbers[name]) for name in names)]
            for control in self.controls
        ]
        headings = ["control", *(MEASUREMENTS[name].shown.heading for name in names)]
        return Table(headings, rows, "Controls, described and not judged")

    def explanation(self) -> str:
        """How to read the table."""
        plan = replication_plan(self.plan)
        level, known, family = 100 * plan["difference_level"], plan["known_in_advance"], plan["holm_family"]
        return (
            "T: after temperature scaling, by the temperature with the least validation ECE (as published) or NLL. "
            "Minus another loss: the difference of the means over seeds, dual focal minus the other, and its Welch "
            f"interval ({level:.0f} %; for {', '.join(family[:-1])} and {family[-1]} at the level of Holm's "
            "adjustment). Other intervals say where one more run would fall, or with which published mean ours agrees; "
            "of temperatures, they are the range of the runs. p_j is the largest probability strictly below that of "
            "the true class, 0 if there is none. The JSON output has the intervals without adjustment, the p-values, "
            "and the bootstrap over seeds and test samples." + (f" Known runs: {', '.join(known)}." if known else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain content for JSON; numbers are fractions."""
        content = asdict(self)
        for claim, other in zip(content["claims"], content.pop("without_known"), strict=True):
            claim["without_known"] = {"verdict": other["verdict"], "parts": other["parts"]}
        return {"schema": SCHEMA, "rules": replication_plan(self.plan)["rules"], **content}


def decide_claims(runs: Iterable[Run], plan: str = "cifar10") -> Replication:
    """Decide the claims of a plan from runs. Those that are not finished, or not of the plan, are listed, not counted.

    Raises:
        ValueError: two runs have the same loss, gamma and seed, or runs differ in the labels of their test samples.
        RunError: a run folder is damaged.
    """
    places = sort_runs(runs, plan)
    all_runs = Sample.of(places, draws=DRAWS)
    scored = Sample.of(places, draws=DRAWS, known=False)
    without_known = Sample.of(places, draws=0, known=False)  # the bootstrap is reported once
    return Replication(
        plan,
        _decide_all(all_runs, scored),
        _decide_all(without_known, without_known),
        tuple(places.controls),
        tuple(places.unfinished),
        tuple(places.not_in_plan),
        places.missing(),
    )


def _decide_all(sample: Sample, scored: Sample) -> tuple[Claim, ...]:
    """All claims; ``scored`` are the runs whose noisy images were scored, which leaves out those known in advance."""
    adjustments = _adjust(sample)
    decided = []
    for claim in replication_plan(sample.places.plan)["claims"]:
        runs = scored if claim.get("excludes_known") else sample
        if claim["kind"] == "one_more_run":
            parts = _one_more_run(claim, runs)
        elif claim["kind"] == "temperature":
            parts = _temperatures(claim, runs)
        else:
            parts = [_difference(one, runs, adjustments.get(one)) for one in comparisons(claim)]
        decided.append(Claim(claim["id"], claim["claim"], claim["reproduced_if"], claim_verdict(parts), tuple(parts)))
    return tuple(decided)


# Claims about one loss


def _one_more_run(claim: Mapping[str, Any], sample: Sample) -> list[Part]:
    """The prediction interval of each metric, and the difference to the published mean where there is one."""
    parts = [_predicted(claim, metric, sample) for metric in claim["metrics"]]
    return [*parts, _published_mean(claim, sample)] if "mean" in claim else parts


def _predicted(claim: Mapping[str, Any], metric: str, sample: Sample) -> Part:
    group, published = sample.places.group_of(claim), replication_plan(sample.places.plan)["published"]
    theirs = claim["value"] if "value" in claim else published[claim["loss"]][metric]
    others = [row[metric] for loss, row in published.items() if loss != claim["loss"] and metric in row]
    data = _data(sample, metric, group)
    ours = list(data["values"][group].values())
    interval = prediction_interval(ours, claim["level"]) if len(ours) >= LEAST_RUNS else None
    return Part(
        kind="one more run",
        metric=metric,
        published=theirs,
        mean=mean(ours) if ours else None,
        interval=interval,
        level=claim["level"],
        verdict=shortage(**data) or position_verdict(interval, theirs, others),
        **data,
    )


def _published_mean(claim: Mapping[str, Any], sample: Sample) -> Part:
    """Whether the means may be equal. The interval of their difference is moved to our mean.

    The paper does not say of how many runs its mean is, so that its standard error is taken as known.
    """
    theirs, group = claim["mean"], sample.places.group_of(claim)
    level = replication_plan(sample.places.plan)["difference_level"]
    data = _data(sample, theirs["metric"], group)
    ours = list(data["values"][group].values())
    interval = None
    if len(ours) >= LEAST_RUNS:
        interval = (Estimate.of(ours) - Estimate(0.0, theirs["standard_error"] ** 2)).interval(level)
    return Part(
        kind="mean",
        metric=theirs["metric"],
        published=theirs["value"],
        mean=mean(ours) if ours else None,
        interval=interval,
        level=level,
        verdict=shortage(**data) or position_verdict(interval, theirs["value"]),
        **data,
    )


def _temperatures(claim: Mapping[str, Any], sample: Sample) -> list[Part]:
    """By the grid the published temperature in enough runs; by NLL near it in every run."""
    seeds = replication_plan(sample.places.plan)["setting"]["seeds"][LOSS]
    theirs, share = claim["value"], claim["at_least"] / len(seeds)
    parts = []
    for metric, tolerance, least in (("temperature_ece", 1e-9, share), ("temperature", claim["tolerance"], 1.0)):
        data = _data(sample, metric, LOSS)
        ours = list(data["values"][LOSS].values())
        is_near = sum(abs(temperature - theirs) < tolerance for temperature in ours) >= least * len(ours)
        part = Part(
            kind="temperature",
            metric=metric,
            published=theirs,
            mean=mean(ours) if ours else None,
            interval=(min(ours), max(ours)) if ours else None,
            verdict=shortage(**data) or (Verdict.REPRODUCED if is_near else Verdict.NOT_REPRODUCED),
            **data,
        )
        parts.append(part)
    return parts


def _data(sample: Sample, metric: str, *groups: str) -> dict[str, Any]:
    """The fields of a quantity that say what was measured, and what was wanted."""
    return {
        "values": {group: sample.values(group, metric) for group in groups},
        "wanted": {group: sample.wanted[group] for group in groups},
    }


# Differences between losses


class Comparison(NamedTuple):
    """A difference that a claim is about: dual focal minus another loss, above (1) or below (-1) a bound."""

    metric: str
    against: str
    direction: int
    bound: float = 0.0
    role: str = "claim"


class Adjustment(NamedTuple):
    """Holm's adjustment of a member of the family; ``complete``: no member lacks runs."""

    p_value: float
    level: float
    complete: bool


def comparisons(claim: Mapping[str, Any]) -> list[Comparison]:
    """The differences that a claim is about."""
    against, signs = claim.get("against", ()), claim.get("signs", {})
    if claim["kind"] == "directions":
        directions = [(metric, -1) for metric in claim["below"]] + [(metric, 1) for metric in claim["above"]]
        return [Comparison(metric, loss, signs.get(loss, sign)) for metric, sign in directions for loss in against]
    quantities = [(claim[key], role) for key, role in ROLES.items() if key in claim]
    bound = claim.get("margin", 0.0)
    return [Comparison(metric, loss, -1, bound, role) for metric, role in quantities for loss in against]


def holm_family(plan: str = "cifar10") -> list[Comparison]:
    """The differences that are adjusted together: all that are judged of the claims that the plan names."""
    content = replication_plan(plan)
    claims = [claim for claim in content["claims"] if claim["id"] in content["holm_family"]]
    return [one for claim in claims for one in comparisons(claim) if one.role != "reported"]


def _adjust(sample: Sample) -> dict[Comparison, Adjustment]:
    family, p_values, complete = holm_family(sample.places.plan), [], True
    for one in family:
        data = _data(sample, one.metric, LOSS, one.against)
        estimate = None if shortage(**data) else _estimate(data["values"].values())
        p_values.append(1.0 if estimate is None else estimate.p_value(one.bound, one.direction))
        complete = complete and estimate is not None
    levels = holm_levels(p_values, replication_plan(sample.places.plan)["difference_level"])
    adjusted = zip(holm(p_values), levels, strict=True)
    return {one: Adjustment(p, level, complete) for one, (p, level) in zip(family, adjusted, strict=True)}


def _estimate(values: Iterable[Mapping[int, float]]) -> Estimate | None:
    """The difference of the means of two groups; None: a group has fewer than two runs."""
    first, second = (list(by_seed.values()) for by_seed in values)
    if min(len(first), len(second)) < LEAST_RUNS:
        return None
    return Estimate.of(first) - Estimate.of(second)


def _difference(one: Comparison, sample: Sample, adjustment: Adjustment | None) -> Difference:
    plan = replication_plan(sample.places.plan)
    level, published = plan["difference_level"], plan["published"]
    theirs = [published[loss].get(one.metric) for loss in (LOSS, one.against)]
    data = _data(sample, one.metric, LOSS, one.against)
    estimate = _estimate(data["values"].values())
    adjustment = None if shortage(**data) else adjustment  # of all its runs only
    part = Difference(
        kind="difference",
        metric=one.metric,
        role=one.role,
        published=None if None in theirs else theirs[0] - theirs[1],
        level=level,
        direction=one.direction,
        bound=one.bound,
        verdict=Verdict.PENDING,
        **data,
    )
    if estimate is not None:
        part = replace(
            part,
            mean=estimate.mean,
            interval=estimate.interval(level),
            p_value=estimate.p_value(one.bound, one.direction),
            adjusted_p_value=adjustment and adjustment.p_value,
            adjusted_level=adjustment and adjustment.level,
            adjusted_interval=adjustment and estimate.interval(adjustment.level),
            bootstrap=sample.bootstrap((LOSS, one.against), one.metric, level),
        )
    return replace(part, verdict=_difference_verdict(part, adjustment))


def _difference_verdict(part: Difference, adjustment: Adjustment | None) -> Verdict:
    if part.role == "reported":
        return Verdict.REPORTED
    verdict = shortage(part.values, part.wanted) or direction_verdict(part.judged_interval, part.bound, part.direction)
    is_open = adjustment is not None and not adjustment.complete  # the others may make the adjustment milder
    return Verdict.PENDING if verdict is Verdict.NOT_SHOWN and is_open else verdict
