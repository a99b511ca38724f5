"""Run a table of the paper again: its trainings, their runs, and our numbers beside the published ones.

planned = plan("table1", only={"dataset": ["cifar10"], "method": ["dual_focal"]}, seeds=[1, 2, 3])
print(planned.as_table().text())
print(planned.run().as_table().text())
"""

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualfocal import _table
from dualfocal._checks import check_known
from dualfocal._files import atomic_path
from dualfocal.data.paths import Root
from dualfocal.paper.ood import OODScores
from dualfocal.paper.published import Table, published
from dualfocal.paper.rows import HEADINGS, LEVEL, Row, rows_of
from dualfocal.paper.trainings import Training, trainings
from dualfocal.runs import Run
from dualfocal.study import Study, run_study

FIELDS = {"dataset": "data", "model": "model", "method": "method", "variant": "variant"}  # attributes of a Training


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper with our numbers beside the published ones."""

    table: Table
    title: str
    rows: list[Row]
    notes: list[str]  # of the runs, each once
    failed: list[str]  # folders of runs that failed, and why

    def explanation(self) -> str:
        """The meaning of the columns, and the notes of the published table."""
        return (
            "Published and ours as the paper prints them, the temperature in brackets; ours are means over the seeds. "
            "Floor: what a perfectly calibrated model with our confidences would show by chance. One more run, with "
            f"two seeds or more: where it would fall, {100 * LEVEL:.0f} % of the time; agrees: whether the published "
            f"run lies there. {' '.join(self.table.notes)}"
        )

    def as_table(self) -> _table.Table:
        """The rows as text, without empty columns."""
        rows = [row.cells() for row in self.rows]
        shown = [i for i in range(len(HEADINGS)) if i < 4 or any(row[i] for row in rows)]
        return _table.Table([HEADINGS[i] for i in shown], [[row[i] for i in shown] for row in rows], left=(0, 1))

    def markdown(self) -> str:
        """A page with the rows, their explanation and the notes."""
        headings, *rows = (f"| {' | '.join(cells)} |" for cells in (HEADINGS, *(row.cells() for row in self.rows)))
        notes = [f"Note: {note}." for note in self.notes]
        lines = [f"# {self.title}", "", headings, "|---|---|---:|---:|---:|---:|---:|---|", *rows, ""]
        return "\n".join([*lines, self.explanation(), *notes]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers are fractions."""
        return {
            "schema": 1,
            "table": self.table.key,
            "title": self.title,
            "rows": [row.to_dict() for row in self.rows],
            "notes": self.notes,
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Plan:
    """The trainings of a table and where their runs go; :func:`plan` makes one. Dicts have the names of the runs."""

    table: Table
    study: Study  # the recipes of the chosen trainings for each seed
    trainings: dict[str, Training]  # those that were chosen
    every: dict[str, Training]  # all that the table has, and the extra ones
    finished: Mapping[str, int]  # how many seeds
    out: Path
    suffix: str  # of names: a shorter schedule, or a changed recipe, goes beside the paper's

    def as_table(self) -> _table.Table:
        """The trainings as text, with their hours on an H200."""
        rows = [
            [
                training.label,
                str(training.recipe.epochs),
                ", ".join(f"{key} {value}" for key, value in training.recipe.loss_options.items()),
                training.special,
                f"{self.finished[name]}/{len(self.study.seeds)}",
                "?" if training.hours is None else f"{training.hours:.1f}",
            ]
            for name, training in self.trainings.items()
        ]
        headings = ("training", "epochs", "loss options", "special", "finished", "hours")
        return _table.Table(headings, rows, left=(0, 2, 3, 4))

    def cost(self) -> str:
        """What is left to train, in a sentence."""
        seeds, hours = len(self.study.seeds), {name: training.hours for name, training in self.trainings.items()}
        left = [(seeds - self.finished[name]) * of_one for name, of_one in hours.items() if of_one is not None]
        unknown = len(hours) - len(left)
        more = f", and {unknown} whose time has not been measured (?)" if unknown else ""
        return (
            f"{len(hours)} trainings x {seeds} seeds. Hours are those of one on an H200, by measured steps: "
            f"{sum(left):.1f} left in all{more}."
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {
                "training": training.label,
                "epochs": training.recipe.epochs,
                "loss_options": training.recipe.loss_options,
                "special": training.special,
                "finished": self.finished[name],
                "hours_on_an_h200": training.hours,
                "recipe": training.recipe.to_dict(),
            }
            for name, training in self.trainings.items()
        ]
        return {"schema": 1, "title": self.study.title, "seeds": len(self.study.seeds), "trainings": rows}

    def files(self) -> list[Path]:
        """The files that :meth:`run` writes."""
        stem = self.table.key + self.suffix.replace(" ", "-")
        return [self.out / f"{stem}.md", self.out / f"{stem}.json"]

    def run(
        self,
        *,
        jobs: int | None = None,
        data_root: Root = None,
        device: str | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Reproduction:
        """Train what is not finished, and put our numbers beside the published ones.

        The files get every run of the table that is in the folder, whatever was chosen.

        Args:
            jobs: trainings at a time, each in a process; by default one per core, on a GPU one.
            data_root: folder of the data.
            device: by default a GPU if there is one.
            progress: called with what is done, how much of it, and of how much.

        Returns:
            The rows of the chosen trainings and seeds.
        """
        foreign = OODScores(data_root, device, progress)
        if self.table.name == "ood_auroc":
            foreign.check()
        folders = self.study.folders(self.out)
        problems = run_study(
            self.study,
            self.out,
            jobs=jobs,
            data_root=data_root,
            device=device,
            progress=progress and (lambda done, of, ended: progress(f"{ended} of {len(folders)} runs", done, of)),
        )
        failed = list(problems.values())
        runs = folders | self._other_runs()
        present = {name: training for name, training in self.every.items() if any(name == key for key, _ in runs)}
        rows = rows_of(self.table, present, runs, foreign)
        self._write(rows, runs, failed)
        chosen = [row.of_seeds(self.study.seeds) for row in rows if row.training.name + self.suffix in self.trainings]
        return Reproduction(self.table, self.study.title, chosen, _notes(folders.values()), failed)

    def _write(self, rows: list[Row], runs: Mapping[tuple[str, int], Path], failed: list[str]) -> None:
        reported = {problem.partition(": ")[0] for problem in failed}
        earlier = [run for run in map(Run, runs.values()) if run.state == "failed" and str(run.path) not in reported]
        problems = [*failed, *(f"{run.path}: {(run.failure or {}).get('what')}" for run in earlier)]
        whole = Reproduction(self.table, self.study.title, rows, _notes(runs.values()), problems)
        texts = whole.markdown(), json.dumps(whole.to_dict(), indent=2) + "\n"
        for file, text in zip(self.files(), texts, strict=True):
            with atomic_path(file) as path:
                path.write_text(text, encoding="utf-8")

    def _other_runs(self) -> dict[tuple[str, int], Path]:
        """The folders of the table's runs that are finished, or have failed; not those of other recipes."""
        names = {name.replace(" ", "_"): name for name in self.every}
        runs = {}
        for run in map(Run, (self.out / "runs").glob("*-seed*")):
            folder, _, seed = run.path.name.rpartition("-seed")
            if folder in names and seed.isdecimal() and run.state in ("finished", "failed"):
                name = names[folder]
                if run.recipe == dataclasses.replace(self.every[name].recipe, seed=int(seed)):
                    runs[name, int(seed)] = run.path
        return runs


def plan(
    name: str,
    *,
    only: Mapping[str, Collection[str]] | None = None,
    seeds: Iterable[int] | None = None,
    epochs_scale: float = 1.0,
    settings: Iterable[str] = (),
    extras: bool = False,
    out: str | os.PathLike[str] = "paper",
) -> Plan:
    """Plan the trainings of a table.

    >>> planned = plan("table1", only={"dataset": ["cifar10"], "model": ["resnet50"]}, seeds=[1, 2])
    >>> len(planned.trainings), planned.study.seeds
    (7, [1, 2])

    Args:
        name: of the table, as ``"table1"`` or ``"ece"``.
        only: values of ``dataset``, ``model``, ``method`` or ``variant`` that a training must have.
        seeds: two or more give an interval; by default the paper's seed.
        epochs_scale: below 1 for a shorter schedule, whose numbers are not the paper's.
        settings: ``field=value``, a change of all recipes; the numbers are not the paper's, either.
        extras: also what the paper lacks, see :func:`~dualfocal.paper.trainings.trainings`.
        out: folder for runs and tables; tables share runs.

    Raises:
        ValueError: an unknown name, value or setting, with the nearest; or a seed twice, or none.
    """
    table = published(name).as_meant()
    changes = _changes(settings)
    title, suffix = f"{table.key}, {table.title}", ""
    if epochs_scale < 1:
        title += f", SHORTENED to {epochs_scale:g} of the paper's epochs"
        suffix += f" x{epochs_scale:g}"
    if changes:
        title += f", CHANGED: {', '.join(changes)}"
        suffix += f" set-{hashlib.sha256(' '.join(sorted(changes)).encode()).hexdigest()[:6]}"
    every = {
        key + suffix: dataclasses.replace(training, recipe=training.recipe.with_settings(changes))
        for key, training in trainings(table, epochs_scale=epochs_scale, extras=True).items()
    }
    chosen = _chosen({key: training for key, training in every.items() if extras or not training.extra}, only or {})
    seeds = [next(iter(chosen.values())).recipe.seed] if seeds is None else list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one; got {', '.join(map(str, seeds)) or 'none'}")
    recipes = {
        key: {seed: training.recipe.with_settings([f"seed={seed}"]) for seed in seeds}
        for key, training in chosen.items()
    }
    study, out = Study(title, recipes), Path(out)
    finished = Counter(key for (key, _), path in study.folders(out).items() if Run(path).state == "finished")
    return Plan(table, study, chosen, every, finished, out, suffix)


def _changes(settings: Iterable[str]) -> list[str]:
    """The settings without blanks; of two settings of a field, the second."""
    changes: dict[str, str] = {}
    for setting in settings:
        field, equals, value = (part.strip() for part in setting.partition("="))
        if field in ("data", "model", "loss", "seed"):
            raise ValueError(f"{field} is what a row of the table stands for, not for --set; see --only and --seeds")
        changes[field] = f"{field}{equals}{value}"
    return list(changes.values())


def _chosen(trainings: dict[str, Training], only: Mapping[str, Collection[str]]) -> dict[str, Training]:
    for field, values in only.items():
        check_known("a field of only", field, FIELDS)
        value_of = {name: str(getattr(training, FIELDS[field])) for name, training in trainings.items()}
        for value in values:
            check_known(field, value, sorted(set(value_of.values())))
        trainings = {name: training for name, training in trainings.items() if value_of[name] in values}
    return trainings


def _notes(folders: Iterable[Path]) -> list[str]:
    """The notes of finished runs, each once."""
    results = [Run(path).result for path in folders]
    return list(dict.fromkeys(note for result in results if result is not None for note in result.notes))
