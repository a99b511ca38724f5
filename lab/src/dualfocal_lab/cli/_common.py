"""Names, options and messages that the commands of the lab share."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dualfocal.cli.commands import is_out_of_memory, progress_bar, say
from dualfocal_lab.checks import AT_MOST

# Names for help texts and shell completion, because the registries import torch. A test checks that both agree.
LOSSES = (
    "cross_entropy",
    "label_smoothing",
    "brier",
    "mmce",
    "focal",
    "flsd",
    "inverse_focal",
    "dual_focal",
    "ada_focal",
    "ada_dual_focal",
    "kde_xe",
)
PAPER_LOSSES = ("cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal")
PRESETS = (
    "digits",
    "cifar10_resnet50",
    "cifar10_resnet110",
    "cifar10_wide_resnet26_10",
    "cifar10_densenet121",
    "cifar100_resnet50",
    "cifar100_resnet110",
    "cifar100_wide_resnet26_10",
    "cifar100_densenet121",
    "tiny_imagenet_resnet50",
    "20newsgroups_text_cnn",
)
DATA_SETS = (
    "cifar10",
    "cifar100",
    "svhn",
    "cifar10c",
    "tiny_imagenet",
    "20newsgroups",
    "20newsgroups_bydate",
    "glove",
    "digits",
)
MODELS = (
    "resnet50",
    "resnet110",
    "wide_resnet26_10",
    "densenet121",
    "tiny_resnet50",
    "text_cnn",
    "small_cnn",
    "resnet110_kde",
    "resnet110_sd",
    "wide_resnet34_10",
    "densenet40",
)
DEVICES = ("cpu", "cuda")
FIGURES = ("phi", "reliability", "corp", "metrics", "training", "logits", "rival")
FIELDS = ("dataset", "model", "method", "variant")  # by which the trainings of a table are selected
FIGURE_1 = (1.0, 0.3)  # gamma and C of the paper's Figure 1
Criterion = StrEnum("Criterion", ["nll", "ece"])  # how to choose gamma

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=AT_MOST["jobs"],
        help="Number of simultaneous trainings. [default: number of cores; 1 on a GPU]",
    ),
]


@contextmanager
def memory_remedy(remedy: str) -> Iterator[None]:
    """Add to an error of missing memory what needs less."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            error.add_note(remedy)
        raise


@contextmanager
def stopped_goes_on(err: Console) -> Iterator[None]:
    """After a signal that stops a training, say how to continue."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say(err, "dualfocal: stopped; run the same command again to continue")
        raise


def end_with(err: Console, problems: Collection[str]) -> None:
    """Print why trainings diverged, and exit with code 1 if there are any."""
    for problem in problems:
        say(err, f"dualfocal: {problem}")
    if problems:
        raise typer.Exit(1)


def training_bar(err: Console) -> AbstractContextManager[Callable[..., None]]:
    """Return a progress bar with elapsed and remaining time."""
    return progress_bar(err, "", *training_columns(), total=None)


def training_columns() -> list[ProgressColumn]:
    """Return the columns of a progress bar with elapsed and remaining time."""
    description, left = TextColumn("{task.description}"), TextColumn("left")
    return [description, BarColumn(), TimeElapsedColumn(), left, TimeRemainingColumn()]
