"""The most over-confident mistakes of a model."""

import math
from typing import Any

import numpy as np

from dualfocal.report.inputs import ReportInput

SHOWN = 12  # mistakes per input


def mistakes_of(source: ReportInput) -> dict[str, Any]:
    """Return the most confident mistakes, and how many mistakes there are."""
    scanned, names = source.scanned, source.class_names
    wrong = np.flatnonzero(~scanned.right)
    chosen = wrong[np.argsort(-scanned.certainty[wrong], kind="stable")[:SHOWN]]
    places = source.samples.position()[chosen]  # in the file
    items = [
        {
            "place": int(place),
            "true": names[int(source.samples.target[row])],
            "predicted": names[int(source.predicted[row])],
            "confidence": float(scanned.certainty[row]),
            "ofTrue": math.exp(-scanned.nll[row]),
        }
        for row, place in zip(chosen, places, strict=True)
    ]
    return {"items": items, "total": len(wrong)}
