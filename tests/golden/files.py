"""Reading and writing predictions: every format and kind of file, data frames, runs of formats to compare."""

from pathlib import Path
from typing import Any

import inputs
from values import Recording, Section

from dualfocal import calibrators, metrics, predictions

SINGLE = {"probs": "score", "target": "outcome"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"five.{suffix}": (f"five.{suffix}", {})
        for suffix in ("npz", "csv", "tsv", "csv.gz", "jsonl", "parquet", "feather", "arrow", "safetensors", "pt")
    },
    "five64": ("five64.npz", {}),
    "npy": ("logits.npy", {"target": "labels.npy"}),
    "half": ("half.safetensors", {}),
    "bfloat": ("bfloat.safetensors", {}),
    "probs": ("probs.npz", {}),
    "zeros": ("zeros.npz", {}),
    "words": ("words.csv", {"probs": ",".join(inputs.NAMES)}),
    "words-without-names": ("words.csv", {}),
    "named": ("named.npz", {"logits": "out", "target": "y"}),
    "split-val": ("split.npz", {"split": "val"}),
    "split-test": ("split.npz", {"split": "test"}),
    "group": ("five.csv", {"group": "hospital", "cluster": "patient", "weight": "weight"}),
    "confidence": ("confidence.csv", {"prediction": "prediction", "confidence": "confidence"}),
    "binary": ("binary.csv", SINGLE),
    "yes-percent": ("yes.csv", {**SINGLE, "positive": "yes", "percent": True}),
    "one-logit": ("binary_logit.npz", {}),
    "unlabelled": ("unlabelled.npz", {"labels": False}),
}


def content(read: predictions.Predictions) -> dict[str, Any]:
    """Return the arrays of predictions and what is known about them."""
    names = ("values", "input", "labels", "groups", "clusters", "weights", "class_names", "percent", "positive")
    return {name: getattr(read, name) for name in names}


def reading(rec: Recording) -> None:
    """`load_predictions` on every file; equal files, merged parts, multi-label files."""
    inputs.write_files()
    for label, (path, options) in CASES.items():
        rec.call(label, lambda p=path, o=options: content(predictions.load_predictions(p, **o)))
    parts = {f"part {i}": predictions.load_predictions(f"part{i}.npz") for i in (1, 2)}
    rec.put("merged", content(predictions.merge_predictions(parts)))
    read = rec.call("multilabel", predictions.load_multilabel_predictions, "labels.npz", cluster="patient")
    rec.call("multilabel/evaluation", metrics.evaluate, read.values, read.target, task="multilabel")


def writing(rec: Recording) -> None:
    """`save_predictions` and `rewrite_predictions` in every format that is written."""
    inputs.write_files()
    logits, target = inputs.tensors(*inputs.sample(100, 4, 140))
    for suffix in ("npz", "safetensors", "csv", "parquet"):
        path = Path(f"saved.{suffix}")
        predictions.save_predictions(path, logits.float(), input="logits", target=target)
        rec.put(f"save/{suffix}", content(predictions.load_predictions(path)))
    fitted = calibrators.VectorScaling().fit(*inputs.tensors(*inputs.sample(600, 5, 1)))
    for source, suffix in (
        ("five.csv", "csv"),
        ("five.parquet", "parquet"),
        ("five.csv", "parquet"),
        ("half.safetensors", "npz"),
    ):
        original = predictions.load_predictions(source)
        applied = calibrators.apply_calibrator(fitted, original.values, original.target)
        rec.put(f"apply/{source}-{suffix}", applied)
        path = Path(f"applied-{Path(source).suffix[1:]}.{suffix}")
        predictions.rewrite_predictions(path, original, applied.values)
        rec.file(f"written/{source}-{suffix}", path)


def data_frames(rec: Recording) -> None:
    """Data frames of pandas and polars instead of arrays."""
    import pandas
    import polars

    five, target = inputs.sample(200, 5, 141)
    columns = {f"class_{k}": five[:, k] for k in range(5)}
    for name, library in (("pandas", pandas), ("polars", polars)):
        frame, labels = library.DataFrame(columns), library.Series(target)
        rec.call(name, metrics.evaluate, frame, labels, inference=True, draws=200)


SECTIONS = {
    "reading": Section(reading),
    "writing": Section(writing),
    "data_frames": Section(data_frames, needs=("pandas", "polars")),
}
