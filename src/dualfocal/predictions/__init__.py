"""Load and save predictions as ``.npz``, ``.safetensors``, ``.csv`` or ``.parquet``. Pickles are never read.

Arrays and columns are found by name: usual names such as ``logits`` and ``target``, names given by the caller, or
columns named like the labels. If names are ambiguous, the error says which option decides. Whether values are logits or
probabilities is never guessed. Only the structure is checked here; the metrics check NaN, ranges and sums. In messages,
rows are counted from 0, as in tensors, and lines of a csv from 1.
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
