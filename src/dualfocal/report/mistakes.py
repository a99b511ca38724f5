"""The most over-confident mistakes of a model."""

from typing import Any

from dualfocal.report.inputs import ReportInput

SHOWN = 12  # mistakes per input


def mistakes_of(source: ReportInput, ignore_index: int) -> dict[str, Any]:
    """Return the most confident mistakes, and how many mistakes there are."""
    scanned, names = source.scanned, source.class_names
    assert scanned.nll is not None
    wrong = (~scanned.right).nonzero()[:, 0]
    rows = wrong[scanned.uncertainty[wrong].argsort(stable=True)[:SHOWN]]
    places = (source.data.target.reshape(-1) != ignore_index).nonzero()[rows, 0]  # in the file
    items = [
        {
            "place": int(place),
            "true": names[int(source.rows.target[row])],
            "predicted": names[int(source.predicted[row])],
            "confidence": float(1 / scanned.uncertainty[row]),
            "ofTrue": float((-scanned.nll[row]).exp()),
        }
        for row, place in zip(rows, places, strict=True)
    ]
    return {"items": items, "total": len(wrong)}
