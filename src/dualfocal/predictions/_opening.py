"""Open a prediction file with the files that options name."""

from dataclasses import replace
from pathlib import Path

from dualfocal.predictions._formats.interface import PredictionFile, PredictionsError
from dualfocal.predictions._formats.readers import JoinedFile, is_prediction_file, open_prediction_file
from dualfocal.predictions._names import VALUES, only_name, splits
from dualfocal.predictions._questions import NameOptions


def open_source(
    path: Path, options: NameOptions, default_split: str | None, max_memory: int | str | None
) -> tuple[PredictionFile, NameOptions]:
    """Open a file, with those that options name instead of arrays or columns.

    Returns:
        The file, and the names that options give, with the default split if the names of the file have splits.

    Raises:
        PredictionsError: options contradict each other, or a file cannot be opened.
    """
    logits, probs = options.logits, options.probs
    if logits is not None and probs is not None:
        raise PredictionsError(f"{path}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    if options.prediction is not None and options.confidence is None:
        raise PredictionsError(f"{path}: give --prediction and --confidence together")
    if options.confidence is not None and options.values is not None:
        raise PredictionsError(f"{path}: give --confidence without --logits and --probs")
    source = _with_files(open_prediction_file(path, max_memory), options)
    if options.split is None and splits(source.names, VALUES):
        options = replace(options, split=default_split)
    return source, options


def _with_files(source: PredictionFile, options: NameOptions) -> PredictionFile:
    """Add the files that options name instead of arrays or columns."""
    parts = {}
    for option in ("logits", "probs", "target", "group", "cluster", "weight"):
        text = getattr(options, option)
        if text is not None and text not in source.name_set and is_prediction_file(text):
            part = open_prediction_file(Path(text), source.max_memory)
            parts[text] = part, only_name(part, option)
    return JoinedFile(source, parts) if parts else source
