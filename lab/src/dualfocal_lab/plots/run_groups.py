"""Group runs into settings (one figure each) and entries (runs that differ only in their seed), and label them."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from dualfocal.plots.style import Look, look_of, varied
from dualfocal_lab.runs import Recipe, Run, RunResult, find_runs

# Names in the paper's tables and figures, in the order of table 1.
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
ALPHA = 0.05  # default of label smoothing


@dataclass(frozen=True)
class Entry:
    """Runs that differ only in their seed."""

    label: str
    recipe: Recipe
    runs: Mapping[int, Run]  # by seed, ascending

    @property
    def first(self) -> Run:
        """The run with the lowest seed, for figures that show a single run."""
        return next(iter(self.runs.values()))

    @property
    def results(self) -> list[RunResult]:
        """Results of the runs, in the order of the seeds."""
        return [run.require_result() for run in self.runs.values()]


@dataclass(frozen=True)
class Setting:
    """The runs of one figure: one data set and one model."""

    title: str
    stem: str  # of file names
    entries: tuple[Entry, ...]

    @property
    def looks(self) -> dict[str, Look]:
        """Entry -> look of its loss; further entries of the same loss have the same colour."""
        losses = [entry.recipe.loss for entry in self.entries]
        return {
            entry.label: varied(look_of(entry.recipe.loss), losses[:place].count(entry.recipe.loss))
            for place, entry in enumerate(self.entries)
        }

    @property
    def seeds(self) -> str:
        """The seed that figures of single runs show, as text."""
        seeds = {next(iter(entry.runs)) for entry in self.entries}
        which = f"seed {seeds.pop()}" if len(seeds) == 1 else "lowest seed of each method"
        number = max(len(entry.runs) for entry in self.entries)
        return f"{which} (one of {number} seeds)" if number > 1 else which

    @property
    def numbers_of_seeds(self) -> str:
        """The number of seeds per method, as text."""
        numbers = sorted({len(entry.runs) for entry in self.entries})
        text = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
        return f"{text} seed{'s' * (numbers[-1] > 1)} each"


def group_runs(paths: Iterable[Path]) -> tuple[list[Setting], dict[Path, str]]:
    """Group the finished runs in some folders by setting.

    Args:
        paths: run folders, or folders that contain some.

    Returns:
        The settings, and the folders of runs that are left out, with the reason.

    Raises:
        ValueError: a folder has no run, two runs have the same recipe and seed, or two settings the same file names.
    """
    all_runs: dict[Path, Run] = {}
    for path in paths:
        runs = {run.path.resolve(): run for run in find_runs(path)}
        if not runs:
            raise ValueError(f"{path}: is not a run folder and contains none")
        all_runs |= runs
    settings: dict[str, dict[str, dict[int, Run]]] = {}
    unfinished: dict[Path, str] = {}
    for run in all_runs.values():
        if (state := run.state) != "finished":
            unfinished[run.path] = f"is {state}, not finished"
            continue
        try:
            recipe = run.recipe
            if "test" in run.require_result().parts and run.has_predictions:
                run.predictions()  # raises here, so that a damaged file leaves out this run only
        except (ValueError, OSError) as error:
            unfinished[run.path] = f"cannot be read: {' '.join(str(error).removeprefix(f'{run.path}/').split())}"
            continue
        setting = json.dumps([recipe.data, _without_split(recipe), recipe.model], sort_keys=True)
        seeds = settings.setdefault(setting, {}).setdefault(_all_but_seed(recipe), {})
        if recipe.seed in seeds:
            raise ValueError(
                f"{seeds[recipe.seed].path} and {run.path} have the same recipe and seed; pass only one of them"
            )
        seeds[recipe.seed] = run
    grouped = [_setting(groups.values()) for groups in settings.values()]
    for first, second in combinations(grouped, 2):
        if first.stem == second.stem:
            raise ValueError(
                f"figures of {first.title} and of {second.title} would have the same names, {first.stem}-*; "
                "draw them separately, into different folders"
            )
    return grouped, unfinished


def _setting(groups: Iterable[Mapping[int, Run]]) -> Setting:
    by_seed = [dict(sorted(runs.items())) for runs in groups]
    recipes = [next(iter(runs.values())).recipe for runs in by_seed]
    first = recipes[0]
    entries = [Entry(_label(recipe, recipes), recipe, runs) for recipe, runs in zip(recipes, by_seed, strict=True)]
    order = {loss: place for place, loss in enumerate(LABELS)}  # custom losses come last
    entries.sort(key=lambda entry: (order.get(entry.recipe.loss, len(order)), _natural(entry.label)))
    data, model = (name.rpartition(":")[2] for name in (Path(first.data).stem, first.model))
    options = "".join(f", {name} {value}" for name, value in _without_split(first).items())
    epochs = {recipe.epochs for recipe in recipes}
    length = f", {epochs.pop()} epochs" if len(epochs) == 1 else ""
    return Setting(f"{data}{options}, {model}{length}", f"{data}-{model}", tuple(entries))


def _label(recipe: Recipe, among: list[Recipe]) -> str:
    """Return the paper's name of the loss, and the settings that differ from other recipes with this loss."""
    label = LABELS.get(recipe.loss, recipe.loss.rpartition(":")[2])
    if recipe.loss == "label_smoothing":
        label += f"-{recipe.loss_options.get('alpha', ALPHA):g}"
    same_loss = [_flat(other) for other in among if other.loss == recipe.loss]
    own = _flat(recipe)
    names = sorted({name for other in same_loss for name in other})
    differ = [name for name in names if len({json.dumps(other.get(name)) for other in same_loss}) > 1]
    return ", ".join([label, *(f"{name} {own.get(name, 'default')}" for name in differ)])


def _natural(label: str) -> list[tuple[float, str]]:
    """Return a sort key that compares numbers by value: gamma 5 before gamma 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(float(part), "") if i % 2 else (0.0, part) for i, part in enumerate(parts)]


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Return the fields and loss options that may differ between entries."""
    fields: dict[str, Any] = json.loads(_all_but_seed(recipe))
    return {**fields.pop("loss_options"), **fields}


def _all_but_seed(recipe: Recipe) -> str:
    """Return what the runs of an entry share, as text; logging the test split does not change a run."""
    same = dataclasses.replace(recipe, seed=0, data_options=_without_split(recipe), test_each_epoch=False)
    return json.dumps(same.to_dict(), sort_keys=True)


def _without_split(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.data_options.items() if name != "split_seed"}
