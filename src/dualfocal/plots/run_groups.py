"""Which runs go into one figure, and what they are called there."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from dualfocal.plots.style import Look, look_of, varied
from dualfocal.runs import Recipe, Run, RunResult, find_runs

# As the paper's tables and figures call them, in the order of the first table.
LABELS = {
    "cross_entropy": "Cross entropy",
    "brier": "Brier loss",
    "mmce": "MMCE",
    "label_smoothing": "LS",
    "inverse_focal": "Inverse focal",
    "flsd": "FLSD-53",
    "focal": "Focal",
    "dual_focal": "Dual focal",
    "ada_focal": "AdaFocal",
    "ada_dual_focal": "AdaDualFocal",
    "kde_xe": "KDE-XE",
}
ALPHA = 0.05  # of label smoothing, where the recipe does not say


@dataclass(frozen=True)
class Entry:
    """Runs that differ in their seed only."""

    label: str
    recipe: Recipe
    runs: Mapping[int, Run]  # by seed, ascending

    @property
    def first(self) -> Run:
        """The run of the lowest seed, for what shows a single run."""
        return next(iter(self.runs.values()))

    @property
    def results(self) -> list[RunResult]:
        """In the order of the seeds."""
        return [run.require_result() for run in self.runs.values()]


@dataclass(frozen=True)
class Setting:
    """What goes into one figure: runs on one data set, with one model."""

    title: str
    stem: str  # of file names
    entries: tuple[Entry, ...]

    @property
    def looks(self) -> dict[str, Look]:
        """Of each entry that of its loss; further entries of a loss keep its colour."""
        losses = [entry.recipe.loss for entry in self.entries]
        return {
            entry.label: varied(look_of(entry.recipe.loss), losses[:place].count(entry.recipe.loss))
            for place, entry in enumerate(self.entries)
        }

    @property
    def seeds(self) -> str:
        """Of single runs, in words."""
        shown = {next(iter(entry.runs)) for entry in self.entries}
        which = f"seed {shown.pop()}" if len(shown) == 1 else "each its lowest seed"
        several = max(len(entry.runs) for entry in self.entries)
        return f"{which}, one of {several}" if several > 1 else which

    @property
    def numbers_of_seeds(self) -> str:
        """How many each method has, in words."""
        numbers = sorted({len(entry.runs) for entry in self.entries})
        text = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
        return f"{text} seed{'s' * (numbers[-1] > 1)} each"


def group_runs(paths: Iterable[Path]) -> tuple[list[Setting], dict[Path, str]]:
    """Settings of the finished runs in some folders, and why the other runs are left out.

    Raises:
        ValueError: a folder holds no run, two runs are of one recipe and seed, or two settings of one name.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        here = {run.path.resolve(): run for run in find_runs(path)}
        if not here:
            raise ValueError(f"{path}: is no run folder, and holds none")
        found |= here
    settings: dict[str, dict[str, dict[int, Run]]] = {}
    unfinished: dict[Path, str] = {}
    for run in found.values():
        if (state := run.state) != "finished":
            unfinished[run.path] = f"is {state}, not finished"
            continue
        try:
            recipe = run.recipe
            if "test" in run.require_result().parts and run.has_predictions:
                run.predictions()  # one that cannot be read does not keep the others from being drawn
        except (ValueError, OSError) as error:
            unfinished[run.path] = f"cannot be read: {' '.join(str(error).removeprefix(f'{run.path}/').split())}"
            continue
        setting = json.dumps([recipe.data, _without_split(recipe), recipe.model], sort_keys=True)
        seeds = settings.setdefault(setting, {}).setdefault(_all_but_seed(recipe), {})
        if recipe.seed in seeds:
            raise ValueError(
                f"{seeds[recipe.seed].path} and {run.path} are two runs of one recipe and one seed: give one of them"
            )
        seeds[recipe.seed] = run
    made = [_setting(groups.values()) for groups in settings.values()]
    for one, other in combinations(made, 2):
        if one.stem == other.stem:
            raise ValueError(
                f"runs of two data sets or models, {one.title} and {other.title}, would have figures of one name, "
                f"{one.stem}: draw them into folders of their own"
            )
    return made, unfinished


def _setting(groups: Iterable[Mapping[int, Run]]) -> Setting:
    by_seed = [dict(sorted(of.items())) for of in groups]
    recipes = [next(iter(of.values())).recipe for of in by_seed]
    first = recipes[0]
    entries = [Entry(_label(recipe, recipes), recipe, of) for recipe, of in zip(recipes, by_seed, strict=True)]
    entries.sort(key=lambda entry: (list(LABELS).index(entry.recipe.loss), _natural(entry.label)))
    data, model = Path(first.data).stem, first.model.rpartition(":")[2]
    options = "".join(f", {name} {value}" for name, value in _without_split(first).items())
    epochs = {recipe.epochs for recipe in recipes}
    length = f", {epochs.pop()} epochs" if len(epochs) == 1 else ""
    return Setting(f"{data}{options}, {model}{length}", f"{data}-{model}", tuple(entries))


def _label(recipe: Recipe, among: list[Recipe]) -> str:
    """The paper's name of the loss, and in what the recipe differs from others with this loss."""
    label = LABELS[recipe.loss]
    if recipe.loss == "label_smoothing":
        label += f"-{recipe.loss_options.get('alpha', ALPHA):g}"
    likes = [_flat(other) for other in among if other.loss == recipe.loss]
    own = _flat(recipe)
    names = sorted({name for other in likes for name in other})
    differ = [name for name in names if len({json.dumps(other.get(name)) for other in likes}) > 1]
    return ", ".join([label, *(f"{name} {own.get(name, 'default')}" for name in differ)])


def _natural(label: str) -> list[tuple[float, str]]:
    """For sorting: numbers in a text by their value, gamma 5 before gamma 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Fields and options of the loss that may tell two entries apart."""
    fields: dict[str, Any] = json.loads(_all_but_seed(recipe))
    return {**fields.pop("loss_options"), **fields}


def _all_but_seed(recipe: Recipe) -> str:
    """What the runs of an entry share; whether the test part was logged changes nothing in a run."""
    same = dataclasses.replace(recipe, seed=0, data_options=_without_split(recipe), test_each_epoch=False)
    return json.dumps(same.to_dict(), sort_keys=True)


def _without_split(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.data_options.items() if name != "split_seed"}
