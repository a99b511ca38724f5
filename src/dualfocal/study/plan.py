"""What a study trains: a recipe for each loss, or each gamma, and each seed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dualfocal._checks import did_you_mean
from dualfocal.data.registry import DATASETS
from dualfocal.runs import Recipe, Run, RunResult
from dualfocal.train.presets import PRESETS, preset

# The columns of the paper's first table.
PAPER_LOSSES = ("cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal")
SPLIT_BY_SEED = ("digits",)  # where no split is official a seed draws that, too


@dataclass(frozen=True)
class Study:
    """Recipes by entry, such as a loss, and seed. The first entry is what the others are compared with."""

    title: str
    recipes: Mapping[str, Mapping[int, Recipe]]

    @property
    def entries(self) -> list[str]:
        """The rows of the table."""
        return list(self.recipes)

    @property
    def seeds(self) -> list[int]:
        """The same for each entry, so that they can be paired."""
        return list(next(iter(self.recipes.values())))

    @property
    def recipe(self) -> str:
        """What all runs share, in one line; the loss has its own options."""
        of = next(iter(next(iter(self.recipes.values())).values()))
        milestones = " and ".join(map(str, of.milestones)) or "never"
        schedule = "cosine" if of.schedule == "cosine" else f"times {of.lr_factor:g} after {milestones}"
        momentum = f", momentum {of.momentum:g}" if of.optimizer == "sgd" else ""
        clip = "" if of.clip_norm is None else f", gradient norm up to {of.clip_norm:g}"
        data = "".join(f", {name} {value}" for name, value in of.data_options.items() if name != "split_seed")
        return (
            f"{of.data}{data}; {of.model}; {of.optimizer}, lr {of.lr:g} ({schedule}){momentum}, weight decay "
            f"{of.weight_decay:g}, {of.epochs} epochs, batches of {of.batch_size}, {of.reduction} of the loss{clip}"
        )

    def folders(self, out: Path) -> dict[tuple[str, int], Path]:
        """Where each run goes."""
        return {
            (entry, seed): out / "runs" / f"{entry.replace(' ', '_')}-seed{seed}"
            for entry in self.entries
            for seed in self.seeds
        }

    def results(self, out: Path) -> dict[tuple[str, int], RunResult]:
        """Results of the runs that are finished."""
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
    """Put a study together.

    >>> study = make_study(["cross_entropy", "dual_focal"], seeds=[0, 1])
    >>> study.entries, study.seeds, study.recipes["dual_focal"][1].seed
    (['cross_entropy', 'dual_focal'], [0, 1], 1)
    >>> make_study(["dual_focal"], gammas=[2, 5]).entries
    ['gamma 2', 'gamma 5']

    Args:
        losses: names of :data:`~dualfocal.losses.LOSSES`; the first is what the others are compared with.
        dataset: of a preset, or a folder of images, or an .npz file.
        model: by default the one of the data set's first preset, small_cnn for data of one's own.
        seeds: of training; for digits of the split, too.
        gammas: for one loss, to choose from.
        settings: ``field=value``, for all recipes.

    Raises:
        ValueError: unknown names, with the nearest; or something given twice, or not at all.
    """
    losses, seeds, gammas, settings = list(losses), list(seeds), list(gammas), list(settings)
    for what, given in (("losses", losses), ("seeds", seeds), ("gammas", gammas)):
        if len(set(given)) < len(given):
            raise ValueError(f"{what} must be different, got {', '.join(map(str, given))}")
    if not losses or not seeds:
        raise ValueError("a study needs at least one loss and one seed")
    options = {"data": "--dataset", "model": "--model", "seed": "--seeds", "loss": "--losses"}
    for setting in settings:
        if (field := setting.partition("=")[0].strip()) in options:
            raise ValueError(f"{field} is not for --set in a study: see {options[field]}")
    rows = {loss: [f"loss={loss}"] for loss in losses}
    if gammas:
        if len(losses) != 1:
            raise ValueError(f"gammas are those of one loss, got {', '.join(losses)}")
        rows = {f"gamma {gamma:g}": [f"loss={losses[0]}", f"loss.gamma={gamma!r}"] for gamma in gammas}
        if len(rows) < len(gammas):
            raise ValueError(f"gammas must differ in their first six digits, got {', '.join(map(repr, gammas))}")
    of_seed = "seed={0}", *(["data.split_seed={0}"] if dataset in SPLIT_BY_SEED else [])
    recipes = {
        entry: {
            seed: _recipe(dataset, model, [*(text.format(seed) for text in of_seed), *of, *settings]) for seed in seeds
        }
        for entry, of in rows.items()
    }
    first = next(iter(recipes.values()))[seeds[0]]
    what = f"{losses[0]} by gamma" if gammas else f"{len(losses)} losses"
    number = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return Study(f"{first.data}, {first.model}: {what}, {number}, {first.epochs} epochs", recipes)


def _recipe(dataset: str, model: str | None, settings: list[str]) -> Recipe:
    names = [name for name in PRESETS if preset(name).data == dataset]
    named = [name for name in names if model in (None, preset(name).model)]
    if named:
        return preset(named[0], settings)
    if names:  # another model than the paper's
        return preset(names[0], [f"model={model}", *settings])
    if dataset not in DATASETS and not Path(dataset).exists():
        known = [*DATASETS, "a folder", "an .npz file"]
        raise ValueError(f"data sets are {', '.join(known)}; got {dataset!r}{did_you_mean(dataset, DATASETS)}")
    return Recipe(data=dataset, model=model or "small_cnn").with_settings(settings)
