"""Tables and sentences of the replication report, from the runs in results/."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dualfocal.metrics.registry import METRICS
from dualfocal.tables import Table
from dualfocal_lab.paper.measurements import MEASUREMENTS, MeasuredRun
from dualfocal_lab.paper.published import published
from dualfocal_lab.paper.replication import Replication, decide_claims
from dualfocal_lab.paper.replication_figures import AUTHORS_RUN, LAST_RATE, ReplicationRuns, read_log, training_curves
from dualfocal_lab.paper.replication_forest import LOSSES, group_name
from dualfocal_lab.paper.replication_plan import planned_runs, replication_plan
from dualfocal_lab.paper.verdicts import Claim, Difference, Verdict
from dualfocal_lab.paper.verify import verify
from dualfocal_lab.runs import Run, find_runs

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "lab" / "results"
LOGS = RESULTS / "published_logs" / "cifar10.csv"
LOGITS = RESULTS / "published_logits"
LOST = RESULTS / "lost" / "cifar10-resnet50-dual_focal-tf32-seed1"
TF32 = "TF32 instead of bfloat16"  # name of the control
# Rows of the table of losses: how a run is measured; name of the published table, stage and variant, if there is one.
ROWS: dict[str, tuple[str, tuple[str, str | None, str | None] | None]] = {
    "error [%]": ("error", ("error", None, None)),
    "ECE [%]": ("ece", ("ece", "before", None)),
    "ECE, T by ECE [%]": ("ece_temperature", ("ece", "after", None)),
    "ECE, T by NLL [%]": ("ece_temperature_by_nll", None),
    "NLL": ("nll", ("nll", "before", None)),
    "NLL, T by ECE": ("nll_temperature_by_ece", ("nll", "after", None)),
    "NLL, T by NLL": ("nll_temperature", None),
    "AUROC of noisy images [%]": ("shift_auroc", ("ood_auroc", "before", "cifar10c")),
}
STORED = {  # the same for metrics of result.json
    "adaptive ECE [%]": ("adaptive_ece", ("adaptive_ece", "before", None)),
    "classwise ECE [%]": ("classwise_ece", ("classwise_ece", "before", None)),
    'Brier score (the paper\'s "RBS")': ("brier", ("rbs", None, None)),
    "AURC [%]": ("aurc", None),
}


@dataclass(frozen=True)
class Report:
    """The runs in results/, and what is computed from them."""

    runs: Sequence[Run]

    @classmethod
    def read(cls) -> "Report":
        """Read the runs of the replication."""
        return cls(find_runs(RESULTS / "cifar10"))

    @cached_property
    def decided(self) -> Replication:
        """The claims."""
        return decide_claims(self.runs)

    @cached_property
    def measured(self) -> ReplicationRuns:
        """The runs by group and seed, and the controls."""
        return ReplicationRuns.of(self.runs)

    def of_loss(self, loss: str) -> list[MeasuredRun]:
        """Return the runs of a group."""
        return list(self.measured.groups.get(loss, {}).values())

    def values(self, loss: str, metric: str) -> list[float]:
        """Return a measurement of each run of a group that has it."""
        numbers = [run.measure(metric) for run in self.of_loss(loss)]
        return [number for number in numbers if number is not None]


def percent(value: float, decimals: int = 2) -> str:
    """Return a fraction in percent, without the sign."""
    return f"{100 * value:.{decimals}f}"


def mean_and_range(texts: Sequence[str], mean: str) -> str:
    """Return the mean, and the lowest and highest run.

    >>> mean_and_range(["1.10", "1.23"], "1.16"), mean_and_range(["4.35"], "4.35"), mean_and_range([], "")
    ('1.16 (1.10 to 1.23)', '4.35', '')
    """
    ordered = sorted(texts, key=float)
    return f"{mean} ({ordered[0]} to {ordered[-1]})" if len(ordered) > 1 else mean


def runs_text(number: int) -> str:
    """Return "1 run", "2 runs" and so on."""
    return f"{number} run{'s' * (number != 1)}"


# What is decided


def state(report: Report) -> str:
    """How many trainings are finished, and how many claims are decided."""
    decided = report.decided
    finished = sum(map(len, report.measured.groups.values()))
    controls = len(replication_plan()["controls"])
    open_claims = open_claims_of(report)
    verdicts = [f"{claim.id} {claim.verdict}" for claim in decided.claims if claim not in open_claims]
    decided_text = f" Verdicts: {', '.join(verdicts)}." if verdicts else ""
    pending = f" {len(open_claims)} of {len(decided.claims)} claims are pending." if open_claims else ""
    return (
        f"**{finished} of {len(planned_runs())} trainings of the plan and {len(report.measured.controls)} of "
        f"{controls} controls are finished.{pending}**{decided_text}"
    )


def open_claims_of(report: Report) -> list[Claim]:
    """Return the claims that are not decided."""
    return [claim for claim in report.decided.claims if claim.verdict in (Verdict.PENDING, Verdict.TOO_FEW)]


def claims_table(report: Report) -> str:
    """Claims, rules and verdicts."""
    rows = [
        [claim.id, claim.claim, claim.rule, f"**{claim.verdict}**", without.verdict]
        for claim, without in zip(report.decided.claims, report.decided.without_known, strict=True)
    ]
    return markdown(
        Table(["", "claim of the paper", "reproduced if", "verdict", "without known runs"], rows, left=range(5))
    )


def numbers_table(report: Report) -> str:
    """Every quantity of every claim."""
    table = report.decided.table()
    return markdown(
        Table(table.headings, [[cell.replace("_", r"\_") for cell in row] for row in table.rows], left=table.left)
    )


def differences_table(report: Report) -> str:
    """Differences between losses that have an interval, with the bootstrap."""
    rows = []
    for claim in report.decided.claims:
        for part in claim.parts:
            if not isinstance(part, Difference) or part.mean is None:
                continue
            shown = MEASUREMENTS[part.metric].shown
            intervals = [
                " to ".join(shown.text(end, sign=True) for end in ends or ())
                for ends in (part.interval, part.adjusted_interval, part.bootstrap)
            ]
            unit = " [points]" if shown.unit == "%" else ""
            label = f"{shown.label} minus {group_name(list(part.values)[-1])}{unit}".replace("_", r"\_")
            runs = " and ".join(str(len(values)) for values in part.values.values())
            rows.append([claim.id, label, runs, shown.text(part.mean, sign=True), *intervals])
    headings = [
        "claim",
        "dual focal: quantity",
        "runs",
        "difference",
        "Welch, 90 %",
        "adjusted by Holm",
        "bootstrap, 90 %",
    ]
    return markdown(Table(headings, rows, left=(0, 1)))


# Losses beside each other


def losses_table(report: Report) -> str:
    """Published numbers, and mean and range of our runs, for the three losses."""
    headings = [""]
    for loss, name in LOSSES.items():
        headings += [f"{name}, published", f"ours, {runs_text(len(report.of_loss(loss)))}"]
    rows = []
    for label, (metric, cell) in (ROWS | STORED).items():
        row = [label]
        for loss in LOSSES:
            row += [published_text(loss, cell), ours_text(report, loss, metric, stored=label in STORED)]
        rows.append(row)
        if metric == "ece":
            floors = [[percent(run.result.floor("ece")) for run in report.of_loss(loss)] for loss in LOSSES]
            rows.append(["its noise floor [%]", *(cell for texts in floors for cell in ("", _range(texts)))])
    return markdown(Table(headings, rows))


def _range(texts: Sequence[str]) -> str:
    ends = sorted(set(texts), key=float)
    return f"{ends[0]} to {ends[-1]}" if len(ends) > 1 else "".join(ends)


def published_text(loss: str, cell: tuple[str, str | None, str | None] | None) -> str:
    """Return a published number as we print ours, with its temperature."""
    if cell is None:
        return ""
    table, stage, variant = cell
    setting = replication_plan()["setting"]
    where = {"data": setting["dataset"], "model": setting["model"], "method": loss, "stage": stage, "variant": variant}
    found = published(table).find(**where)[0]
    text = found.printed if found.unit != "nats x 100" else f"{found.value:.4f}"
    return text if found.temperature is None or stage == "before" else f"{text} (T = {found.temperature:g})"


def ours_text(report: Report, loss: str, metric: str, *, stored: bool = False) -> str:
    """Return mean and range of our runs."""
    if stored:
        shown = METRICS[metric]
        values = [getattr(run.result.evaluation("test"), metric) for run in report.of_loss(loss)]
    else:
        shown, values = MEASUREMENTS[metric].shown, report.values(loss, metric)
    return mean_and_range(
        [shown.text(value) for value in values], shown.text(statistics.fmean(values)) if values else ""
    )


def headline(report: Report) -> str:
    """The table of README.md, published number / mean of our runs, and the state of the claims."""
    open_claims, number = len(open_claims_of(report)), len(report.decided.claims)
    verdicts = (
        f"{open_claims} of {number} claims wait for further seeds"
        if open_claims
        else f"All {number} claims are decided"
    )
    ratio = mean_of(report, "cross_entropy", "ece") / mean_of(report, "dual_focal", "ece")
    theirs = replication_plan()["published"]["dual_focal"]["ece"]
    sentence = (
        f"Cross-entropy agrees with the paper. Dual focal lowers the ECE by a factor of {ratio:.1f}, "
        f"but not to the published {percent(theirs)} %.\n{verdicts}: [report](lab/REPLICATION.md)."
    )
    return f"{headline_table(report)}\n\n{sentence}"


def mean_of(report: Report, loss: str, metric: str) -> float:
    """Return the mean of a measurement over the runs of a group."""
    return statistics.fmean(report.values(loss, metric))


def headline_table(report: Report) -> str:
    """Published number / mean of our runs."""
    rows = []
    for loss, name in LOSSES.items():
        runs = report.of_loss(loss)
        cells = [name, str(len(runs))]
        for metric, table, stage in (
            ("error", "error", None),
            ("ece", "ece", "before"),
            ("floor", "", None),
            ("ece_temperature", "ece", "after"),
            ("nll", "nll", "before"),
        ):
            if metric == "floor":
                cells.append(percent(statistics.fmean(run.result.floor("ece") for run in runs)))
                continue
            theirs = published(table).find(data="cifar10", model="resnet50", method=loss, stage=stage)[0].value
            pair = [theirs, mean_of(report, loss, metric)]
            cells.append(" / ".join(f"{number:.4f}" if metric == "nll" else percent(number) for number in pair))
        rows.append(cells)
    return Table(["", "runs", "error [%]", "ECE [%]", "floor", "ECE after temperature", "NLL"], rows).markdown()


# The course of training, noise, precision, cost


def epochs_table(report: Report) -> str:
    """Test ECE of the last hundred epochs: the authors' logs, and our runs that have logged it."""
    curves = {
        "dual focal, gamma 6, the authors' log": read_log(LOGS, AUTHORS_RUN),
        "FLSD-53, the authors' log (network not named)": read_log(LOGS, "flsd_seed1"),
    }
    for group, seeds in training_curves(report.measured).items():
        curves |= {f"{group_name(group)}, seed {seed}, ours": curve for seed, curve in seeds.items()}
    rows = []
    for name, curve in curves.items():
        last = curve[LAST_RATE:]
        numbers = (statistics.fmean(last), statistics.fmean(curve[-20:]), curve[-1], min(last))
        rows.append([name, *map(percent, numbers)])
    headings = [
        "test ECE [%]",
        f"mean of epochs {LAST_RATE + 1} to 350",
        "mean of the last 20",
        "last",
        "lowest of them",
    ]
    return markdown(Table(headings, rows))


def shift_table(report: Report) -> str:
    """AUROC of noisy images of every run that was scored on them."""
    runs = {
        f"{group_name(group)}, seed {seed}": run
        for group, by_seed in report.measured.groups.items()
        for seed, run in by_seed.items()
    }
    runs |= {f"control: {name}": run for name, run in report.measured.controls.items()}
    rows = []
    for name, run in runs.items():
        if (auroc := run.measure("shift_auroc")) is not None:
            rows.append([name, percent(auroc, 1)])
    for loss, name in LOSSES.items():
        rows.append([f"published: {name}", percent(replication_plan()["published"][loss]["shift_auroc"], 1)])
    return markdown(Table(["network", "AUROC [%]"], rows))


def precision_table(report: Report) -> str:
    """Validation numbers of the end of three trainings with seed 1, one of which was lost two epochs before its end."""
    lost = Run(LOST).log
    logs = {
        "TF32": report.measured.controls[TF32].run.log,
        "TF32, lost": lost,
        "bfloat16": report.measured.groups["dual_focal"][1].run.log,
    }
    rows = []
    for name, log in logs.items():
        lines = log[len(lost) - 20 : len(lost)]
        cells = []
        for key, factor, decimals in (("val_error", 100, 2), ("val_ece", 100, 2), ("val_nll", 1, 3)):
            values = [factor * line[key] for line in lines]
            cells.append(f"{statistics.fmean(values):.{decimals}f} ± {statistics.stdev(values):.{decimals}f}")
        rows.append([name, *cells])
    return markdown(Table(["seed 1", "val error [%]", "val ECE [%]", "val NLL"], rows))


def cost(report: Report) -> str:
    """Minutes of training, from result.json."""
    runs = [run for by_seed in report.measured.groups.values() for run in by_seed.values()]
    minutes = [run.result.seconds / 60 for run in [*runs, *report.measured.controls.values()]]
    devices = sorted({run.result.device for run in runs})
    return (
        f"The {len(minutes)} finished trainings took {min(minutes):.1f} to {max(minutes):.1f} minutes each, "
        f"{sum(minutes) / 60:.1f} hours in all, on one {' or '.join(devices)}."
    )


def verification(report: Report) -> str:
    """Which published numbers follow from the published logits."""
    return verify(sorted(LOGITS.glob("*.npz"))).sentence()


def missing(report: Report) -> str:
    """The commands of the missing trainings."""
    return "\n".join(["```text", *(report.decided.missing or ["none"]), "```"])


def markdown(table: Table) -> str:
    """Return a Markdown table whose cells may have vertical bars."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    return Table(table.headings, rows, left=table.left).markdown()
