"""Reading predictions: every format gives the same tensors, and every unclear or damaged file a one-line error."""

import re
import sys
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
GROUPS = np.array(["a", "b", "b", "a"])
SEVERAL_SPLITS = r"holds several splits \(test, val\): .*--split"
FLOATS_RULE = "must be float16, bfloat16, float32, float64 and have at least one row"


def npz(tmp_path: Path, **arrays: np.ndarray) -> Path:
    np.savez(tmp_path / "file.npz", **arrays)
    return tmp_path / "file.npz"


def text(tmp_path: Path, content: str, encoding: str = "utf-8") -> Path:
    (tmp_path / "file.csv").write_bytes(content.encode(encoding))
    return tmp_path / "file.csv"


def parquet(tmp_path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), tmp_path / "file.parquet")
    return tmp_path / "file.parquet"


def refused(path: Path, **options: object) -> str:
    """The message of the error, less the file, which it has to name first, in one line."""
    with pytest.raises(PredictionsError) as caught:
        load_predictions(path, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def assert_same(got: Predictions, values: object, target: object, kind: str = "logits") -> None:
    torch.testing.assert_close(got.values, torch.as_tensor(values), rtol=0, atol=0)  # checks the dtype too
    torch.testing.assert_close(got.target, torch.as_tensor(target, dtype=torch.int64), rtol=0, atol=0)
    assert got.input == kind


# Formats


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_npz(tmp_path, dtype):
    got = load_predictions(npz(tmp_path, logits=LOGITS.astype(dtype), target=TARGET, site=GROUPS), group="site")
    assert_same(got, LOGITS.astype(dtype), TARGET)
    assert got.groups.tolist() == GROUPS.tolist()
    name = np.dtype(dtype).name
    assert got.taken == f"logits from 'logits' (4 x 3, {name}), labels from 'target', groups from 'site'"
    assert got.class_names is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_safetensors(tmp_path, dtype):
    values = torch.tensor(LOGITS).to(dtype)
    group = torch.tensor([True, False, False, True])
    save_file({"probs": values, "y": torch.tensor(TARGET), "old": group}, tmp_path / "file.safetensors")
    got = load_predictions(tmp_path / "file.safetensors", group="old")
    assert_same(got, values, TARGET, "probs")
    assert got.groups.dtype == bool
    assert got.groups.tolist() == [True, False, False, True]


@pytest.mark.parametrize(("mark", "start", "end"), [(",", "", "\n"), (";", "\ufeff", "\r\n"), ("\t", "", "\n")])
def test_csv(tmp_path, mark, start, end):
    rows = [["y", "logit_2", "site", "logit_0", "logit_1"]]  # in any order
    for i, (a, b, c) in enumerate(LOGITS.tolist()):
        rows.append([str(TARGET[i]), repr(c), GROUPS[i], repr(a), repr(b)])
    path = text(tmp_path, start + "".join(mark.join(row) + end for row in rows))
    got = load_predictions(path, group="site")
    assert_same(got, LOGITS, TARGET)
    assert got.groups.tolist() == GROUPS.tolist()
    assert got.class_names is None
    assert got.taken == (
        "logits from 3 columns 'logit_0' to 'logit_2' (4 x 3, float64), labels from 'y', groups from 'site'"
    )


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("within", [",", ";", "\t"])
def test_delimiters_within_quotes_are_none(tmp_path, mark, within):
    name = f'a""{within * 9}b'
    path = text(tmp_path, mark.join(['"p_' + name + '"', "p_c", "y\n1", "2", f'"{name}"\n']))
    got = load_predictions(path)
    assert_same(got, np.array([[1.0, 2.0]]), [0], "probs")
    assert got.class_names == (f'a"{within * 9}b', "c")


def test_csv_quotes_blank_lines_spaces_and_no_last_newline(tmp_path):
    path = text(tmp_path, '"y", p0 ,p1,note\n0,1,0,"a, ""b"""\n\n1, 0.25 ,0.75,#\n"1",0,1,"x\ny"\n 1 ,"0.5",0.5,z')
    got = load_predictions(path)
    assert_same(got, np.array([[1, 0], [0.25, 0.75], [0, 1], [0.5, 0.5]]), [0, 1, 1, 1], "probs")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_parquet_columns(tmp_path, dtype):
    x = LOGITS.astype(dtype)
    path = parquet(tmp_path, **{"logit.1": x[:, 1], "logit.0": x[:, 0], "logit.2": x[:, 2]}, y=TARGET, site=GROUPS)
    got = load_predictions(path, group="site")
    assert_same(got, x, TARGET)
    assert got.groups.tolist() == GROUPS.tolist()


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 3)])
def test_parquet_lists(tmp_path, kind):
    x = LOGITS.astype(np.float32)
    parts = [pa.array(part.tolist(), kind) for part in (x[:1], x[1:])]
    path = parquet(tmp_path, logits=pa.chunked_array(parts), y=TARGET)
    assert_same(load_predictions(path), x, TARGET)


def test_arrays_with_more_dimensions_and_one_score_per_sample(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    target = np.arange(8).reshape(2, 4) % 3
    assert_same(load_predictions(npz(tmp_path, logits=values, labels=target)), values, target)
    path = npz(tmp_path, y_prob=values[0, 0], y_true=target[1])
    assert_same(load_predictions(path), values[0, 0], target[1], "probs")
    assert_same(load_predictions(text(tmp_path, "prob,y\n0.5,1\n0.25,0\n")), np.array([0.5, 0.25]), [1, 0], "probs")
    assert_same(load_predictions(parquet(tmp_path, logit=[0.5, -1.0], y=[1, 0])), np.array([0.5, -1.0]), [1, 0])


def test_foreign_byte_order_and_fortran_order(tmp_path):
    path = npz(tmp_path, logits=np.asfortranarray(LOGITS.astype(">f4")), target=TARGET.astype(">i2"))
    assert_same(load_predictions(path), LOGITS.astype(np.float32), TARGET)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.uint16, np.uint32, np.uint64])
def test_labels_of_any_integer_type(tmp_path, dtype):
    target = (TARGET > 0).astype(dtype)
    assert_same(load_predictions(npz(tmp_path, logits=LOGITS, target=target)), LOGITS, target)
    save_file({"logits": torch.tensor(LOGITS), "y": torch.tensor(target)}, tmp_path / "file.safetensors")
    assert_same(load_predictions(tmp_path / "file.safetensors"), LOGITS, target)


# Finding


@pytest.mark.parametrize("label", ["target", "Targets", "label", "LABELS", "y", "y_true"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("logits", "logits"), ("Logit", "logits")]
    + [(name, "probs") for name in ("probs", "prob", "probabilities", "probability", "proba", "SoftMax")]
    + [(name, "probs") for name in ("y_prob", "y_proba")],
)
def test_usual_names(tmp_path, name, kind, label):
    got = load_predictions(npz(tmp_path, **{name: LOGITS, label: TARGET, "other": TARGET}))
    assert_same(got, LOGITS, TARGET, kind)
    assert f"from '{name}'" in got.taken
    assert f"labels from '{label}'" in got.taken


@pytest.mark.parametrize("name", ["scores", "predictions", "outputs", "preds", "x", "arr_0", "p"])
def test_unclear_names_are_never_guessed(tmp_path, name):
    probs = np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)
    path = npz(tmp_path, **{name: probs, "target": np.array([0, 1])})
    assert refused(path).startswith("holds no array with a usual name")
    assert "--logits NAME or --probs NAME" in refused(path)
    assert refused(path).endswith(f"(it holds: '{name}' (2 x 2, float32), 'target' (2, int64))")
    assert_same(load_predictions(path, probs=name), probs, [0, 1], "probs")
    assert_same(load_predictions(path, logits=name), probs, [0, 1], "logits")


def test_a_table_column_p_is_unclear_but_p0_and_p1_are_not(tmp_path):
    message = refused(parquet(tmp_path, p=[0.5, 0.25], y=[0, 1]))
    assert message.startswith("holds no column with a usual name")
    assert message.endswith("(it holds: 'p' (double), 'y' (int64))")
    assert_same(load_predictions(text(tmp_path, "P0,P1,y\n0.5,0.25,1\n")), np.array([[0.5, 0.25]]), [1], "probs")


def test_long_lists_of_columns_are_cut(tmp_path):
    header = ",".join(f"x{i}" for i in range(40))
    assert refused(text(tmp_path, header + "\n")).endswith("'x10', 'x11' and 28 more)")


def test_both_or_several_values(tmp_path):
    path = npz(tmp_path, logits=LOGITS, probs=-LOGITS, target=TARGET)
    assert refused(path).startswith("holds both 'logits' and 'probs':")
    assert_same(load_predictions(path, probs="probs"), -LOGITS, TARGET, "probs")
    assert_same(load_predictions(path, logits="logits"), LOGITS, TARGET)
    assert refused(path, probs="probs", logits="logits").startswith("give --logits or --probs, not both")
    path = npz(tmp_path, softmax=LOGITS, probs=LOGITS, target=TARGET)
    assert refused(path).startswith("holds both 'softmax' and 'probs':")
    path = text(tmp_path, "prob,prob_0,prob_1,y\n0.5,0.25,0.75,1\n")
    assert refused(path).startswith("holds both 'prob' and 'prob_0':")
    assert_same(load_predictions(path, probs="prob"), np.array([0.5]), [1], "probs")
    assert_same(load_predictions(path, probs="prob_"), np.array([[0.25, 0.75]]), [1], "probs")


def test_labels_missing_several_or_named(tmp_path):
    path = npz(tmp_path, logits=LOGITS, y=TARGET, label=2 - TARGET)
    assert re.match(r"holds several labels \('y', 'label'\): .*--target NAME \(it holds: ", refused(path))
    assert_same(load_predictions(path, target="label"), LOGITS, 2 - TARGET)
    message = refused(npz(tmp_path, logits=LOGITS))
    assert message.startswith("holds no labels with a usual name")
    assert message.endswith("--target NAME (it holds: 'logits' (4 x 3, float64))")


def test_given_names_that_are_not_there(tmp_path):
    path = npz(tmp_path, logits=LOGITS, target=TARGET)
    holds = "(it holds: 'logits' (4 x 3, float64), 'target' (4, int64))"
    for option in ("logits", "probs", "target", "group"):
        assert refused(path, **{option: "nope"}) == f"has no array 'nope' {holds}"
    path = text(tmp_path, "logit_0,logit_1,y\n1,2,0\n")
    for option in ("logits", "probs", "target", "group"):
        assert refused(path, **{option: "no"}) == "has no column 'no' (it holds: 'logit_0', 'logit_1', 'y')"


def test_one_array_is_not_two_things(tmp_path):
    path = npz(tmp_path, scores=LOGITS[:, 0], target=TARGET)
    assert refused(path, logits="scores", group="scores").startswith("'scores' cannot hold both logits and")
    path = text(tmp_path, "y,z\n0.5,1\n")
    assert refused(path, probs="y").startswith("holds no labels with a usual name")
    assert refused(path, probs="y", target="y").startswith("'y' cannot hold both probs and")


# Optional labels


def written(path: Path, columns: dict[str, np.ndarray]) -> Path:
    """The same content in any format; in a table, one column for each class."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".safetensors":
        save_file({name: torch.tensor(array) for name, array in columns.items()}, path)
    else:
        logits = columns["logits"]
        flat = {f"logit_{k}": logits[:, k] for k in range(3)} | {k: v for k, v in columns.items() if k != "logits"}
        if path.suffix == ".parquet":
            pq.write_table(pa.table(flat), path)
        else:
            rows = [
                ",".join(map(repr, row)) for row in zip(*(column.tolist() for column in flat.values()), strict=True)
            ]
            path.write_text("\n".join([",".join(flat), *rows]))
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".parquet"])
def test_optional_labels(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    got = load_predictions(written(path, {"logits": LOGITS}), labels=False)
    torch.testing.assert_close(got.values, torch.tensor(LOGITS), rtol=0, atol=0)
    assert (got.input, got.labels, got.groups) == ("logits", None, None)
    with pytest.raises(PredictionsError, match=r"file\.\w+: .*no usable labels: .*, no labels$"):
        _ = got.target
    assert got.taken.endswith(" (4 x 3, float64), no labels")
    assert refused(path).startswith("holds no labels with a usual name")
    assert refused(path, labels=False, target="y").startswith("has no ")

    got = load_predictions(written(path, {"logits": LOGITS, "y": TARGET, "other": 2 - TARGET}), labels=False)
    assert_same(got, LOGITS, TARGET)
    assert got.taken.endswith(" (4 x 3, float64), labels from 'y'")
    assert_same(load_predictions(path, labels=False, target="other"), LOGITS, 2 - TARGET)

    got = load_predictions(written(path, {"logits": LOGITS, "site": TARGET}), labels=False, group="site")
    assert got.labels is None
    assert got.groups.tolist() == TARGET.tolist()
    assert got.taken.endswith(", no labels, groups from 'site'")

    got = load_predictions(written(path, {"logits": LOGITS, "y": TARGET, "label": 2 - TARGET}), labels=False)
    assert got.labels is None
    which = "'label' or 'y'" if suffix == ".safetensors" else "'y' or 'label'"  # which sorts its names
    assert got.taken.endswith(f", no labels ({which}: choose one with --target)")
    assert refused(path).startswith("holds several labels ('")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("p0,p1,y\n0,1,0.5\n", "label 0.5 in line 2 is not a whole number"),
        ("p0,p1,y\n0,1,\n", "column 'y' is empty in line 2"),
        ("p_dog,p_cat,y\n0,1,bird\n", "label 'bird' in line 2 is none of the classes (dog, cat)"),
    ],
)
def test_optional_labels_that_cannot_be_used_are_none(tmp_path, content, why):
    path = text(tmp_path, content)
    got = load_predictions(path, labels=False)
    assert (got.values.tolist(), got.labels, got.label_name) == ([[0.0, 1.0]], None, None)
    assert f", no labels ('y' cannot be used: {why})" in got.taken
    assert refused(path) == why
    assert refused(path, labels=False, target="y") == why  # somebody wants these


def test_optional_labels_never_excuse_values(tmp_path):
    path = text(tmp_path, "p0,p1,y\nx,1,\n")
    assert refused(path, labels=False) == "column 'p0' must hold numbers, got 'x' in line 2"


def test_optional_labels_of_other_kinds(tmp_path):
    path = text(tmp_path, "p_dog,p_cat,y\n0,1,cat\n1,0,dog\n")
    assert load_predictions(path, labels=False).target.tolist() == [1, 0]
    got = load_predictions(text(tmp_path, "y,z\n0.5,1\n"), probs="y", labels=False)  # y is taken: it is no label
    assert (got.values.tolist(), got.labels) == ([0.5], None)
    path = npz(tmp_path, logits=LOGITS, y=TARGET[:3])
    why = "each row needs one label, got 'logits' (4 x 3, float64) and 'y' (3, int64)"
    assert load_predictions(path, labels=False).taken.endswith(f", no labels ('y' cannot be used: {why})")
    got = load_predictions(npz(tmp_path, logits=LOGITS, y=LOGITS, site=GROUPS), labels=False, group="site")
    assert (got.labels, got.groups.tolist()) == (None, GROUPS.tolist())
    assert "must be one-hot" in got.taken


def test_optional_labels_and_splits(tmp_path):
    path = npz(tmp_path, val_logits=LOGITS[:1], val_target=TARGET[:1], test_logits=LOGITS, ood_x=LOGITS)
    assert re.fullmatch(SEVERAL_SPLITS, refused(path, labels=False))
    assert_same(load_predictions(path, split="val", labels=False), LOGITS[:1], TARGET[:1])
    assert load_predictions(path, split="test", labels=False).labels is None
    path = npz(tmp_path, val_target=TARGET, x=LOGITS)
    assert_same(load_predictions(path, logits="x", labels=False), LOGITS, TARGET)
    path = npz(tmp_path, val_target=TARGET, test_target=TARGET, x=LOGITS)  # whose labels, nobody says: none
    assert load_predictions(path, logits="x", labels=False).labels is None
    assert re.fullmatch(SEVERAL_SPLITS, refused(path, logits="x"))


@pytest.mark.parametrize("labels", [True, False])
def test_values_are_checked_without_labels_too(tmp_path, labels):
    more = {"y": TARGET} if labels else {}
    rule = f"logits of 'logits' {FLOATS_RULE}"
    assert refused(npz(tmp_path, logits=np.array(0.5), **more), labels=labels) == f"{rule}, got (scalar, float64)"
    assert refused(npz(tmp_path, logits=LOGITS[:0], **more), labels=labels) == f"{rule}, got (0 x 3, float64)"


# Splits


@pytest.fixture
def two_splits(tmp_path):
    arrays = {"val_logits": LOGITS[:1], "val_target": TARGET[:1], "test_logits": LOGITS, "test_target": TARGET}
    arrays |= {"val_site": GROUPS[:1], "test_site": GROUPS, "val_x": -LOGITS[:1], "test_x": -LOGITS}
    return npz(tmp_path, **arrays)


def test_splits(two_splits):
    assert re.fullmatch(SEVERAL_SPLITS, refused(two_splits))
    assert_same(load_predictions(two_splits, split="val"), LOGITS[:1], TARGET[:1])
    got = load_predictions(two_splits, split="test", group="site")
    assert_same(got, LOGITS, TARGET)
    assert got.groups.tolist() == GROUPS.tolist()
    assert "from 'test_logits'" in got.taken
    assert refused(two_splits, split="train") == "has no split 'train' (it holds the splits test, val)"


def test_splits_with_given_names(two_splits):
    assert_same(load_predictions(two_splits, split="val", probs="x"), -LOGITS[:1], TARGET[:1], "probs")
    assert_same(load_predictions(two_splits, logits="test_x", target="test_target"), -LOGITS, TARGET)
    assert re.fullmatch(SEVERAL_SPLITS, refused(two_splits, logits="test_x"))


def test_only_split_and_unprefixed_names(tmp_path):
    assert_same(load_predictions(npz(tmp_path, ood_y_prob=LOGITS, ood_y_true=TARGET)), LOGITS, TARGET, "probs")
    path = npz(tmp_path, logits=LOGITS, target=TARGET, val_logits=LOGITS[:1], test_logits=LOGITS[:1])
    assert_same(load_predictions(path), LOGITS, TARGET)
    path = npz(tmp_path, y_prob=LOGITS, y_true=TARGET)  # "y" is no split
    holds = "(it holds: 'y_prob' (4 x 3, float64), 'y_true' (4, int64))"
    assert refused(path, split="test") == f"has no split 'test' {holds}"
    path = text(tmp_path, "logit_0,logit_1,y\n1,2,0\n")
    assert refused(path, split="test") == "a table has no splits, got --split test"


# Tables: classes


@pytest.mark.parametrize("mark", ["_", ".", "-", " ", ""])
@pytest.mark.parametrize("prefix", ["logit", "Probs", "proba", "p"])
def test_numbered_class_columns_are_sorted_as_numbers(tmp_path, prefix, mark):
    order = [10, 2, 0, 1, 9, 8, 7, 6, 5, 4, 3]
    header = ",".join(f"{prefix}{mark}{k}" for k in order)
    path = text(tmp_path, f"{header},y\n{','.join(str(k / 8) for k in order)},3\n")
    assert_same(load_predictions(path), np.arange(11)[None] / 8, [3], "logits" if prefix == "logit" else "probs")


def test_given_prefix(tmp_path):
    path = text(tmp_path, "score_1,score_0,score_x,y\n0.75,0.25,b,1\n")
    got = load_predictions(path, probs="score", group="score_x")  # which is then no class
    assert_same(got, np.array([[0.25, 0.75]]), [1], "probs")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("p0,p2", "classes must be numbered 0 to 1, one column each: class 1 has 0 columns .*"),
        ("p2,p3", "classes must be numbered 0 to 1, one column each: class 0 has 0 columns .*"),
        ("p1,p3", "classes must be numbered 1 to 2, one column each: class 2 has 0 columns .*"),
        ("p_0,p_1,p_01", "classes must be numbered 0 to 2, one column each: class 1 has 2 columns .*"),
        ("p_0,p_max,p_1", "all be numbered .*: 'p_max' does not fit; .*--probs p_0,p_1"),
        ("p_0,p_cat,p_dog cow", "all be numbered .*: 'p_0' does not fit; .*--probs 'p_cat,p_dog cow'"),
        ("p_-1,p_1", "all be numbered .*: 'p_-1' does not fit"),
        ("p_cat,p__cat", "holds both 'p_cat' and 'p__cat': .*--logits or --probs"),
        ("prob_1", "only one class column; .*--probs 'prob_1'"),
        ("p_cat,p_cat", "has more than one column 'p_cat'"),
    ],
)
def test_class_columns_that_do_not_fit(tmp_path, header, message):
    columns = header.count(",") + 1
    assert re.search(message + "$", refused(text(tmp_path, f"{header},y\n{'0.5,' * columns}0\n")))


def test_class_named_twice(tmp_path):
    path = text(tmp_path, "p_cat,p.cat,y\n0.5,0.5,cat\n")
    assert refused(path, probs="p").endswith(": 'p_cat' does not fit")


def test_class_names(tmp_path):
    got = load_predictions(text(tmp_path, "prob_dog,prob_black cat,y\n0.25,0.75,black cat\n1,0,dog\n"))
    assert_same(got, np.array([[0.25, 0.75], [1, 0]]), [1, 0], "probs")
    assert got.class_names == ("dog", "black cat")  # as in the file, not sorted
    labels = pa.array(["cat", "dog"]).dictionary_encode()
    got = load_predictions(parquet(tmp_path, prob_dog=[0.25, 1.0], prob_cat=[0.75, 0.0], label=labels))
    assert_same(got, np.array([[0.25, 0.75], [1, 0]]), [1, 0], "probs")
    assert got.class_names == ("dog", "cat")
    assert got.taken.endswith(", labels from 'label' by name (0 = dog, 1 = cat)")


def test_label_that_is_no_class(tmp_path):
    path = text(tmp_path, "p_dog,p_cat,y\n0,1,cat\n\n1,0,bird\n")
    assert refused(path) == "label 'bird' in line 4 is none of the classes (dog, cat)"
    path = text(tmp_path, "p_dog,p_cat,y\n0,1,Cat\n")
    assert refused(path) == "label 'Cat' in line 2 is none of the classes (dog, cat)"
    path = parquet(tmp_path, p_dog=[0.0, 1.0], p_cat=[1.0, 0.0], y=["cat", "1"])
    assert refused(path) == "label '1' in row 1 is none of the classes (dog, cat)"
    message = refused(text(tmp_path, "p0,p1,y\n0,1,cat\n"))
    assert message.startswith("label 'cat' in line 2 is not a class index: ")


def test_numbers_for_classes_whose_names_are_numbered_otherwise(tmp_path):
    path = text(tmp_path, "p_grade1,p_grade2,y\n0.5,0.5,1\n")
    assert refused(path).startswith("labels in 'y' are numbers")
    assert "(grade1, grade2)" in refused(path)
    assert load_predictions(text(tmp_path, "p_grade1,p_grade2,y\n0.5,0.5,grade1\n")).target.tolist() == [0]
    assert load_predictions(text(tmp_path, "p_class0,p_class1,y\n0.5,0.5,1\n")).target.tolist() == [1]


# Tables: labels, groups, fields


def test_labels_as_whole_floats_and_strings(tmp_path):
    assert load_predictions(text(tmp_path, "p0,p1,y\n0,1,1.0\n1,0,-100\n")).target.tolist() == [1, -100]
    message = "label 0.5 in line 3 is not a whole number"
    assert refused(text(tmp_path, "p0,p1,y\n0,1,1\n1,0,0.5\n")) == message
    assert load_predictions(parquet(tmp_path, logit=[0.5, 1.0], y=[1.0, 0.0])).target.tolist() == [1, 0]
    assert load_predictions(parquet(tmp_path, logit=[0.5, 1.0], y=["1", "0"])).target.tolist() == [1, 0]
    for bad in (0.5, float("nan"), float("inf")):
        message = f"label {bad} in row 1 is not a whole number"
        assert refused(parquet(tmp_path, logit=[0.5, 1.0], y=[1.0, bad])) == message


def test_groups_of_tables(tmp_path):
    groups = load_predictions(text(tmp_path, "p0,p1,y,g\n0,1,1,10\n1,0,0,-3\n"), group="g").groups
    assert groups.dtype == np.int64
    assert groups.tolist() == [10, -3]
    groups = load_predictions(text(tmp_path, "p0,p1,y,g\n0,1,1,007\n1,0,0,7\n"), group="g").groups
    assert groups.tolist() == ["007", "7"]
    groups = load_predictions(parquet(tmp_path, logit=[0.5, 1.0], y=[1, 0], g=[True, False]), group="g").groups
    assert groups.dtype == bool
    assert groups.tolist() == [True, False]
    got = load_predictions(parquet(tmp_path, logit=[0.5, 1.0], y=[1, 0]), group="y")  # groups may be the labels
    assert got.groups.tolist() == got.target.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("0.5,0.5,1\n0.25,0.75,0\n", "needs a header line with column names, got '0.5,0.5,1'"),
        ("\np0,p1,y\n0,1,1\n", "needs a header line with column names, got ''"),
        ("p0,p1,y\n", f"probs of 2 columns 'p0' to 'p1' {FLOATS_RULE}, got (0 x 2, float64)"),
        ("p0,p1,y\n0,1,1\n\n0,x1,1\n", "column 'p1' must hold numbers, got 'x1' in line 4"),
        (
            "p0;p1;y\n0,5;0,5;1\n",
            "column 'p0' must hold numbers, got '0,5' in line 2; write decimal points, not commas",
        ),
        ("p0,p1,y\n0,1,1\n,1,1\n", "column 'p0' must hold numbers, got '' in line 3"),
        ("p0,p1,y\n0,1,1\n0,1, \n", "column 'y' is empty in line 3"),
        ("p0,p1,y\n0,1,1\n0,1\n", "line 3 has 2 fields, but the header has 3"),
        ("name,p0,p1,y\nA,0,1,1\nB, C,0,1,1\n", "line 3 has 5 fields, but the header has 4"),
        ("p0,p1,y,y\n0,1,1,1\n", "has more than one column 'y'"),
    ],
)
def test_malformed_csv(tmp_path, content, message):
    assert refused(text(tmp_path, content)) == message


def test_csv_in_another_encoding(tmp_path):
    path = text(tmp_path, "p_café,p_thé,y\n0,1,thé\n", "latin-1")
    assert refused(path).startswith("cannot be read: 'utf-8' codec can't decode byte 0xe9")


def test_parquet_fields_that_cannot_be_used(tmp_path):
    assert refused(parquet(tmp_path, p0=[0.5, None], p1=[0.5, 1.0], y=[0, 1])) == "column 'p0' is empty in row 1"
    assert refused(parquet(tmp_path, logit=[0.5, 1.0], y=[None, 1])) == "column 'y' is empty in row 0"
    assert refused(parquet(tmp_path, logits=[[0.5, 1.0], None], y=[0, 1])) == "column 'logits' is empty in row 1"
    lists = [[0.5, 1.0], [1.0, 2.0], [0.5, None]]
    assert refused(parquet(tmp_path, logits=lists, y=[0, 1, 1])) == "column 'logits' is empty in row 2"
    message = "the lists of column 'logits' must have the same length, got 2 in row 0 and 1 in row 1"
    assert refused(parquet(tmp_path, logits=[[0.5, 1.0], [2.0]], y=[0, 1])) == message
    message = f"logits of 'logit' {FLOATS_RULE}, got (2, int64)"
    assert refused(parquet(tmp_path, logit=[1, 2], y=[0, 1])) == message


# Files and arrays that cannot be used


def test_missing_files_and_other_formats(tmp_path):
    assert refused(tmp_path / "none.npz") == "there is no such file"
    assert refused(tmp_path) == "must be a file, but is a folder"
    (tmp_path / "file.pkl").write_bytes(b"x")
    formats = "must be .npz, .safetensors, .csv, .tsv, .csv.gz, .tsv.gz, .parquet"
    assert refused(tmp_path / "file.pkl") == f"{formats}, got '.pkl'"
    (tmp_path / "file.npz.gz").write_bytes(b"x")
    assert refused(tmp_path / "file.npz.gz") == f"{formats}, got '.npz.gz'"


class Trap:
    """Unpickling it would raise something that no reader expects."""

    def __reduce__(self):
        return (sys.exit, ("unpickled",))


def test_pickles_are_never_loaded(tmp_path):
    path = npz(tmp_path, logits=np.array([Trap(), Trap()], dtype=object), target=np.array([0, 1]))
    assert refused(path).startswith("array 'logits' cannot be read: Object arrays cannot be loaded")
    assert "'logits' (unreadable), 'target' (2, int64)" in refused(path, group="nope")
    np.save(tmp_path / "file.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "file.npy").rename(tmp_path / "file.npz")
    assert refused(tmp_path / "file.npz").startswith("is not an .npz archive")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
@pytest.mark.parametrize("damage", ["empty", "noise", "truncated", "flipped"])
def test_damaged_files(tmp_path, suffix, damage):
    path = tmp_path / f"file{suffix}"
    if suffix == ".npz":
        npz(tmp_path, logits=LOGITS, target=TARGET)
    elif suffix == ".parquet":
        parquet(tmp_path, logit=LOGITS[:, 0], y=TARGET)
    else:
        save_file({"logits": torch.tensor(LOGITS), "target": torch.tensor(TARGET)}, path)
    good = path.read_bytes()
    start = 150 if suffix == ".npz" else 0  # an npz keeps its directory at the end: here an array is hit
    flipped = good[:start] + bytes(255 - byte for byte in good[start : start + 20]) + good[start + 20 :]
    bad = {"empty": b"", "noise": b"noise\n" * 100, "truncated": good[: len(good) // 2], "flipped": flipped}
    path.write_bytes(bad[damage])
    assert "cannot be read: " in (message := refused(path)) or message.startswith("is not an .npz archive")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    path = parquet(tmp_path, logit=[0.5], y=[1])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert refused(path) == 'cannot be read: needs pyarrow: pip install "dualfocal[parquet]"'


def test_types(tmp_path):
    message = f"logits of 'logits' {FLOATS_RULE}, got (4 x 1, int64)"
    assert refused(npz(tmp_path, logits=TARGET[:, None], y=TARGET)) == message
    message = f"probs of 'probs' {FLOATS_RULE}, got (4, bool)"
    assert refused(npz(tmp_path, probs=TARGET > 0, y=TARGET)) == message
    assert refused(npz(tmp_path, logits=LOGITS, y=TARGET * 1j)) == "labels must be integers, but 'y' is complex128"
    message = "groups must be strings, integers or booleans, but 'g' is float64"
    assert refused(npz(tmp_path, logits=LOGITS, y=TARGET, g=LOGITS[:, 0]), group="g") == message


def test_shapes(tmp_path):
    message = "each row needs one label, got 'logits' (4 x 3, float64) and 'y' (3, int64)"
    assert refused(npz(tmp_path, logits=LOGITS, y=TARGET[:3])) == message
    for group in (TARGET[:3], TARGET[:, None]):
        shape = " x ".join(map(str, group.shape))
        message = f"each row needs one group, got 'logits' (4 x 3, float64) and 'g' ({shape}, int64)"
        assert refused(npz(tmp_path, logits=LOGITS, y=TARGET, g=group), group="g") == message
