"""Reproduce a table of the paper: train its models, and compare our numbers with the published ones.

planned = plan("table1", only={"dataset": ["cifar10"], "method": ["dual_focal"]}, seeds=[1, 2, 3])
print(planned.as_table().text())
print(planned.run().as_table().text())
"""

import dataclasses
import hashlib
import heapq
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualfocal.checks import check_known
from dualfocal.files import atomic_path
from dualfocal.tables import Table as PrintedTable
from dualfocal.tables import quantity
from dualfocal_lab.data.paths import Root
from dualfocal_lab.paper.ood import OODScores
from dualfocal_lab.paper.published import Table, published
from dualfocal_lab.paper.rows import HEADINGS, LEVEL, Row, rows_of
from dualfocal_lab.paper.trainings import Training, trainings
from dualfocal_lab.runs import Run
from dualfocal_lab.study import LocalEngine, RunStatus, Shard, Study, run_study
from dualfocal_lab.study.engine import Engine
from dualfocal_lab.study.runner import StudyWatcher, add_up

FIELDS = {"dataset": "data", "model": "model", "method": "method", "variant": "variant"}  # attributes of a Training


@dataclass(frozen=True)
class Reproduction:
    """A table of the paper with our numbers beside the published ones.

    Attributes:
        table: The published table.
        title: Heading, which says so if the recipes were changed.
        rows: One row per number.
        notes: Notes of the runs, without duplicates.
        failed: Folders of diverged runs, and why they failed.
    """

    table: Table
    title: str
    rows: list[Row]
    notes: list[str]
    failed: list[str]

    def explanation(self) -> str:
        """Explain the columns, and add the notes of the published table."""
        return (
            "Numbers are printed as in the paper, with the temperature in brackets; ours are means over seeds. "
            "Floor: noise floor, the error that a perfectly calibrated model with our confidences shows by chance. "
            f"One more run: {100 * LEVEL:.0f} % prediction interval, with two seeds or more; agrees: whether the "
            f"published number lies in it. {' '.join(self.table.notes)}"
        )

    def as_table(self) -> PrintedTable:
        """Return the rows as text, without empty columns."""
        rows = [row.cells() for row in self.rows]
        shown = [i for i in range(len(HEADINGS)) if i < 4 or any(row[i] for row in rows)]
        return PrintedTable([HEADINGS[i] for i in shown], [[row[i] for i in shown] for row in rows], left=(0, 1))

    def markdown(self) -> str:
        """Return the rows, their explanation and the notes as Markdown."""
        headings, *rows = (f"| {' | '.join(cells)} |" for cells in (HEADINGS, *(row.cells() for row in self.rows)))
        notes = [f"Note: {note}." for note in self.notes]
        lines = [f"# {self.title}", "", headings, "|---|---|---:|---:|---:|---:|---:|---|", *rows, ""]
        return "\n".join([*lines, self.explanation(), *notes]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON; metrics are fractions, not percent."""
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
    """The trainings of a table and their run folders, made by :func:`plan`."""

    table: Table
    study: Study  # recipes of the chosen trainings, for each seed
    trainings: dict[str, Training]  # run name -> training, for the chosen ones
    every: dict[str, Training]  # run name -> training, for all of the table and the extra ones
    finished: Mapping[str, int]  # run name -> number of finished seeds
    out: Path
    suffix: str  # of run and file names, if the schedule or the recipe is changed

    def as_table(self) -> PrintedTable:
        """Return the trainings as text, with their estimated hours on an H200."""
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
        return PrintedTable(headings, rows, left=(0, 2, 3, 4))

    def cost(self) -> str:
        """Return the remaining cost in one sentence."""
        seeds, known = len(self.study.seeds), {}
        for name, training in self.trainings.items():
            if training.hours is not None:
                known[name] = training.hours
        left = [hours for name, hours in known.items() for _ in range(seeds - self.finished[name])]
        unknown = len(self.trainings) - len(known)
        more = f", plus {quantity(unknown, 'training')} whose time has not been measured (?)" if unknown else ""
        several = ", ".join(f"{hours_on(gpus, left):.1f} on {gpus} GPUs" for gpus in (8, 64) if gpus <= len(left))
        size = f"{quantity(len(self.trainings), 'training')} x {quantity(seeds, 'seed')}"
        return (
            f"{size}. Hours: for one seed on an H200, estimated from measured steps. "
            f"Total left: {sum(left):.1f} hours{f' ({several})' if several else ''}{more}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON."""
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
        """Return the paths of the files that :meth:`run` writes."""
        stem = self.table.key + self.suffix.replace(" ", "-")
        return [self.out / f"{stem}.md", self.out / f"{stem}.json"]

    def run(
        self,
        *,
        engine: Engine | None = None,
        jobs: int | None = None,
        data_root: Root = None,
        device: str | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Reproduction:
        """Train the unfinished runs, and compare our numbers with the published ones: :meth:`train`, :meth:`compare`.

        Args:
            engine: where to train (default: ``LocalEngine(jobs, device)``, processes of this machine).
            jobs: number of trainings at a time, each in its own process (default: one per core, or one on a GPU).
            data_root: folder of the data.
            device: such as ``"cpu"`` or ``"cuda:1"`` (default: a GPU if there is one); an engine has its own.
            progress: called with a description, and the finished and total amounts.

        Returns:
            The rows of the chosen trainings and seeds.
        """

        def watch(runs: Sequence[RunStatus]) -> None:
            if progress is not None:
                done, total, finished = add_up(runs)
                progress(f"{finished} of {len(runs)} runs", done, total)

        failed = self.train(engine=engine or LocalEngine(jobs, device), data_root=data_root, watch=watch)
        return self.compare(failed, data_root=data_root, device=device, progress=progress)

    def train(
        self,
        *,
        engine: Engine | None = None,
        shard: Shard | None = None,
        data_root: Root = None,
        watch: StudyWatcher | None = None,
    ) -> list[str]:
        """Train the unfinished runs, or a share of them. Returns why some diverged, see :func:`run_study`."""
        if self.table.name == "ood_auroc":
            OODScores(data_root).check()
        problems = run_study(self.study, self.out, engine=engine, shard=shard, data_root=data_root, watch=watch)
        return list(problems.values())

    def compare(
        self,
        failed: list[str],
        *,
        data_root: Root = None,
        device: str | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Reproduction:
        """Compare our numbers with the published ones, and write the files.

        The files contain every run of the table in the folder, not only the chosen ones.

        Args:
            failed: what :meth:`train` has returned.
            data_root: folder of the data, for the scores of out-of-distribution images.
            device: such as ``"cpu"`` or ``"cuda:1"`` (default: a GPU if there is one).
            progress: called with a description, and the finished and total amounts.

        Returns:
            The rows of the chosen trainings and seeds.
        """
        folders = self.study.folders(self.out)
        runs = folders | self._other_runs()
        present = {name: training for name, training in self.every.items() if any(name == key for key, _ in runs)}
        rows = rows_of(self.table, present, runs, OODScores(data_root, device, progress))
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
        """Return the folders in ``out`` of finished or failed runs of the table with the expected recipe."""
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
        name: name of the table, such as ``"table1"`` or ``"ece"``.
        only: ``dataset``, ``model``, ``method`` or ``variant`` -> values to select.
        seeds: seeds of the trainings; two or more give an interval (default: the paper's seed).
        epochs_scale: factor below 1 for a shorter schedule; the numbers are then not comparable with the paper's.
        settings: changes of all recipes, each as ``field=value``; the numbers are then not comparable, either.
        extras: whether to add trainings that the paper does not have, see
            :func:`~dualfocal_lab.paper.trainings.trainings`.
        out: folder for runs and tables; several tables share equal runs.

    Raises:
        ValueError: a name, value or setting is unknown (the message suggests the nearest), or seeds are repeated or
            missing.
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
        raise ValueError(f"seeds must be one or more different numbers, got {', '.join(map(str, seeds)) or 'none'}")
    recipes = {
        key: {seed: training.recipe.with_settings([f"seed={seed}"]) for seed in seeds}
        for key, training in chosen.items()
    }
    study, out = Study(title, recipes), Path(out)
    finished = Counter(key for (key, _), path in study.folders(out).items() if Run(path).state == "finished")
    return Plan(table, study, chosen, every, finished, out, suffix)


def hours_on(gpus: int, hours: Iterable[float]) -> float:
    """Return the hours until all trainings are done, one per GPU at a time, the longest first.

    >>> hours_on(1, [3, 2, 2, 1]), hours_on(2, [3, 2, 2, 1])
    (8.0, 4.0)
    """
    loads = [0.0] * gpus
    for each in sorted(hours, reverse=True):
        heapq.heapreplace(loads, loads[0] + each)
    return max(loads)


def _changes(settings: Iterable[str]) -> list[str]:
    """Return the settings without blanks; the last setting of a field wins."""
    changes: dict[str, str] = {}
    for setting in settings:
        field, equals, value = (part.strip() for part in setting.partition("="))
        if field in ("data", "model", "loss", "seed"):
            raise ValueError(f"--set cannot change {field}, which identifies a row of the table; use --only or --seeds")
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
    """Return the notes of finished runs, without duplicates."""
    results = [Run(path).result for path in folders]
    return list(dict.fromkeys(note for result in results if result is not None for note in result.notes))
