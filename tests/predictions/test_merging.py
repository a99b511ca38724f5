"""Merging files: the parts of one set of predictions, or an error."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dualfocal.predictions import Predictions, load_predictions, merge_predictions


def part(path: Path, rows: int) -> Predictions:
    path.write_text("prob_dog,prob_cat,y,site\n" + "".join(f"0.25,0.75,cat,{i}\n" for i in range(rows)))
    return load_predictions(path, group="site")


@pytest.fixture
def parts(tmp_path) -> dict[str, Predictions]:
    return {"a": part(tmp_path / "a.csv", 2), "b": part(tmp_path / "b.csv", 1)}


def test_parts_are_concatenated_in_order(parts):
    whole = merge_predictions(parts)
    assert torch.equal(whole.values, torch.tensor([[0.25, 0.75]] * 3, dtype=torch.float64))
    assert whole.target.tolist() == [1, 1, 1]
    assert whole.groups.tolist() == [0, 1, 0]
    assert (whole.input, whole.class_names, whole.path) == ("probs", ("dog", "cat"), None)
    assert whole.taken == f"2 files; of the first, {parts['a'].taken}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "logits"}, "--merge: a has probabilities from .*, but b has "),
        ({"values": torch.ones(1, 3)}, "--merge: a has probabilities from .*, but b has "),
        ({"class_names": ("cat", "dog")}, "--merge: b .*same classes.* a$"),
        ({"labels": None}, r"b\.csv: .*no usable labels"),
    ],
)
def test_parts_that_do_not_fit(parts, change, message):
    with pytest.raises(ValueError, match=message):
        merge_predictions(parts | {"b": replace(parts["b"], **change)})


def test_groups_are_those_of_the_parts(parts):
    parts = {name: replace(data, groups=np.array([name] * len(data.values))) for name, data in parts.items()}
    assert merge_predictions(parts).groups.tolist() == ["a", "a", "b"]
    assert merge_predictions({name: replace(data, groups=None) for name, data in parts.items()}).groups is None


def test_names_of_columns_and_of_class_1_are_those_of_the_parts(tmp_path):
    parts = {}
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("score,answer,site\n25,no,north\n75,yes,south\n")
        parts[name] = load_predictions(
            tmp_path / name, probs="score", target="answer", group="site", positive="yes", percent=True
        )
    whole, first = merge_predictions(parts), parts["a.csv"]
    assert whole.names_of_classes == ("not yes", "yes")
    assert (whole.columns, whole.label_name, whole.group_name) == (("score",), "answer", "site")
    assert whole.percent is first.percent is True


def test_rows_of_the_whole_are_not_those_of_the_first_file(parts):
    dropped = replace(parts["a"], kept=np.array([5, 7]), first_row=5)
    assert merge_predictions(parts | {"a": dropped}).row_of_file(2) == 2


def test_weights_and_clusters_are_those_of_the_parts(parts):
    parts["a"] = replace(parts["a"], weights=np.array([1.0, 3.0]), clusters=np.array(["x", "y"]))
    parts["b"] = replace(parts["b"], weights=np.array([0.5]), clusters=np.array(["x"]))
    whole = merge_predictions(parts)
    assert whole.weights.tolist() == [1.0, 3.0, 0.5]
    assert whole.clusters.tolist() == ["x", "y", "x"]
