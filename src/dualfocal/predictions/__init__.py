"""Predictions on disk: ``.npz``, ``.safetensors``, ``.csv``, ``.parquet`` or a run folder. Never a pickle.

What holds logits, probabilities or labels follows from names: usual ones, given ones, or columns named as the labels
are. Where they are unclear, the error says which option settles it; whether values are logits or probabilities is never
guessed. Only structure is checked here: NaN, ranges and sums are the metrics' business. Rows are counted from 0, as in
the tensors, and the lines of a csv from 1.
"""

from dualfocal.predictions._sources import PredictionsError
from dualfocal.predictions._writers import save_predictions
from dualfocal.predictions.loading import MaybeLabelled, Predictions, load_predictions

__all__ = ["MaybeLabelled", "Predictions", "PredictionsError", "load_predictions", "save_predictions"]
