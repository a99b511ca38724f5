"""The most over-confident mistakes of a model."""

import math
from typing import Any

import numpy as np

from dualfocal.report.inputs import ReportInput

SHOWN = 12  # mistakes per input


def mistakes_of(source: ReportInput, ignore_index: int) -> dict[str, Any]:
    """Return the most confident mistakes, and how many mistakes there are."""
    scanned, names = source.scanned, source.class_names
    wrong = np.flatnonzero(~scanned.right)
    rows = wrong[np.argsort(-scanned.certainty[wrong], kind="stable")[:SHOWN]]
    places = np.flatnonzero(source.data.target.reshape(-1).numpy() != ignore_index)[rows]  # in the file
    items = [
        {
            "place": int(place),
            "true": names[int(source.rows.target[row])],
            "predicted": names[int(source.predicted[row])],
            "confidence": float(scanned.certainty[row]),
            "ofTrue": math.exp(-scanned.nll[row]),
        }
        for row, place in zip(rows, places, strict=True)
    ]
    return {"items": items, "total": len(wrong)}
