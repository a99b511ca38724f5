"""Prediction files: ``.npz``, ``.safetensors``, ``.csv`` and ``.parquet``. Never a pickle.

Which array or column holds logits, probabilities or labels follows from names: usual ones, given ones, or columns named
as the labels are. Where names are unclear, the error says which option settles it; whether values are logits or
probabilities is never guessed. Only structure is checked here: the metrics check NaN, ranges and sums. Rows are counted
from 0, as in the tensors, and the lines of a csv from 1.
"""

from dualfocal.predictions._formats import PredictionsError
from dualfocal.predictions.loading import Predictions, check_same_labels, load_predictions, merge_predictions
from dualfocal.predictions.saving import rewrite_predictions, save_predictions

__all__ = [
    "Predictions",
    "PredictionsError",
    "check_same_labels",
    "load_predictions",
    "merge_predictions",
    "rewrite_predictions",
    "save_predictions",
]
