"""Options of the commands that read predictions, in panels of --help."""

from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualfocal.checks import AT_MOST, MAX_SEED, check_ignore_index

if TYPE_CHECKING:
    from dualfocal.predictions import Reading

Task = StrEnum("Task", ["multilabel"])  # what the target of a sample is, if not one class
Binary = StrEnum("Binary", ["top_label", "positive"])  # the confidence that a binary problem is about
FILES = (
    "Formats: .npz, .npy, .safetensors, .pt, .csv, .tsv, .jsonl (also gzipped), .parquet, .arrow, .feather, or a run "
    "folder. "
)

# Panels of options in --help.
IN_FILE, SAMPLES, INPUTS = "Where the predictions are", "What the samples are", "Other kinds of input"
CALIBRATION, STATISTICS, OUTPUT = "Calibrators", "Statistics", "Output"

Logits = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Array, column or column prefix of the logits; one column per class, separated by commas, in the order "
        "of the classes; or another file, such as logits.npy.",
        rich_help_panel=IN_FILE,
    ),
]
Probs = Annotated[
    str | None, typer.Option(metavar="NAME", help="The same, for probabilities.", rich_help_panel=IN_FILE)
]
Target = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Array or column of the labels, or another file.", rich_help_panel=IN_FILE),
]
Positive = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL",
        help="Label of class 1, for files with one score per sample and labels other than 0 and 1.",
        rich_help_panel=IN_FILE,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Split to read: the prefix in `val_logits`, `test_logits`, or a split of a run folder. "
        "[default for run folders: test; for `calibrate`: val]",
        rich_help_panel=IN_FILE,
    ),
]
Prediction = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of the predicted classes, if there are no probabilities of all classes; with --confidence.",
        rich_help_panel=IN_FILE,
    ),
]
Confidence = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of the confidences; without --prediction, --target says whether each prediction is right.",
        rich_help_panel=IN_FILE,
    ),
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Names of the classes in order, separated by commas, or a file with one name per line. For labels that "
        "are texts, if the file does not name the classes.",
        rich_help_panel=IN_FILE,
    ),
]
Percent = Annotated[
    bool, typer.Option("--percent", help="Probabilities are in percent, 0 to 100.", rich_help_panel=IN_FILE)
]
DropMissing = Annotated[
    bool,
    typer.Option(
        "--drop-missing", help="Leave out rows with NaN or empty cells, and say how many.", rich_help_panel=IN_FILE
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Refuse files that need more memory to be read, such as 8GB. [default: half of the free memory]",
        rich_help_panel=IN_FILE,
    ),
]
NumBins = Annotated[
    int,
    typer.Option(
        min=1, max=AT_MOST["num_bins"], help="Number of bins of the calibration errors.", rich_help_panel=STATISTICS
    ),
]
IgnoreIndex = Annotated[
    int,
    typer.Option(
        callback=check_ignore_index,
        help="Label of samples to leave out.",
        rich_help_panel=SAMPLES,
    ),
]
BinaryOption = Annotated[
    Binary | None,
    typer.Option(
        help="Binary problems: evaluate the confidence of the predicted class (top_label), or the probability of class "
        "1 (positive). Required for one score per sample.",
        rich_help_panel=SAMPLES,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column or array with the cluster of each sample (a patient, an image, a passage): samples of one cluster "
        "may depend on each other. [default: samples are independent; for dense predictions, each image is a cluster, "
        "and `none` treats pixels as independent]",
        rich_help_panel=SAMPLES,
    ),
]
WeightOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column or array with the weight of each sample (a survey weight, an importance weight): scores and tests "
        "are about the weighted population.",
        rich_help_panel=SAMPLES,
    ),
]
TaskOption = Annotated[
    Task | None,
    typer.Option(
        help="`multilabel`: a sample can have several labels. The target is a 2-D array of 0 and 1, or one column per "
        "label: `prob_cat`, `prob_dog`, ..., `target_cat`, `target_dog`, ...",
        rich_help_panel=SAMPLES,
    ),
]
Level = Annotated[
    float, typer.Option(min=0.5, max=0.999, help="Confidence level of intervals.", rich_help_panel=STATISTICS)
]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        max=MAX_SEED,
        help="Seed of the simulations behind noise floors, p-values and intervals.",
        rich_help_panel=STATISTICS,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print only JSON (fractions, not percent).", rich_help_panel=OUTPUT)
]

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Fit matrix and Dirichlet scaling even with fewer samples than parameters.",
        rich_help_panel=CALIBRATION,
    ),
]


def reading_from(context: typer.Context, **renamed: Any) -> "Reading":
    """Return the options of a command that say how to read and score predictions.

    Args:
        context: the command that runs. Its parameters with the name of a field of ``Reading`` are taken.
        renamed: fields whose option has another name in this command.
    """
    from dualfocal.predictions import Reading

    values = {**context.params, **renamed}
    names = [field.name for field in fields(Reading)]
    return Reading(**{name: values[name] for name in names if values.get(name) is not None})


def given_names(context: typer.Context) -> set[str]:
    """Return the names of the options that were given on the command line, such as ``"--group-by"``."""
    names = set()
    for parameter in context.command.params:
        assert parameter.name is not None
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            switched_off = context.params[parameter.name] is False and parameter.secondary_opts
            names.add((parameter.secondary_opts if switched_off else parameter.opts)[0])
    return names
