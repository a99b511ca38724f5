"""What the runs of a study say: means over seeds, paired differences, and one true sentence."""

import csv
import io
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from dualfocal.metrics import compare
from dualfocal.metrics.evaluation import finite
from dualfocal.runs import Run
from dualfocal.study.plan import Study
from dualfocal.study.results import floor_of, result_of

SCHEMA = 1
LEVEL = 0.9
# Name, heading, key in the result, whether after temperature scaling, factor, decimals.
COLUMNS: tuple[tuple[str, str, str, bool, float, int], ...] = (
    ("error", "error %", "error", False, 100, 1),
    ("nll", "NLL", "nll", False, 1, 3),
    ("nll_t", "NLL, T", "nll", True, 1, 3),
    ("ece", "ECE %", "ece", False, 100, 1),
    ("ece_t", "ECE %, T", "ece", True, 100, 1),
    ("adaptive_ece", "AdaECE %", "adaptive_ece", False, 100, 1),
    ("classwise_ece", "cw ECE %", "classwise_ece", False, 100, 2),
    ("mce", "MCE %", "mce", False, 100, 1),
)
DIFFERENCES = ("error", "nll", "nll_t", "ece", "ece_t")
FLOORS = ("ece", "ece_t", "adaptive_ece", "classwise_ece", "mce")


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and how far it may be off; None: that cannot be said."""

    mean: float
    half_width: float | None

    @property
    def told(self) -> bool:
        """Whether 0 is outside."""
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Summary:
    """The table of a study."""

    study: Study
    scores: dict[str, dict[str, list[float]]]
    """Entry -> column -> a number for each seed; NaN: that run failed."""
    floors: dict[str, dict[str, float]]
    """Calibration error -> entry -> mean over seeds of what a perfectly calibrated model would show."""
    differences: dict[str, dict[str, Interval]]
    """Entry but the first -> column -> paired difference to the first."""
    behind_best: dict[str, Interval]
    """Entry -> how far its ECE is above the lowest, paired; of those with all their runs."""
    failed: dict[tuple[str, int], str]

    @property
    def complete(self) -> list[str]:
        """The entries that have all their runs: only they can be compared."""
        return [entry for entry, of in self.scores.items() if all(map(math.isfinite, of["ece"]))]

    def mean(self, entry: str, column: str) -> float:
        """Over the seeds that are there."""
        values = [value for value in self.scores[entry][column] if math.isfinite(value)]
        return statistics.mean(values) if values else math.nan

    def best(self, column: str) -> set[str]:
        """The entries with the lowest mean, as it is printed."""
        decimals, factor = next((d, f) for name, _, _, _, f, d in COLUMNS if name == column)
        means = {entry: round(factor * self.mean(entry, column), decimals) for entry in self.complete}
        if len(means) < 2:
            return set()
        return {entry for entry, mean in means.items() if mean == min(means.values())}

    def headings(self) -> list[str]:
        """Of the table."""
        columns = [heading for _, heading, *_ in COLUMNS]
        return ["", *columns[:5], "T", *columns[5:]]

    def floor_row(self) -> list[str]:
        """What perfectly calibrated models would show, below the headings."""
        cells = []
        for name, _, _, _, factor, decimals in COLUMNS:
            floor = self.floors.get(name)
            cells.append("" if floor is None else f"{factor * statistics.mean(floor.values()):.{decimals}f}")
        return ["floor", *cells[:5], "", *cells[5:]]

    def rows(self) -> list[list[str]]:
        """Of the table, as text."""
        found = []
        for entry in self.study.entries:
            cells = {name: self._cell(entry, name, factor, decimals) for name, _, _, _, factor, decimals in COLUMNS}
            numbers = list(cells.values())
            temperature = self._cell(entry, "temperature", 1, 2)
            done = sum(map(math.isfinite, self.scores[entry]["ece"]))
            name = entry if done == len(self.study.seeds) else f"{entry} ({done} of {len(self.study.seeds)})"
            found.append([name, *numbers[:5], temperature, *numbers[5:]])
        return found

    def difference_rows(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of the second table."""
        headings = [f"less {self.study.entries[0]}"]
        headings += [heading for name, heading, *_ in COLUMNS if name in DIFFERENCES]
        rows = []
        for entry, of in self.differences.items():
            cells = []
            for name, _, _, _, factor, decimals in COLUMNS:
                if name in DIFFERENCES:
                    cells.append(_signed(of[name], factor, decimals))
            rows.append([entry, *cells])
        return headings, rows

    def reading(self) -> str:
        """One sentence that the numbers decide; the first entry is the yardstick."""
        first = self.study.entries[0]
        if len(self.complete) < 2 or first not in self.complete:
            return "There is nothing to compare: that takes two entries with all their runs, the first being one."
        best, *others = sorted(self.complete, key=lambda entry: self.mean(entry, "ece"))
        own = f"{100 * self.mean(best, 'ece'):.1f} % with a floor of {100 * self.floors['ece'][best]:.1f}"
        said = f"As trained, {best} has the lowest ECE, {own}"
        alike = [entry for entry in others if not self.behind_best[entry].told]
        unknown = all(self.behind_best[entry].half_width is None for entry in others)
        if alike and not unknown:
            said += f", not told apart from {', '.join(alike)}"
        against = best if best != first else others[0]
        if best != first and first not in alike:
            said += f", {self._says(best, 'ece', 100, 1, ' points')} {first}"
        return (
            f"{said}; after temperature scaling the NLL of {against} is {self._says(against, 'nll_t', 1, 3, ' nats')} "
            f"{first}'s, its ECE {self._says(against, 'ece_t', 100, 1, ' points')} {first}'s; "
            f"its error is {self._says(against, 'error', 100, 1, ' points')} {first}'s."
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: fractions."""
        names = [*(name for name, *_ in COLUMNS), "temperature"]
        return {
            "schema": SCHEMA,
            "title": self.study.title,
            "recipe": self.study.recipe,
            "seeds": self.study.seeds,
            "level": LEVEL,
            "floors": self.floors,
            "entries": {
                entry: {
                    "recipe": next(iter(self.study.recipes[entry].values())).to_dict(),
                    "mean": {name: finite(self.mean(entry, name)) for name in names},
                    "by_seed": {name: [finite(value) for value in self.scores[entry][name]] for name in names},
                    "less_first": {
                        name: {"mean": finite(d.mean), "half_width": d.half_width}
                        for name, d in self.differences.get(entry, {}).items()
                    },
                }
                for entry in self.study.entries
            },
            "failed": {f"{entry}, seed {seed}": problem for (entry, seed), problem in self.failed.items()},
            "reading": self.reading(),
        }

    def to_markdown(self) -> str:
        """Both tables, the best in bold, and the reading."""
        names = [None, *(name for name, *_ in COLUMNS[:5]), None, *(name for name, *_ in COLUMNS[5:])]
        best = {name: self.best(name) for name in names if name}
        body = [
            [f"**{cell}**" if name and row[0] in best[name] else cell for name, cell in zip(names, row, strict=True)]
            for row in self.rows()
        ]
        table = _markdown(self.headings(), [self.floor_row(), *body])
        parts = [f"# {self.study.title}", f"Recipe: {self.study.recipe}.", table, self.explanation()]
        if self.differences:
            parts += [_markdown(*self.difference_rows())]
        return "\n\n".join([*parts, self.reading()]) + "\n"

    def to_csv(self) -> str:
        """A line for each run."""
        names = [*(name for name, *_ in COLUMNS), "temperature"]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["entry", "seed", *names])
        for entry in self.study.entries:
            for place, seed in enumerate(self.study.seeds):
                writer.writerow([entry, seed, *(self.scores[entry][name][place] for name in names)])
        return out.getvalue()

    def explanation(self) -> str:
        """What the numbers are."""
        means = f"Means over {len(self.study.seeds)} seeds" if len(self.study.seeds) > 1 else "One seed"
        return (
            f"{means}, test part. T: after temperature scaling, fitted to the validation part by NLL. "
            "The floor is what perfectly calibrated models of this size would show by chance."
        )

    def _cell(self, entry: str, column: str, factor: float, decimals: int) -> str:
        mean = self.mean(entry, column)
        return "failed" if math.isnan(mean) else f"{factor * mean:.{decimals}f}"

    def _says(self, entry: str, column: str, factor: float, decimals: int, unit: str) -> str:
        d = self.differences[entry][column]
        if d.half_width is None:
            return f"{factor * d.mean:+.{decimals}f}{unit} (noise unknown) from"
        if factor * abs(d.mean) < 0.5 * 10**-decimals:
            decimals += 2  # a difference that is told is not 0
        size = f"{factor * abs(d.mean):.{decimals}f} ± {factor * d.half_width:.{decimals}f}{unit}"
        if not d.told:
            return f"not told apart ({factor * d.mean:+.{decimals}f} ± {factor * d.half_width:.{decimals}f}{unit}) from"
        return f"{size} {'below' if d.mean < 0 else 'above'}"


def summarize(study: Study, out: Path, failed: dict[tuple[str, int], str] | None = None) -> Summary:
    """Read the runs of a study."""
    folders = study.folders(out)
    scores: dict[str, dict[str, list[float]]] = {}
    floors: dict[str, dict[str, float]] = {}
    for entry in study.entries:
        of: dict[str, list[float]] = {name: [] for name in (*(name for name, *_ in COLUMNS), "temperature")}
        scores[entry] = of
        for seed in study.seeds:
            result = result_of(folders[entry, seed])
            scaled = None if result is None else result["calibrated"]["temperature"]
            for name, _, key, after, _, _ in COLUMNS:
                part = None if result is None else (scaled if after else result)["test"]  # type: ignore[index]
                of[name].append(math.nan if part is None or part[key] is None else part[key])
            of["temperature"].append(math.nan if scaled is None else scaled["temperature"])
        known = [result_of(folders[entry, seed]) for seed in study.seeds]
        for name in FLOORS:
            values = [floor_of(result, name) for result in known if result is not None]
            if values:
                floors.setdefault(name, {})[entry] = statistics.mean(values)
    differences = {}
    for entry in study.entries[1:]:
        sampling = _sampling(study, folders, study.entries[0], entry)
        differences[entry] = {
            name: _difference(scores[study.entries[0]][name], scores[entry][name], sampling.get(name))
            for name in DIFFERENCES
        }
    summary = Summary(study, scores, floors, differences, {}, failed or {})
    if len(summary.complete) > 1:
        best = min(summary.complete, key=lambda entry: summary.mean(entry, "ece"))
        for entry in summary.complete:
            if entry != best:
                noise = _sampling(study, folders, best, entry).get("ece")
                summary.behind_best[entry] = _difference(scores[best]["ece"], scores[entry]["ece"], noise)
    return summary


def _difference(first: list[float], other: list[float], sampling: float | None) -> Interval:
    """Paired over seeds, by Student's t; in quadrature with what the test samples leave open, where seeds share them.

    With one seed there is only the latter.
    """
    pairs = [b - a for a, b in zip(first, other, strict=True) if math.isfinite(b - a)]
    if not pairs:
        return Interval(math.nan, None)
    mean = statistics.mean(pairs)
    if len(pairs) == 1:
        return Interval(mean, sampling)
    quantile = float(student.ppf((1 + LEVEL) / 2, len(pairs) - 1))
    over_seeds = quantile * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Interval(mean, math.hypot(over_seeds, sampling or 0.0))


def _sampling(study: Study, folders: dict[tuple[str, int], Path], first: str, entry: str) -> dict[str, float]:
    """Half of the interval that the test samples leave open, for a comparison of one seed; where seeds share them."""
    both = [seed for seed in study.seeds if all(Run(folders[of, seed]).result for of in (first, entry))]
    if not both:
        return {}
    targets = [Run(folders[entry, seed]).predictions()[1] for seed in both]
    if any(not torch.equal(target, targets[0]) for target in targets):
        return {}  # other samples for each seed: what they leave open is in the spread over seeds
    a, b = (Run(folders[of, both[0]]).predictions()[0] for of in (first, entry))
    scaled = []
    for logits, of in ((a, first), (b, entry)):
        result = result_of(folders[of, both[0]])
        assert result is not None
        scaled.append(logits / result["calibrated"]["temperature"]["temperature"])
    found = {}
    for suffix, (one, other) in (("", (a, b)), ("_t", scaled)):
        differences = compare(one, other, targets[0], level=LEVEL).differences
        for name in ("error", "nll", "ece"):
            found[name + suffix] = (differences[name].high - differences[name].low) / 2
    return found


def _signed(d: Interval, factor: float, decimals: int) -> str:
    if math.isnan(d.mean):
        return "failed"
    spread = "" if d.half_width is None else f" ± {factor * d.half_width:.{decimals}f}"
    return f"{factor * d.mean:+.{decimals}f}{spread}"


def _markdown(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
