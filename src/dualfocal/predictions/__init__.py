"""Load and save predictions, as arrays or tables. Pickles are never read.

Arrays and columns are found by name: usual names such as ``logits`` and ``target``, names given by the caller, or
columns named like the labels. If names are ambiguous, the error says which options decide. Values never decide between
logits and probabilities. They can only refuse: an array named ``logits`` whose rows are probabilities is an error, and
columns named like the labels are probabilities only if each row sums to 1. Otherwise only the structure is checked
here; the metrics check NaN, ranges and sums. In messages, rows are counted from 0, as in tensors, and lines of a text
from 1.
"""

from dualfocal.predictions._formats.interface import PredictionsError, TooLargeError
from dualfocal.predictions.alignment import check_same_labels, merge_predictions
from dualfocal.predictions.choices import ChoicePredictions, load_choices
from dualfocal.predictions.dense import DenseFolder, is_dense_folder, open_dense_folder
from dualfocal.predictions.loading import Predictions, load_predictions
from dualfocal.predictions.multilabel import load_multilabel_predictions
from dualfocal.predictions.reading import Reading, find_run_folders, is_finished_run, is_run_folder, predictions_file
from dualfocal.predictions.saving import rewrite_predictions, save_predictions
from dualfocal.predictions.streaming import PredictionStream, stream_predictions, sum_predictions

__all__ = [
    "ChoicePredictions",
    "DenseFolder",
    "PredictionStream",
    "Predictions",
    "PredictionsError",
    "Reading",
    "TooLargeError",
    "check_same_labels",
    "find_run_folders",
    "is_dense_folder",
    "is_finished_run",
    "is_run_folder",
    "load_choices",
    "load_multilabel_predictions",
    "load_predictions",
    "merge_predictions",
    "open_dense_folder",
    "predictions_file",
    "rewrite_predictions",
    "save_predictions",
    "stream_predictions",
    "sum_predictions",
]
