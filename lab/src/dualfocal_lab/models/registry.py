"""Models by name, and custom models."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from dualfocal.checks import check_count, did_you_mean
from dualfocal_lab.models.densenet import densenet40, densenet121
from dualfocal_lab.models.preact_resnet import resnet110_kde, resnet110_sd, wide_resnet26_10, wide_resnet34_10
from dualfocal_lab.models.resnet import resnet50, resnet110, tiny_resnet50
from dualfocal_lab.models.small import TextCNN, small_cnn
from dualfocal_lab.objects import current_folder_first, is_object_name, load_object

# Networks of the main tables, a small one, then those of the comparison with KDE-XE. All take the keyword arguments
# num_classes and in_channels, both with defaults.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet50": resnet50,
    "resnet110": resnet110,
    "wide_resnet26_10": wide_resnet26_10,
    "densenet121": densenet121,
    "tiny_resnet50": tiny_resnet50,
    "text_cnn": TextCNN,
    "small_cnn": small_cnn,
    "resnet110_kde": resnet110_kde,
    "resnet110_sd": resnet110_sd,
    "wide_resnet34_10": wide_resnet34_10,
    "densenet40": densenet40,
}


def make_model(name: str, *, num_classes: int, in_channels: int | None = None) -> nn.Module:
    """Create a model with new weights, by its name in ``MODELS`` or from a custom factory.

    Args:
        name: a key of ``MODELS``, or ``package.module:function`` for a custom factory, whose module may be in the
            current directory. The function is called with ``num_classes``, and with ``in_channels`` if that is given
            and the function has an argument of this name.
        num_classes: number of classes.
        in_channels: number of image channels, or dimension of the word vectors. Default: that of the factory.

    Returns:
        The model.

    Raises:
        ValueError: the name is unknown, or the module cannot be imported.
        TypeError: the custom factory cannot be called with ``num_classes``, or does not return a Module.

    >>> sum(p.numel() for p in make_model("small_cnn", num_classes=10, in_channels=1).parameters())
    38282
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got a {type(name).__name__}; call your own function directly")
    sizes = {"num_classes": num_classes} | ({} if in_channels is None else {"in_channels": in_channels})
    for size, value in sizes.items():
        check_count(size, value)
    if name in MODELS:
        return MODELS[name](**sizes)
    if not is_object_name(name):
        raise ValueError(
            f"unknown model {name!r}; choose from {', '.join(MODELS)}, or name a custom factory as "
            f"package.module:function{did_you_mean(name, MODELS)}"
        )
    with current_folder_first():  # also for the call, because a factory may import more
        return _call(name, load_object("model", name), sizes)


def _call(name: str, factory: Any, sizes: dict[str, int]) -> nn.Module:
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(f"{name!r} must be a function that returns a model, got a {type(factory).__name__}")
    signature = inspect.signature(factory)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    keywords = {name for name, kind in kinds.items() if kind in (kind.KEYWORD_ONLY, kind.POSITIONAL_OR_KEYWORD)}
    if "num_classes" not in keywords and inspect.Parameter.VAR_KEYWORD not in kinds.values():
        raise TypeError(f"{name!r} must accept num_classes as a keyword argument, but its signature is {signature}")
    # A **kwargs, as in torchvision, usually accepts num_classes, but not in_channels, which must be a named argument.
    model = factory(**{key: value for key, value in sizes.items() if key in {"num_classes", *keywords}})
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name!r} must return a torch.nn.Module, got {type(model).__name__}")
    return model
