"""`dualfocal evaluate` for files that are larger than the memory."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dualfocal.cli._common import progress_bar, say
from dualfocal.cli._evaluate.findings import Finding

if TYPE_CHECKING:
    from dualfocal.predictions import PredictionStream, Reading, TooLargeError

APPROXIMATED = "read in one pass; adaptive ECE and AURC are approximated"


def open_stream(
    err: Console, path: Path, reading: "Reading", error: "TooLargeError", needs_all_rows: Mapping[str, bool]
) -> "PredictionStream":
    """Open a file that is too large to be loaded, and say so.

    Args:
        err: console for messages.
        path: a prediction file or a run folder.
        reading: how to read it.
        error: why it cannot be loaded.
        needs_all_rows: options that need all rows at once, and whether they are given.

    Raises:
        TooLargeError: the format cannot be read in one pass.
        PredictionsError: an option needs all rows, or the names of the file are not clear.
    """
    from dualfocal.predictions import PredictionsError

    if not error.streamable:
        raise error
    for option, given in needs_all_rows.items():
        if given:
            raise PredictionsError(f"{error}; it cannot be read in one pass, because {option} needs all rows at once")
    stream = reading.stream(path)
    say(err, f"{path}: {error.problem}: {APPROXIMATED}")
    return stream


def evaluate_stream(
    err: Console, name: str, stream: "PredictionStream", reading: "Reading", *, inference: bool
) -> Finding:
    """Evaluate a file in one pass, with a progress bar; then say which columns were read."""
    reading.check_columns(next(iter(stream)), name)
    with progress_bar(err, "reading") as progress:
        sums = stream.sums(
            num_bins=reading.num_bins, ignore_index=reading.ignore_index, binary=reading.binary, progress=progress
        )
    say(err, f"{name}: {stream.taken}")
    evaluation = sums.evaluate(inference=inference, level=reading.level, seed=reading.seed)
    finding = Finding(name, stream.taken, evaluation, stream.class_names)
    if evaluation.nll == math.inf:
        finding.infinite_nll = "true classes have probability 0, or logits are too far apart to be summed"
    return finding
