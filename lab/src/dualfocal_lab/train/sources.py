"""The source files of the custom objects of a recipe, recorded with each session of a training."""

from itertools import pairwise
from typing import Any

from dualfocal.losses import LOSSES
from dualfocal_lab.data.registry import custom_function
from dualfocal_lab.models import MODELS
from dualfocal_lab.objects import is_object_name, source_of
from dualfocal_lab.runs import Recipe
from dualfocal_lab.runs.optimizers import OPTIMIZERS
from dualfocal_lab.train.optimizer import load_optimizer


def import_objects(recipe: Recipe) -> dict[str, dict[str, str | None]]:
    """Import the custom objects of a recipe, and check what can be checked without data.

    Returns:
        The qualified name and the SHA-256 of the source file of each object.

    Raises:
        ValueError: an object cannot be imported, or does not provide what it must.
    """
    names = {
        "data": custom_function(recipe.data),
        "model": None if recipe.model in MODELS else recipe.model,
        "loss": None if recipe.loss in LOSSES else recipe.loss,
        "optimizer": None if recipe.optimizer in OPTIMIZERS else recipe.optimizer,
    }
    sources = {kind: source_of(kind, name) for kind, name in names.items() if name and is_object_name(name)}
    if "loss" in sources:
        recipe.make_loss()
    if "optimizer" in sources:
        load_optimizer(recipe)
    return sources


def notes_on_sources(sessions: list[dict[str, Any]]) -> list[str]:
    """Return a note for each custom object whose source file changed between two sessions of a run."""
    notes = []
    for before, after in pairwise(sessions):
        for kind, source in after.get("sources", {}).items():
            earlier = before.get("sources", {}).get(kind, source)
            if earlier != source:
                notes.append(
                    f"the source file of {kind} {source['object']} changed before epoch {after['from_epoch']}: the "
                    f"SHA-256 was {_short(earlier)}, then {_short(source)}, so the run is of neither version alone"
                )
    return notes


def _short(source: dict[str, Any]) -> str:
    return str(source.get("sha256"))[:12]
