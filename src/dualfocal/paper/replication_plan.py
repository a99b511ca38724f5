"""The plan of the replication, ``replication.json``: its runs, and the place of a finished run in it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from dualfocal.paper.intervals import Floats, Interval, crossed_bootstrap, sample_weights
from dualfocal.paper.measurements import MEASUREMENTS, MeasuredRun, resampled
from dualfocal.runs import Recipe, Run, RunResult
from dualfocal.train.presets import preset

FOLDER = Path("results/cifar10")  # where the runs of the plan go
SEED = 0  # of the bootstrap


@cache
def replication_plan() -> dict[str, Any]:
    """The content of replication.json."""
    content: dict[str, Any] = json.loads((resources.files("dualfocal.paper") / "replication.json").read_text("utf-8"))
    return content


@dataclass(frozen=True)
class PlannedRun:
    """A training of the plan; runs of one group differ in their seed only.

    >>> planned_runs()[5].name, planned_runs()[-1].name
    ('flsd seed 1', 'dual_focal gamma 6 seed 3')
    """

    group: str
    seed: int
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name as in ``known_in_advance`` of the plan."""
        return f"{self.group} seed {self.seed}"

    @property
    def command(self) -> str:
        """The command that trains it."""
        settings = " ".join(f"--set {setting}" for setting in (*self.settings, f"seed={self.seed}"))
        group = self.group.replace(" gamma ", "-gamma")
        return train_command(settings, f"{replication_plan()['setting']['model']}-{group}-seed{self.seed}")


@cache
def planned_runs() -> tuple[PlannedRun, ...]:
    """All trainings of the plan, without the controls."""
    plan = replication_plan()
    setting = plan["setting"]
    gammas = {"dual_focal": (f"loss.gamma={setting['dual_focal_gamma']}",)}
    runs = [
        PlannedRun(loss, seed, (f"loss={loss}", *gammas.get(loss, ())))
        for loss in setting["losses"]
        for seed in setting["seeds"]
    ]
    for claim in plan["claims"]:
        if "gamma" in claim:
            settings = (f"loss={claim['loss']}", f"loss.gamma={claim['gamma']}", "test_each_epoch=true")
            runs += [PlannedRun(group_of(claim), seed, settings) for seed in claim["seeds"]]
    return tuple(runs)


def group_of(claim: Mapping[str, Any]) -> str:
    """The group of runs that a claim about one loss reads."""
    return f"{claim['loss']} gamma {claim['gamma']}" if "gamma" in claim else str(claim["loss"])


def train_command(settings: str, folder: str) -> str:
    """The command of a training by the preset of the plan."""
    return f"dualfocal train {_preset_name()} {settings} --out {FOLDER / folder}"


def _preset_name() -> str:
    setting = replication_plan()["setting"]
    return f"{setting['dataset']}_{setting['model']}"


@dataclass(frozen=True)
class ControlRun:
    """A control: described, not judged. ``numbers`` has each measurement; None: an artefact is missing."""

    name: str
    run: str
    numbers: dict[str, float | None]


@dataclass
class SortedRuns:
    """Runs by their place in the plan."""

    planned: dict[str, MeasuredRun] = field(default_factory=dict)  # by the name of the planned run
    controls: list[ControlRun] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    not_in_plan: list[str] = field(default_factory=list)

    def missing(self) -> tuple[str, ...]:
        """Commands of the trainings and controls that have no finished run."""
        commands = [run.command for run in planned_runs() if run.name not in self.planned]
        for control in replication_plan()["controls"]:
            if all(run.name != control["name"] for run in self.controls):
                commands.append(train_command(control["recipe"], control["folder"]))
        return tuple(commands)


def sort_runs(runs: Iterable[Run]) -> SortedRuns:
    """Find the place of each run in the plan.

    Raises:
        ValueError: two runs have the same place.
        RunError: a run folder is damaged.
    """
    recipes, controls = _recipes()
    places = SortedRuns()
    for run in runs:
        recipe, result = run.recipe, run.result
        if result is None:
            places.unfinished.append(str(run.path))
            continue
        essential, measured = _essential(recipe), MeasuredRun(run, result)
        planned = next(
            (plan for plan, wanted in recipes.items() if wanted == essential and plan.seed == recipe.seed), None
        )
        control = next((name for name, wanted in controls.items() if wanted == essential), None)
        if planned is not None and _by_bfloat16(result):
            if other := places.planned.get(planned.name):
                raise ValueError(
                    f"{other.run.path} and {run.path} are both {planned.name}, but the plan has one run of each: "
                    "leave one out"
                )
            places.planned[planned.name] = measured
        elif control is not None:
            numbers = {name: measured.measure(name) for name in MEASUREMENTS}
            places.controls.append(ControlRun(control, str(run.path), numbers))
        else:
            places.not_in_plan.append(str(run.path))
    return places


@cache
def _recipes() -> tuple[dict[PlannedRun, Recipe], dict[str, Recipe]]:
    """What the recipes of planned runs and of controls must be, by run and by name."""
    controls = {control["name"]: control["recipe"].split("--set ")[1:] for control in replication_plan()["controls"]}
    return (
        {run: _essential(preset(_preset_name(), run.settings)) for run in planned_runs()},
        {name: _essential(preset(_preset_name(), settings)) for name, settings in controls.items()},
    )


def _essential(recipe: Recipe) -> Recipe:
    """The recipe without what may differ: the seed, whether the test split was logged, two names of bfloat16."""
    precision = "auto" if recipe.precision == "bfloat16" else recipe.precision
    return replace(recipe, seed=0, test_each_epoch=False, precision=precision)


def _by_bfloat16(result: RunResult) -> bool:
    """Whether ``precision=auto`` meant bfloat16, as far as the sessions say."""
    return all(session.get("precision", "bfloat16") == "bfloat16" for session in result.sessions)


@dataclass(frozen=True)
class Sample:
    """The runs that verdicts are computed from, and the seeds that the plan wants, by group."""

    runs: dict[str, dict[int, MeasuredRun]]
    wanted: dict[str, tuple[int, ...]]
    draws: int  # of the bootstrap (0: no bootstrap)
    _resampled: dict[tuple[str, str], Floats | None] = field(default_factory=dict)

    @classmethod
    def of(cls, finished: Mapping[str, MeasuredRun], *, draws: int, known: bool = True) -> "Sample":
        """The planned runs that are finished, with or without those known in advance."""
        left_out = () if known else replication_plan()["known_in_advance"]
        runs: dict[str, dict[int, MeasuredRun]] = {run.group: {} for run in planned_runs()}
        wanted: dict[str, tuple[int, ...]] = dict.fromkeys(runs, ())
        for run in planned_runs():
            if run.name not in left_out:
                wanted[run.group] += (run.seed,)
                if run.name in finished:
                    runs[run.group][run.seed] = finished[run.name]
        return cls(runs, wanted, draws)

    def values(self, group: str, metric: str) -> dict[int, float]:
        """A measurement by seed, of the runs that have it."""
        measured = {seed: run.measure(metric) for seed, run in self.runs[group].items()}
        return {seed: value for seed, value in measured.items() if value is not None}

    @cached_property
    def weights(self) -> Floats:
        """Draws of the test samples, the same for all runs: their labels must be equal."""
        tests = [(run.run.path, run.test) for group in self.runs.values() for run in group.values()]
        labels = [(path, test[1]) for path, test in tests if test is not None]
        for path, target in labels:
            if not torch.equal(target, labels[0][1]):
                raise ValueError(f"{labels[0][0]} and {path} differ in the labels of their test samples")
        return sample_weights(len(labels[0][1]), self.draws, SEED)

    def bootstrap(self, groups: Sequence[str], metric: str, level: float) -> Interval | None:
        """The crossed bootstrap interval of the difference of two groups; None: a run lacks the samples."""
        for group in groups if self.draws else ():
            if (group, metric) not in self._resampled:
                runs = [self.runs[group][seed] for seed in self.values(group, metric)]
                has_samples = all(run.test is not None for run in runs)
                self._resampled[group, metric] = resampled(runs, metric, self.weights) if has_samples else None
        first, second = (self._resampled.get((group, metric)) for group in groups)
        return None if first is None or second is None else crossed_bootstrap(first, second, level, SEED)
