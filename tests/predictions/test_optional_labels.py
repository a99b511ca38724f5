"""Predictions without labels: labels are read if they are clear, and never excuse wrong values."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from dualfocal.predictions import Predictions, PredictionsError, load_predictions

LOGITS = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5], [0.1, 0.2, 0.3], [9.0, 8.0, 7.0]])
TARGET = np.array([2, 1, 0, 0])
SITES = np.array(["a", "b", "b", "a"])
SEVERAL_SPLITS = r"holds several splits \(test, val\): .*--split"


def write(path: Path, **columns: np.ndarray) -> Path:
    """Write the same content in any format; in a table, with one column for each class."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return path
    if path.suffix == ".safetensors":
        save_file({name: torch.tensor(array) for name, array in columns.items()}, path)
        return path
    logits = columns.pop("logits")
    table = {f"logit_{k}": logits[:, k] for k in range(3)} | columns
    if path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        rows = zip(*(column.tolist() for column in table.values()), strict=True)
        path.write_text("\n".join([",".join(table), *(",".join(map(repr, row)) for row in rows)]))
    return path


def load(path: Path, **options: str) -> Predictions:
    return load_predictions(path, labels=False, **options)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".parquet"])
def test_labels_are_read_if_they_are_there_and_clear(tmp_path, refusal, suffix):
    path = write(tmp_path / f"file{suffix}", logits=LOGITS)
    data = load(path)
    assert torch.equal(data.values, torch.tensor(LOGITS))
    assert (data.input, data.labels, data.groups) == ("logits", None, None)
    assert data.taken.endswith(" (4 x 3, float64), no labels")
    with pytest.raises(PredictionsError, match=r"file\.\w+: .*no usable labels: .*, no labels$"):
        _ = data.target
    assert "no labels with a usual name" in refusal(path)
    assert refusal(path, labels=False, target="y").startswith("has no ")

    write(path, logits=LOGITS, y=TARGET, other=2 - TARGET)
    assert load(path).target.tolist() == TARGET.tolist()
    assert load(path).taken.endswith(" (4 x 3, float64), labels from 'y'")
    assert load(path, target="other").target.tolist() == (2 - TARGET).tolist()

    data = load(write(path, logits=LOGITS, site=TARGET), group="site")
    assert (data.labels, data.groups.tolist()) == (None, TARGET.tolist())
    assert data.taken.endswith(", no labels, groups from 'site'")

    data = load(write(path, logits=LOGITS, y=TARGET, label=2 - TARGET))
    assert data.labels is None
    both = "'label' or 'y'" if suffix == ".safetensors" else "'y' or 'label'"  # safetensors sorts its names
    assert data.taken.endswith(f", no labels ({both}: choose one with --target)")
    assert "several labels ('" in refusal(path)


def test_labels_that_cannot_be_used_are_left_out_unless_they_are_named(text_file, refusal):
    cases = {
        "p0,p1,y\n0,1,0.5\n": "label 0.5 in line 2 is not a whole number",
        "p0,p1,y\n0,1,\n": (
            "column 'y' is empty in line 2; 1 of 1 rows has empty cells: give --drop-missing to leave them out"
        ),
        "p_dog,p_cat,y\n0,1,bird\n": "label 'bird' in line 2 is none of the classes (dog, cat)",
    }
    for content, reason in cases.items():
        path = text_file(content)
        data = load(path)
        assert (data.values.tolist(), data.labels, data.label_name) == ([[0.0, 1.0]], None, None)
        assert f", no labels ('y' cannot be used: {reason}" in data.taken
        assert refusal(path) == refusal(path, labels=False, target="y")
        assert refusal(path).startswith(reason)


def test_labels_of_another_shape_are_left_out(npz, text_file):
    assert load(text_file("p_dog,p_cat,y\n0,1,cat\n1,0,dog\n")).target.tolist() == [1, 0]
    data = load(text_file("y,z\n0.5,1\n"), probs="y")  # y holds the values: it is no label
    assert (data.values.tolist(), data.labels) == ([0.5], None)
    assert re.search(r", no labels \('y' cannot be used: .*'y' \(3, ", load(npz(logits=LOGITS, y=TARGET[:3])).taken)
    data = load(npz(logits=LOGITS, y=LOGITS, site=SITES), group="site")
    assert (data.labels, data.groups.tolist()) == (None, SITES.tolist())
    assert "must be one-hot" in data.taken


def test_wrong_values_are_refused_with_and_without_labels(npz, text_file, refusal):
    message = refusal(text_file("p0,p1,y\nx,1,\n"), labels=False)
    assert message == "column 'p0' must hold numbers, got 'x' in line 2"
    for labels in ({"y": TARGET}, {}):
        for values, form in ((np.array(0.5), "scalar"), (LOGITS[:0], "0 x 3")):
            message = refusal(npz(logits=values, **labels), labels=bool(labels))
            assert re.search(rf"'logits' must be .*at least one row, got \({form}, float64\)", message)


def test_labels_of_splits(npz, refusal):
    path = npz(val_logits=LOGITS[:1], val_target=TARGET[:1], test_logits=LOGITS, ood_x=LOGITS)
    assert re.search(SEVERAL_SPLITS, refusal(path, labels=False))
    assert load(path, split="val").target.tolist() == [2]
    assert load(path, split="test").labels is None
    path = npz(val_target=TARGET, x=LOGITS)
    assert load(path, logits="x").target.tolist() == TARGET.tolist()
    path = npz(val_target=TARGET, test_target=TARGET, x=LOGITS)  # labels of an unknown split are left out
    assert load(path, logits="x").labels is None
    assert re.search(SEVERAL_SPLITS, refusal(path, logits="x"))
