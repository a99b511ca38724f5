"""The trainings that a table of the paper needs: a recipe for each method, model and data set."""

import dataclasses
import inspect
import json
from dataclasses import dataclass
from importlib import resources

from dualfocal.losses import LOSSES
from dualfocal_lab.paper.published import Cell, Table
from dualfocal_lab.runs import Recipe
from dualfocal_lab.runs.losses import NOT_OPTIONS
from dualfocal_lab.train.presets import EXCEPTIONS, GAMMA, images, texts

# In the authors' code the ablation's means are one number per batch.
RIVALS = {"mean2": "batch_mean2", "mean3": "batch_mean3", "mean_all": "batch_mean_all"}
KDE_STRENGTH = {"cifar10": 0.3, "cifar100": 0.5}
# Network -> milliseconds of a training step on one H200. benchmarks/step_times_gpu.py writes this file.
STEP_TIMES: dict[str, float] = json.loads(
    (resources.files("dualfocal_lab.paper") / "step_times.json").read_text("utf-8")
)["milliseconds"]
STEPS = {"cifar10": 352, "cifar100": 352, "tiny_imagenet": 704, "20newsgroups": 117}  # per epoch
TRAINED_BY = ("rival", "gamma")  # variants that need their own training; others are computed from the same run
# Table and method -> name -> settings of trainings that the paper does not have.
EXTRAS = {
    ("ece", "cross_entropy"): {f"decay {decay}": [f"weight_decay={decay}"] for decay in ("1e-4", "1e-3")},
    ("adafocal", "ada_focal"): {"switch": ["loss.variant=switch"]},
    ("adafocal", "ada_dual_focal"): {"working": ["loss.frozen=false"]},
    ("kde_xe", "dual_focal"): {"as run": ["model=resnet110"]},  # the larger network that the authors used
}


@dataclass(frozen=True)
class Training:
    """A model of a table; several cells may come from it."""

    data: str
    model: str
    method: str
    variant: str | None
    recipe: Recipe
    extra: bool = False  # not in the paper
    common: bool = False  # equal to the training without a variant, which other tables share

    @property
    def label(self) -> str:
        """Readable name, such as ``cifar10 resnet50 dual_focal 5``."""
        return " ".join(part for part in (self.data, self.model, self.method, self.variant) if part)

    @property
    def name(self) -> str:
        """Name of the runs; equal trainings of different tables have the same name."""
        return self.label.removesuffix(f" {self.variant}") if self.common else self.label

    @property
    def special(self) -> str:
        """The epochs or learning rate that the paper uses only for this training; empty if there are none."""
        exceptions = EXCEPTIONS.get((self.data, self.model, self.method), {})
        return ", ".join(f"{name} {value}" for name, value in exceptions.items() if name in ("epochs", "lr"))

    @property
    def hours(self) -> float | None:
        """Estimated hours on one H200, from measured steps (None: not measured)."""
        if self.model not in STEP_TIMES:
            return None
        return round(self.recipe.epochs * STEPS[self.data] * STEP_TIMES[self.model] / 3.6e6, 2)


def trainings(table: Table, *, epochs_scale: float = 1.0, extras: bool = False) -> dict[str, Training]:
    """Return the trainings of a table by name, in its order.

    Args:
        table: a table with misplaced cells corrected, see :meth:`~dualfocal_lab.paper.published.Table.as_meant`.
        epochs_scale: factor below 1 for a shorter schedule; the numbers are then not comparable with the paper's.
        extras: whether to add trainings that the paper does not have: AdaFocal and AdaDualFocal with working updates,
            cross-entropy in table 1 with weight decays other than 5e-4, and the network that the authors used for
            ResNet-110 in the comparison with KDE-XE.

    >>> from dualfocal_lab.paper.published import published
    >>> table1 = trainings(published("table1"))
    >>> len(table1), table1["cifar10 resnet110 dual_focal"].recipe.loss_options
    (70, {'gamma': 4.5})
    """
    if not 0 < epochs_scale <= 1:
        raise ValueError(f"epochs_scale must be above 0 and at most 1, got {epochs_scale:g}")
    by_name: dict[str, Training] = {}
    for cell in table.cells:
        variant = cell.variant if table.variant in TRAINED_BY else None
        recipe = _recipe(table, cell, variant)
        common = variant is not None and recipe == _recipe(table, cell, None)
        training = Training(cell.data, cell.model, cell.method, variant, recipe, common=common)
        by_name.setdefault(training.name, training)
    for training in list(by_name.values()) if extras else ():
        if training.data == "20newsgroups" or (table.name == "kde_xe" and training.model != "resnet110_kde"):
            continue
        for name, settings in EXTRAS.get((table.name, training.method), {}).items():
            recipe = training.recipe.with_settings(settings)
            more = dataclasses.replace(training, variant=name, recipe=recipe, extra=True, common=False)
            by_name[more.name] = more
    # The test split is logged for the figure of the test ECE over training; nothing is chosen by it.
    return {
        name: dataclasses.replace(
            training, recipe=dataclasses.replace(shortened(training.recipe, epochs_scale), test_each_epoch=True)
        )
        for name, training in by_name.items()
    }


def shortened(recipe: Recipe, scale: float) -> Recipe:
    """Return the recipe with epochs and milestones scaled.

    >>> short = shortened(images("cifar10", "resnet50"), 0.1)
    >>> short.epochs, short.milestones
    (35, (15, 25))
    """
    epochs = max(1, round(scale * recipe.epochs))
    milestones = sorted({max(1, round(scale * milestone)) for milestone in recipe.milestones})
    return dataclasses.replace(recipe, epochs=epochs, milestones=tuple(milestones))


def _recipe(table: Table, cell: Cell, variant: str | None) -> Recipe:
    if table.name == "kde_xe":
        return _kde_recipe(cell)
    recipe = texts(cell.method) if cell.data == "20newsgroups" else images(cell.data, cell.model, cell.method)
    if cell.data == "cifar100":  # as in the published code, see `dualfocal paper errata`
        recipe = recipe.with_settings(["data.published_test_mismatch=true"])
    if variant is None:
        return recipe
    changed = recipe.with_settings([f"loss.{table.variant}={RIVALS.get(variant, variant)}"])
    return recipe if with_defaults(changed) == with_defaults(recipe) else changed


def with_defaults(recipe: Recipe) -> Recipe:
    """Return the recipe with every option of the loss filled in, so that equivalent recipes are equal.

    >>> with_defaults(images("cifar10", "resnet50")).loss_options["rival"]
    'next'
    """
    parameters = inspect.signature(LOSSES[recipe.loss]).parameters
    options = {name: parameter.default for name, parameter in parameters.items() if name not in NOT_OPTIONS}
    return dataclasses.replace(recipe, loss_options=options | recipe.loss_options)


def _kde_recipe(cell: Cell) -> Recipe:
    """Return a recipe of the comparison with KDE-XE, as the authors ran it."""
    options = {"dual_focal": {"gamma": GAMMA[cell.data, "resnet110"]}, "kde_xe": {"strength": KDE_STRENGTH[cell.data]}}
    return Recipe(
        data=cell.data,
        data_options={"published_test_mismatch": True} if cell.data == "cifar100" else {},
        model=cell.model,
        loss=cell.method,
        loss_options=options.get(cell.method, {}),
        weight_decay=1e-4,
        epochs=200,
        milestones=(150,),
        seed=0,
    )
