"""The plan of a study: a recipe for each loss (or gamma) and seed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dualfocal.checks import did_you_mean
from dualfocal.tables import quantity
from dualfocal_lab.data.registry import DATASETS, custom_function
from dualfocal_lab.runs import Recipe, Run, RunResult
from dualfocal_lab.train.presets import PRESETS, custom, preset

# The columns of the paper's table 1.
PAPER_LOSSES = ("cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal")
SPLIT_BY_SEED = ("digits",)  # data without an official split: each seed draws its own


@dataclass(frozen=True)
class Study:
    """The recipes of a study.

    Attributes:
        title: Heading of the tables.
        recipes: Entry, such as a loss -> seed -> recipe. The other entries are compared with the first.
    """

    title: str
    recipes: Mapping[str, Mapping[int, Recipe]]

    @property
    def entries(self) -> list[str]:
        """Names of the entries, in the order of the table."""
        return list(self.recipes)

    @property
    def seeds(self) -> list[int]:
        """The seeds, the same for each entry, so that differences can be paired."""
        return list(next(iter(self.recipes.values())))

    @property
    def recipe(self) -> str:
        """The settings that all runs share, in one line of text."""
        return next(iter(next(iter(self.recipes.values())).values())).description

    def folders(self, out: Path) -> dict[tuple[str, int], Path]:
        """Return the run folder of each entry and seed."""
        return {
            (entry, seed): out / "runs" / f"{entry.replace(' ', '_').replace(':', '.')}-seed{seed}"
            for entry in self.entries
            for seed in self.seeds
        }

    def states(self, out: Path) -> Counter[str]:
        """Return the number of runs in each state, see :attr:`Run.state <dualfocal_lab.runs.Run.state>`."""
        return Counter(Run(folder).state for folder in self.folders(out).values())

    def is_finished(self, out: Path) -> bool:
        """Whether all runs are finished."""
        return set(self.states(out)) == {"finished"}

    def results(self, out: Path) -> dict[tuple[str, int], RunResult]:
        """Return the results of the finished runs."""
        results = {key: Run(folder).result for key, folder in self.folders(out).items()}
        return {key: result for key, result in results.items() if result is not None}


def make_study(
    losses: Iterable[str] = PAPER_LOSSES,
    *,
    dataset: str = "digits",
    model: str | None = None,
    seeds: Iterable[int] = (0, 1, 2),
    gammas: Iterable[float] = (),
    settings: Iterable[str] = (),
) -> Study:
    """Plan a study of several losses, or of several gammas of one loss.

    >>> study = make_study(["cross_entropy", "dual_focal"], seeds=[0, 1])
    >>> study.entries, study.seeds, study.recipes["dual_focal"][1].seed
    (['cross_entropy', 'dual_focal'], [0, 1], 1)
    >>> make_study(["dual_focal"], gammas=[2, 5]).entries
    ['gamma 2', 'gamma 5']

    Args:
        losses: names from :data:`~dualfocal.losses.LOSSES` or ``package.module:object``; the others are
            compared with the first.
        dataset: name of a data set, or a custom data set: a folder of images, an .npz file or
            ``package.module:function``.
        model: name of a model (default: the model of the data set's first preset, small_cnn for custom data sets).
        seeds: seeds of the training, and for digits also of the split.
        gammas: values of gamma to compare, for one loss.
        settings: changes of all recipes, each as ``field=value``.

    Raises:
        ValueError: a name is unknown (the message suggests the nearest), or losses, seeds or gammas are repeated or
            missing.
    """
    losses, seeds, gammas, settings = list(losses), list(seeds), list(gammas), list(settings)
    for what, values in (("losses", losses), ("seeds", seeds), ("gammas", gammas)):
        if len(set(values)) < len(values):
            raise ValueError(f"{what} must not repeat, got {', '.join(map(str, values))}")
    if not losses or not seeds:
        raise ValueError("a study needs at least one loss and one seed")
    options = {"data": "--dataset", "model": "--model", "seed": "--seeds", "loss": "--losses"}
    for setting in settings:
        if (field := setting.partition("=")[0].strip()) in options:
            raise ValueError(f"--set cannot change {field} in a study; use {options[field]} instead")
    rows = {loss: [f"loss={loss}"] for loss in losses}
    if gammas:
        if len(losses) != 1:
            raise ValueError(f"gammas need exactly one loss, got {', '.join(losses)}")
        rows = {f"gamma {gamma:g}": [f"loss={losses[0]}", f"loss.gamma={gamma!r}"] for gamma in gammas}
        if len(rows) < len(gammas):
            raise ValueError(
                f"gammas must differ in their first six significant digits, got {', '.join(map(repr, gammas))}"
            )
    seed_settings = "seed={0}", *(["data.split_seed={0}"] if dataset in SPLIT_BY_SEED else [])
    recipes = {
        entry: {
            seed: _recipe(dataset, model, [*(text.format(seed) for text in seed_settings), *changes, *settings])
            for seed in seeds
        }
        for entry, changes in rows.items()
    }
    first = next(iter(recipes.values()))[seeds[0]]
    what = f"{losses[0]} by gamma" if gammas else quantity(len(losses), "loss")
    number = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return Study(f"{first.data}, {first.model}: {what}, {number}, {quantity(first.epochs, 'epoch')}", recipes)


def _recipe(dataset: str, model: str | None, settings: list[str]) -> Recipe:
    names = [name for name in PRESETS if preset(name).data == dataset]
    named = [name for name in names if model in (None, preset(name).model)]
    if named:
        return preset(named[0], settings)
    if names:  # another model than the paper's
        return preset(names[0], [f"model={model}", *settings])
    if dataset not in DATASETS and not Path(dataset).exists() and custom_function(dataset) is None:
        known = [*DATASETS, "a folder", "an .npz file", "package.module:function"]
        raise ValueError(
            f"unknown data set {dataset!r}; data sets are {', '.join(known)}{did_you_mean(dataset, DATASETS)}"
        )
    return custom(dataset, model or "small_cnn").with_settings(settings)
