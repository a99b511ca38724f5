"""Models by name."""

import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from dualfocal._checks import check_count, did_you_mean
from dualfocal.models.densenet import densenet40, densenet121
from dualfocal.models.preact_resnet import resnet110_kde, resnet110_sd, wide_resnet26_10, wide_resnet34_10
from dualfocal.models.resnet import resnet50, resnet110, tiny_resnet50
from dualfocal.models.small import TextCNN, small_cnn

# The nets of the main tables, a small one, then those of the comparison with KDE-XE. Each is a function with the
# keywords num_classes and in_channels, both with defaults.
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
    """A model with fresh weights, by its name in ``MODELS`` or from a factory of your own.

    Args:
        name: a key of ``MODELS``, or ``package.module:function``. The module may lie in the current directory. The
            function is called with ``num_classes``, and with ``in_channels`` if that is given and it names it.
        num_classes: width of the logits.
        in_channels: channels of the image, or width of the word vectors; ``None``: the factory's own default.

    Returns:
        The model, in training mode if it is one of ours.

    >>> sum(p.numel() for p in make_model("small_cnn", num_classes=10, in_channels=1).parameters())
    38282
    """
    if not isinstance(name, str):
        raise TypeError(f"a model is named by text, got a {type(name).__name__}: call a function of your own directly")
    sizes = {"num_classes": num_classes} | ({} if in_channels is None else {"in_channels": in_channels})
    for size, value in sizes.items():
        check_count(size, value)
    if name in MODELS:
        return MODELS[name](**sizes)
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python -m` does and a console script does not
    importlib.invalidate_caches()  # the file may be a moment old
    try:
        return _call(name, _load(name), sizes)
    finally:  # after the call: a factory may import late
        with suppress(ValueError):  # the user's own module may have removed it
            sys.path.remove(here)


def _load(name: str) -> Any:
    """The object that ``package.module:function`` names."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ValueError(
            f"there is no model {name!r}{did_you_mean(name, MODELS)}; there are: {', '.join(MODELS)}; "
            "a factory of your own is written package.module:function"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"model {name!r}: cannot import {module_name!r}, from {str(Path.cwd())!r} or installed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        raise ValueError(
            f"module {module_name!r} has no {attribute!r}, of model {name!r}{did_you_mean(attribute, vars(module))}"
        )
    return getattr(module, attribute)


def _call(name: str, factory: Any, sizes: dict[str, int]) -> nn.Module:
    if isinstance(factory, nn.Module) or not callable(factory):
        raise TypeError(f"{name!r} must be a function that makes a model, got a {type(factory).__name__}")
    signature = inspect.signature(factory)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    keywords = {name for name, kind in kinds.items() if kind in (kind.KEYWORD_ONLY, kind.POSITIONAL_OR_KEYWORD)}
    if "num_classes" not in keywords and inspect.Parameter.VAR_KEYWORD not in kinds.values():
        raise TypeError(f"{name!r} must take num_classes as a keyword; its signature is {signature}")
    # A **kwargs is likely to hand on num_classes, as torchvision's do, but not in_channels: that must be named.
    model = factory(**{key: value for key, value in sizes.items() if key in {"num_classes", *keywords}})
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name!r} must return a torch.nn.Module, got {type(model).__name__}")
    return model
