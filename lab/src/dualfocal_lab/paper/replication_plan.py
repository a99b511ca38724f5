"""The plans of the replication, ``replication_NAME.json``: their runs, and the place of a finished run in them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from dualfocal_lab import RESULTS
from dualfocal_lab.paper.intervals import Floats, Interval, crossed_bootstrap, sample_weights
from dualfocal_lab.paper.measurements import MEASUREMENTS, MeasuredRun, resampled
from dualfocal_lab.runs import Recipe, Run, RunResult
from dualfocal_lab.train.presets import preset

PLANS = ("cifar10", "20newsgroups")
LOSS = "dual_focal"  # the loss of the paper: its gamma may be chosen, and differences are this loss minus another one
SEED = 0  # of the bootstrap


@cache
def replication_plan(plan: str = "cifar10") -> dict[str, Any]:
    """The content of the plan's file."""
    file = resources.files("dualfocal_lab.paper") / f"replication_{plan}.json"
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return content


def plan_of(runs: Iterable[Run]) -> str:
    """The plan whose data set most of the runs have; without runs, that of CIFAR-10."""
    data = [run.recipe.data for run in runs]
    return max(PLANS, key=data.count)


def results_folder(plan: str) -> Path:
    """Where the runs of a plan go."""
    return RESULTS / plan


@dataclass(frozen=True)
class PlannedRun:
    """A training of a plan; runs of one group differ in their seed only.

    >>> planned_runs("cifar10")[5].name, planned_runs("20newsgroups")[-1].folder
    ('flsd seed 1', 'text_cnn-dual_focal-gamma15-seed5')
    """

    plan: str
    group: str
    seed: int
    settings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name as in ``known_in_advance`` of the plan."""
        return f"{self.group} seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{_setting(self.plan)['model']}-{self.group.replace(' gamma ', '-gamma')}-seed{self.seed}"

    @property
    def command(self) -> str:
        """The command that trains it."""
        settings = " ".join(f"--set {setting}" for setting in (*self.settings, f"seed={self.seed}"))
        return train_command(self.plan, settings, self.folder)

    @property
    def recipe(self) -> Recipe:
        """Its recipe."""
        return preset(_preset_name(self.plan), [*self.settings, f"seed={self.seed}"])


@cache
def planned_runs(plan: str = "cifar10") -> tuple[PlannedRun, ...]:
    """All trainings of a plan, without the controls; of the gammas to choose from, those that a choice may ask for."""
    setting, runs = _setting(plan), []
    seeds, fixed = setting["seeds"], setting["settings"]
    for loss in seeds:
        own_gamma = [f"loss.gamma={setting['gamma']}"] if loss == LOSS else []
        runs += [PlannedRun(plan, loss, seed, (f"loss={loss}", *own_gamma, *fixed)) for seed in seeds[loss]]
    others: dict[int, Mapping[str, Any]] = {gamma: setting | {"seeds": seeds[LOSS]} for gamma in _other_gammas(plan)}
    others |= {claim["gamma"]: claim for claim in _claims_of_a_gamma(plan) if not isinstance(claim["gamma"], str)}
    for gamma, own in others.items():
        settings = (f"loss={LOSS}", f"loss.gamma={gamma}", *own["settings"])
        runs += [PlannedRun(plan, f"{LOSS} gamma {gamma}", seed, settings) for seed in own["seeds"]]
    return tuple(runs)


def _setting(plan: str) -> dict[str, Any]:
    setting: dict[str, Any] = replication_plan(plan)["setting"]
    return setting


def _other_gammas(plan: str) -> list[int]:
    """Gammas to choose from, besides the one that is trained with all seeds anyway."""
    setting = _setting(plan)
    return [gamma for gamma in setting.get("gammas", ()) if gamma != setting["gamma"]]


def _claims_of_a_gamma(plan: str) -> list[dict[str, Any]]:
    return [claim for claim in replication_plan(plan)["claims"] if "gamma" in claim]


def _group_of_gamma(plan: str, gamma: int | str) -> str:
    return LOSS if gamma == _setting(plan)["gamma"] else f"{LOSS} gamma {gamma}"


def train_command(plan: str, settings: str, folder: str) -> str:
    """The command of a training by the preset of the plan: into the results, if they are below the current folder."""
    results, here = results_folder(plan), Path.cwd()
    parent = results.relative_to(here) if results.is_relative_to(here) else Path("runs")
    return f"dualfocal train {_preset_name(plan)} {settings} --out {parent / folder}"


def _preset_name(plan: str) -> str:
    return f"{_setting(plan)['dataset']}_{_setting(plan)['model']}"


@dataclass(frozen=True)
class ControlRun:
    """A control: described, not judged. ``numbers`` has each measurement; None: an artefact is missing."""

    name: str
    run: str
    numbers: dict[str, float | None]


@dataclass
class SortedRuns:
    """Runs by their place in a plan."""

    plan: str
    planned: dict[str, MeasuredRun] = field(default_factory=dict)  # by the name of the planned run
    controls: list[ControlRun] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    not_in_plan: list[str] = field(default_factory=list)

    def group_of(self, claim: Mapping[str, Any]) -> str:
        """The group of runs that a claim about one loss reads.

        A gamma may be a metric of the validation split: then it is the one that has the lowest value, by the first seed
        of each gamma. The group has the name of the metric until all of these runs are finished.
        """
        gamma = claim.get("gamma", _setting(self.plan)["gamma"])
        if isinstance(gamma, str):
            gamma = self._chosen(gamma.removeprefix("val_")) or gamma
        return str(claim["loss"]) if claim["loss"] != LOSS else _group_of_gamma(self.plan, gamma)

    def _chosen(self, metric: str) -> int | None:
        first = _setting(self.plan)["seeds"][LOSS][0]
        gammas: list[int] = _setting(self.plan)["gammas"]
        runs = {gamma: self.planned.get(f"{_group_of_gamma(self.plan, gamma)} seed {first}") for gamma in gammas}
        scores = {
            gamma: getattr(run.result.evaluation("val"), metric) for gamma, run in runs.items() if run is not None
        }
        return min(gammas, key=scores.__getitem__) if len(scores) == len(gammas) else None

    def wanted(self) -> list[PlannedRun]:
        """The trainings of the plan: of a gamma that no claim reads, only the first seed."""
        read = {self.group_of(claim) for claim in _claims_of_a_gamma(self.plan)}
        first = _setting(self.plan)["seeds"][LOSS][0]
        rest = {_group_of_gamma(self.plan, gamma) for gamma in _other_gammas(self.plan)} - read
        return [run for run in planned_runs(self.plan) if run.group not in rest or run.seed == first]

    def missing(self) -> tuple[str, ...]:
        """Commands of the trainings and controls that have no finished run."""
        commands = [run.command for run in self.wanted() if run.name not in self.planned]
        for control in replication_plan(self.plan)["controls"]:
            if all(run.name != control["name"] for run in self.controls):
                commands.append(train_command(self.plan, control["recipe"], control["folder"]))
        return tuple(commands)


def sort_runs(runs: Iterable[Run], plan: str = "cifar10") -> SortedRuns:
    """Find the place of each run in a plan.

    Raises:
        ValueError: two runs have the same place.
        RunError: a run folder is damaged.
    """
    recipes, controls = _recipes(plan)
    places = SortedRuns(plan)
    for run in runs:
        recipe, result = run.recipe, run.result
        if result is None:
            places.unfinished.append(str(run.path))
            continue
        essential, measured = _essential(recipe), MeasuredRun(run, result)
        planned = next(
            (run for run, wanted in recipes.items() if wanted == essential and run.seed == recipe.seed), None
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
def _recipes(plan: str) -> tuple[dict[PlannedRun, Recipe], dict[str, Recipe]]:
    """What the recipes of planned runs and of controls must be, by run and by name."""
    name = _preset_name(plan)
    controls = {
        control["name"]: preset(name, control["recipe"].split("--set ")[1:])
        for control in replication_plan(plan)["controls"]
    }
    return (
        {run: _essential(run.recipe) for run in planned_runs(plan)},
        {name: _essential(recipe) for name, recipe in controls.items()},
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

    places: SortedRuns
    runs: dict[str, dict[int, MeasuredRun]]
    wanted: dict[str, tuple[int, ...]]
    draws: int  # of the bootstrap (0: no bootstrap)
    _resampled: dict[tuple[str, str], Floats | None] = field(default_factory=dict)

    @classmethod
    def of(cls, places: SortedRuns, *, draws: int, known: bool = True) -> "Sample":
        """The planned runs that are finished, with or without those known in advance."""
        left_out = () if known else replication_plan(places.plan)["known_in_advance"]
        read = [places.group_of(claim) for claim in _claims_of_a_gamma(places.plan)]
        groups = [run.group for run in places.wanted()] + read
        runs: dict[str, dict[int, MeasuredRun]] = {group: {} for group in groups}
        wanted: dict[str, tuple[int, ...]] = dict.fromkeys(runs, ())
        for run in places.wanted():
            if run.name not in left_out:
                wanted[run.group] += (run.seed,)
                if run.name in places.planned:
                    runs[run.group][run.seed] = places.planned[run.name]
        return cls(places, runs, wanted, draws)

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
