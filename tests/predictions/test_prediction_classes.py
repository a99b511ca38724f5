"""Which column is which class, and which class a label means: by name, by an option, or refused. Never swapped."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from dualfocal.predictions import PredictionsError, _tables, load_predictions

PROBS = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
CODES = np.array([0, 1, 2, 0])
ANIMALS = np.array(["cat", "dog", "emu"])


@pytest.fixture(params=["csv", "parquet"])
def table(request, tmp_path):
    """Writes a table, as pandas would, in each format."""

    def write(**columns: object) -> Path:
        path = tmp_path / f"file.{request.param}"
        if request.param == "parquet":
            pq.write_table(pa.table(columns), path)
            return path
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in [tuple(columns), *rows]))
        return path

    return write


def npz(tmp_path: Path, **arrays: np.ndarray) -> Path:
    np.savez(tmp_path / "file.npz", **arrays)
    return tmp_path / "file.npz"


def refused(path: Path, **options: object) -> str:
    with pytest.raises(PredictionsError) as caught:
        load_predictions(path, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).removeprefix(f"{path}: ")


def of_true_class(path: Path, **options: object) -> list[float]:
    """The probability of each row's label: what a swap of classes would change."""
    got = load_predictions(path, **options)
    values = torch.stack([1 - got.values, got.values], 1) if got.values.ndim == 1 else got.values
    return values.gather(1, got.target[:, None])[:, 0].tolist()


# Numbers and booleans for classes that have names


@pytest.mark.parametrize("names", [("True", "False"), ("False", "True"), ("TRUE", "FALSE"), ("true", "false")])
def test_booleans_go_by_name(table, names):
    p, y = np.array([0.75, 0.5, 0.25, 0.125]), np.array([True, False, False, True])
    columns = {f"prob_{text}": p if text.lower() == "true" else 1 - p for text in names}
    path = table(**columns, label=y)
    assert of_true_class(path) == [0.75, 0.5, 0.75, 0.125]
    got = load_predictions(path)
    assert got.class_names == names
    assert got.taken.endswith(f", labels from 'label' by name (0 = {names[0]}, 1 = {names[1]})")


def test_true_alone_is_not_true_and_false(table):
    path = table(prob_True=[0.25, 0.5], prob_maybe=[0.75, 0.5], label=[True, False])
    if path.suffix == ".csv":
        assert refused(path) == "label 'False' in line 3 is none of the classes (True, maybe)"
    else:
        assert load_predictions(path).target.tolist() == [1, 0]  # positions, the names being in order


def test_numbers_for_names_in_sorted_order_are_positions(table):
    path = table(**{f"prob_{text}": PROBS[:, k] for k, text in enumerate(ANIMALS)}, label=CODES)
    assert of_true_class(path) == [0.5, 0.75, 0.75, 1.0]
    taken = ", labels from 'label' by position (0 = cat, 1 = dog, 2 = emu)"
    assert load_predictions(path).taken.endswith(taken)


@pytest.mark.parametrize("codes", [CODES, CODES == 1])
def test_numbers_for_names_in_another_order_are_refused(table, codes):
    path = table(prob_cat=PROBS[:, 0], prob_emu=PROBS[:, 2], prob_dog=PROBS[:, 1], label=codes)
    if path.suffix == ".csv" and codes.dtype == bool:
        assert refused(path).endswith("is none of the classes (cat, emu, dog)")
        return
    message = refused(path)
    assert message.startswith("labels in 'label' are numbers")
    assert "(cat, emu, dog)" in message
    assert "--probs NAME,NAME,..." in message


def test_the_order_of_classes_can_be_said(table):
    path = table(prob_dog=PROBS[:, 1], prob_emu=PROBS[:, 2], prob_cat=PROBS[:, 0], label=CODES)
    assert of_true_class(path, probs="prob_cat,prob_dog,prob_emu") == [0.5, 0.75, 0.75, 1.0]
    got = load_predictions(path, probs="prob_dog, prob_emu, prob_cat")  # if they were numbered so
    assert of_true_class(path, probs="prob_dog, prob_emu, prob_cat") == [0.25, 0.125, 0.0, 0.0]
    assert got.class_names == ("dog", "emu", "cat")
    assert got.columns == ("prob_dog", "prob_emu", "prob_cat")
    assert got.taken.endswith("by position (0 = dog, 1 = emu, 2 = cat)")


def test_positions_are_clear_where_names_end_in_them(table):
    columns = {f"prob_class{k}": np.eye(12)[:, k] for k in range(12)}  # "class10" sorts before "class2"
    assert of_true_class(table(**columns, label=np.arange(12))) == [1.0] * 12


def test_only_labels_that_are_positions_are_unclear(table):
    path = table(prob_dog=[0.5, 0.25], prob_cat=[0.5, 0.75], label=[-100, -100])
    assert load_predictions(path).target.tolist() == [-100, -100]


def test_many_classes_are_cut_short(table):
    columns = {f"prob_{text}": PROBS[:, 0] for text in "abcdefghij"}
    taken = load_predictions(table(**columns, label=CODES)).taken
    assert taken.endswith("by position (0 = a, 1 = b, 2 = c, 3 = d, 4 = e, 5 = f, 6 = g, ..., 9 = j)")
    message = refused(table(**dict(reversed(columns.items())), label=CODES))
    assert "among the classes (j, i, h, g, f, e, d, ..., a)" in message


# Columns in a list


def test_list_of_columns(table):
    path = table(id=CODES, emu=PROBS[:, 2], cat=PROBS[:, 0], dog=PROBS[:, 1], label=ANIMALS[CODES])
    assert of_true_class(path, probs="cat,dog,emu") == of_true_class(path, probs="emu,dog,cat") == [0.5, 0.75, 0.75, 1]
    assert load_predictions(path, probs="cat,dog,emu").class_names == ("cat", "dog", "emu")
    assert load_predictions(path, logits="cat,dog,emu").input == "logits"
    for given, message in {
        "cat,dog,fox": "has no column 'fox' (it holds: ",
        "cat,": "has no column '' (it holds: ",
        "cat,dog,cat": "--probs must name each column once, got 'cat' twice",
        "cat,label": "'label' cannot hold both probs and labels",
        "": "--probs must name an array or column, got ''",
        " ": "--probs must name an array or column, got ' '",
    }.items():
        assert refused(path, probs=given, target="label").startswith(message)


@pytest.mark.parametrize(
    ("columns", "classes"),
    [
        (("prob_cat", "prob_cow"), ("cat", "cow")),
        (("cat", "cow"), ("cat", "cow")),
        (("p10", "p11"), ("10", "11")),
        (("out.b_1", "out.a_1"), ("b_1", "a_1")),
        (("x_", "x_a"), ("x_", "x_a")),
        (("p0", "p1"), None),
        (("p1", "p0"), ("1", "0")),
    ],
)
def test_classes_are_the_columns_less_what_they_share(table, columns, classes):
    path = table(**{name: [0.5] for name in columns}, label=[(classes or "01")[1]])
    got = load_predictions(path, probs=",".join(columns))
    assert (got.class_names, got.target.tolist()) == (classes, [1])


def test_a_column_with_a_comma_in_its_name(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text('"p_a,b",p_c,y\n0.25,0.75,"a,b"\n')
    assert of_true_class(path, probs='p_c,"p_a,b"') == [0.25]
    path.write_text('"a,b",y\n0.25,1\n')
    assert load_predictions(path, probs="a,b").values.tolist() == [0.25]  # one column of that name


def test_an_unnamed_index_is_no_column_of_probabilities(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text(",a,b,label\n0,0.5,0.5,a\n1,0.25,0.75,b\n")  # as pandas writes it
    assert refused(path, probs="").startswith("--probs must name")
    assert of_true_class(path) == [0.5, 0.75]


# Columns named as the labels


@pytest.mark.parametrize("names", [ANIMALS, ANIMALS[[2, 0, 1]], np.array(["0", "1", "2"]), np.array(["2", "0", "1"])])
def test_columns_named_as_the_labels(table, names):
    columns = dict(zip(names, PROBS.T, strict=True))
    path = table(id=CODES, **columns, label=names[CODES])
    assert of_true_class(path) == [0.5, 0.75, 0.75, 1.0]
    got = load_predictions(path)
    numbers = names[0].isdecimal()
    assert got.columns == (("0", "1", "2") if numbers else tuple(names))
    assert got.class_names == (None if numbers else tuple(names))
    assert "(4 x 3, float64), named like the labels, labels from 'label'" in got.taken


def test_columns_named_as_integers_and_booleans(table):
    path = table(**{"0": PROBS[:, 0], "1": PROBS[:, 1], "2": PROBS[:, 2]}, label=CODES)
    assert of_true_class(path) == [0.5, 0.75, 0.75, 1.0]
    path = table(**{"True": PROBS[:, 0], "False": 1 - PROBS[:, 0]}, label=CODES == 0)
    assert of_true_class(path) == [0.5, 0.875, 1.0, 1.0]


@pytest.mark.parametrize("case", ["a class without samples", "no probabilities", "a label without column", "no labels"])
def test_columns_that_may_be_something_else_are_not_taken(table, case):
    columns = dict(zip(ANIMALS, PROBS.T, strict=True))
    labels = ANIMALS[CODES]
    if case == "a class without samples":  # then cat and dog do not sum to 1
        labels = ANIMALS[CODES % 2]
    if case == "no probabilities":
        columns["cat"] = columns["cat"] * 2
    if case == "a label without column":
        labels = np.array(["cat", "dog", "emu", "fox"])
    path = table(**columns, **{"species" if case == "no labels" else "label": labels})
    message = refused(path, labels=case != "no labels")
    assert message.startswith("holds no column with a usual name")
    assert "--logits NAME or --probs NAME (for a table also NAME,NAME,..." in message


def test_text_in_a_column_named_as_a_label(table):
    path = table(cat=["x", "y"], dog=["x", "y"], label=["cat", "dog"])
    assert refused(path).startswith("holds no column with a usual name")


# Names of arrays


def test_labels_of_scikit_learn(tmp_path):
    got = load_predictions(npz(tmp_path, y_true=CODES, y_pred_proba=PROBS))
    assert got.taken == "probabilities from 'y_pred_proba' (4 x 3, float64), labels from 'y_true'"
    assert load_predictions(npz(tmp_path, y_test=CODES, y_proba=PROBS)).label_name == "y_test"
    got = load_predictions(npz(tmp_path, val_probs=PROBS, target=1 - CODES, val_target=CODES))
    assert got.label_name == "val_target"  # the split's own come first
    path = npz(tmp_path, val_probs=PROBS, target=CODES, test_x=PROBS)
    assert refused(path, split="val").startswith("holds no labels")  # a split that is given is meant


def test_names_of_another_split_are_refused(tmp_path):
    arrays = {"val_logits": PROBS, "val_target": CODES, "test_logits": PROBS, "test_target": CODES, "val_site": CODES}
    path = npz(tmp_path, **arrays)
    for option in ({"logits": "val_logits"}, {"target": "val_target"}, {"group": "val_site"}):
        name = next(iter(option.values()))
        message = refused(path, split="test", **option)
        assert message.startswith(f"{name!r} belongs to the split 'val'")
        assert message.endswith("'test'")
        load_predictions(path, split="val", **option)
    path = npz(tmp_path, **arrays, logits=-PROBS)
    assert load_predictions(path, logits="test_logits", split="test").columns == ("test_logits",)


@pytest.mark.parametrize("name", ["prob_0", "p0", "Probs.0", "y_prob-0"])
def test_the_score_of_class_0_is_not_that_of_class_1(table, name):
    one = name.replace("0", "1")
    path = table(**{name: [0.25, 0.5], one: [0.75, 0.5]}, label=[0, 1])
    rule = f"{name!r} is named like class 0"
    assert refused(path, probs=name).startswith(rule)
    assert f"--probs {one}, or rename {name!r}" in refused(path, probs=name)
    assert load_predictions(path, probs=one).values.tolist() == [0.75, 0.5]
    path = table(**{name: [0.25, 0.5]}, label=[0, 1])
    assert refused(path, probs=name).startswith(rule)
    path = table(model_0=[0.25, 0.5], model_1=[0.75, 0.5], label=[0, 1])  # is no class
    assert load_predictions(path, probs="model_0").values.tolist() == [0.25, 0.5]


# Labels


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_arrays_as_keras_has_them(tmp_path, dtype):
    scores, labels = np.array([[0.25], [0.75], [1.0]], np.float32), np.array([[0], [1], [1]], dtype)
    got = load_predictions(npz(tmp_path, y_prob=scores, y_true=labels))
    assert (got.values.tolist(), got.target.tolist()) == ([0.25, 0.75, 1.0], [0, 1, 1])
    assert got.target.dtype == torch.int64
    got = load_predictions(npz(tmp_path, y_prob=PROBS, y_true=CODES[:, None].astype(dtype)))
    assert got.target.tolist() == CODES.astype(dtype).tolist()
    assert got.values.shape == (4, 3)


def test_a_last_axis_of_1_that_is_one_of_the_samples(tmp_path):
    got = load_predictions(npz(tmp_path, logits=PROBS[:, :, None], y=CODES[:, None]))
    assert (got.values.shape, got.target.shape) == ((4, 3, 1), (4, 1))


def test_whole_floats_in_arrays(tmp_path):
    assert load_predictions(npz(tmp_path, logits=PROBS, y=CODES.astype(np.float32))).target.tolist() == [0, 1, 2, 0]
    path = npz(tmp_path, logits=PROBS, y=np.array([0, 1.5, 2, 0]))
    assert refused(path) == "label 1.5 in row 1 is not a whole number"
    save_file({"logits": torch.tensor(PROBS), "y": torch.tensor(CODES).bfloat16()}, tmp_path / "file.safetensors")
    assert load_predictions(tmp_path / "file.safetensors").target.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_one_hot(tmp_path, dtype):
    got = load_predictions(npz(tmp_path, y_prob=PROBS, y_true=np.eye(3, dtype=dtype)[CODES]))
    assert got.target.tolist() == CODES.tolist()
    assert got.taken.endswith(", labels from 'y_true' (one-hot)")
    got = load_predictions(npz(tmp_path, y_prob=PROBS[:, 0], y_true=np.eye(2, dtype=dtype)[CODES % 2]))
    assert got.target.tolist() == (CODES % 2).tolist()


def test_one_hot_lists_of_a_table(tmp_path):
    one_hot = list(np.eye(3)[CODES])
    for names in (["1", "2", "3"], ["cat", "dog", "emu"]):
        columns = {f"prob_{text}": PROBS[:, k] for k, text in enumerate(names)}
        pq.write_table(pa.table({**columns, "y": one_hot}), tmp_path / "file.parquet")
        assert of_true_class(tmp_path / "file.parquet") == [0.5, 0.75, 0.75, 1.0]
    columns = {"prob_dog": PROBS[:, 0], "prob_cat": PROBS[:, 1], "prob_emu": PROBS[:, 2]}
    pq.write_table(pa.table({**columns, "y": one_hot}), tmp_path / "file.parquet")
    assert refused(tmp_path / "file.parquet").startswith("labels in 'y' are numbers")


@pytest.mark.parametrize(
    ("row", "content"), [([0, 0, 0], "holds only 0"), ([1, 0, 1], "holds 1, 1"), ([0, 2, 0], "holds 2")]
)
def test_what_is_not_one_hot(tmp_path, row, content):
    labels = np.eye(3, dtype=np.int64)[CODES]
    labels[2] = row
    message = refused(npz(tmp_path, y_prob=PROBS, y=labels))
    assert "must be one-hot" in message
    assert message.endswith(f"row 2 of 'y' (4 x 3, int64) {content}")
    smooth = 0.9 * np.eye(3)[CODES] + 0.1 / 3
    assert refused(npz(tmp_path, y_prob=PROBS, y=smooth)).endswith(
        "row 0 of 'y' (4 x 3, float64) holds 0.933333, 0.0333333, 0.0333333"
    )


def test_text_beside_class_names(tmp_path):
    labels = ANIMALS[CODES]
    path = npz(tmp_path, probs=PROBS[:, ::-1], y=labels, class_names=ANIMALS[::-1])
    assert of_true_class(path) == [0.5, 0.75, 0.75, 1.0]
    assert load_predictions(path).taken.endswith(", labels from 'y' by name (0 = emu, 1 = dog, 2 = cat)")
    path = npz(tmp_path, probs=PROBS[:, 0], y=np.array(["yes", "no", "no", "yes"]), class_names=np.array(["no", "yes"]))
    assert of_true_class(path) == [0.5, 0.875, 1.0, 1.0]
    message = refused(npz(tmp_path, probs=PROBS, y=labels))
    assert message.startswith("label 'cat' in row 0 is not a class index: ")
    assert "'class_names'" in message
    path = npz(tmp_path, probs=PROBS, y=labels, class_names=np.array(["cat", "dog", "fox"]))
    assert refused(path) == "label 'emu' in row 2 is none of the classes (cat, dog, fox)"


def test_numbers_beside_class_names_are_positions(tmp_path):
    path = npz(tmp_path, probs=PROBS, y=CODES, class_names=ANIMALS[::-1])  # no column has a name here
    assert load_predictions(path).target.tolist() == CODES.tolist()


def test_numbers_as_text_beside_class_names_are_unclear(tmp_path):
    path = npz(tmp_path, probs=PROBS, y=CODES.astype(str), class_names=ANIMALS[::-1])
    assert refused(path).startswith("labels in 'y' are numbers")
    assert refused(path).endswith("write the labels as class names")


@pytest.mark.parametrize("words", [(False, True), ("false", "true"), ("FALSE", "TRUE")])
def test_true_and_false_of_one_score(table, words):
    path = table(score=[0.25, 0.75, 0.5], outcome=[words[0], words[1], words[1]])
    got = load_predictions(path, probs="score", target="outcome")
    assert got.target.tolist() == [0, 1, 1]


@pytest.mark.parametrize("words", [("no", "yes"), ("yes", "no"), (-1, 1), (1, 2)])
def test_the_label_of_class_1_can_be_said(table, words):
    path = table(score=[0.25, 0.75, 0.5], outcome=[words[0], words[1], words[1]])
    options = {"probs": "score", "target": "outcome"}
    for word, target in zip(words, ([1, 0, 0], [0, 1, 1]), strict=True):
        got = load_predictions(path, **options, positive=str(word))
        assert got.target.tolist() == target
        assert got.taken.endswith(f", labels from 'outcome', '{word}' as class 1")
    rule = "--positive must name one of two labels in 'outcome'"
    both = ", ".join(sorted(map(str, words)))
    assert refused(path, **options, positive="x") == f"{rule}, got 'x' for {both}"
    if "yes" in words:
        place = "line 2" if path.suffix == ".csv" else "row 0"
        message = refused(path, **options)
        assert message.startswith(f"label {words[0]!r} in {place} is not a class index: ")
        assert message.endswith("--positive (labels: no, yes)")


def test_positive_needs_one_score_and_two_labels(table):
    path = table(score=[0.25, 0.75, 0.5], y=["a", "b", "c"])
    assert refused(path, probs="score", positive="a").endswith("one of two labels in 'y', got 'a' for a, b, c")
    path = table(p_a=[0.25, 0.75], p_b=[0.75, 0.25], y=["a", "b"])
    assert refused(path, positive="a").startswith("--positive a needs one score per sample")


def test_columns_and_labels_from_1(table):
    columns = {f"prob_{k + 1}": PROBS[:, k] for k in (2, 0, 1)}
    path = table(**columns, label=CODES + 1)
    assert of_true_class(path) == [0.5, 0.75, 0.75, 1.0]
    got = load_predictions(path)
    assert got.class_names == ("1", "2", "3")
    assert got.columns == ("prob_1", "prob_2", "prob_3")
    assert got.taken.endswith(", labels from 'label' by number (1 to 3)")
    assert load_predictions(table(**columns, label=[1, -100, 3, 2])).target.tolist() == [0, -100, 2, 1]
    for label in (0, 4):
        message = refused(table(**columns, label=[1, label, 2, 3]))
        assert f"label {label} in " in message
        assert "is none of the classes (1, 2, 3)" in message
        assert message.endswith("do labels start at 0 and columns at 1?") == (label == 0)


# Text in other wrappings


CONTENT = 'p0\tp1\ty\tnote\n0.5\t0.5\t1\t"a\nb"\n0.25\t0.75\t0\tc\n'


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".csv.gz", ".tsv.gz", ".CSV.GZ"])
def test_text_tables(tmp_path, suffix):
    path = tmp_path / f"file.x{suffix}"
    packed = suffix.lower().endswith("gz")
    path.write_bytes(gzip.compress(CONTENT.encode()) if packed else CONTENT.encode())
    got = load_predictions(path, group="note")
    assert (got.values.tolist(), got.target.tolist()) == ([[0.5, 0.5], [0.25, 0.75]], [1, 0])
    assert got.groups.tolist() == ["a\nb", "c"]


def test_packed_text_that_cannot_be_used(tmp_path, monkeypatch):
    path = tmp_path / "file.csv.gz"
    path.write_bytes(b"p0,p1,y\n")
    assert refused(path).startswith("cannot be read: Not a gzipped file")
    path.write_bytes(gzip.compress(CONTENT.encode())[:-12])
    assert refused(path).startswith("cannot be read: ")
    path.write_bytes(gzip.compress(b"p0,p1,y\n0.5,x,1\n"))
    assert refused(path) == "column 'p1' must hold numbers, got 'x' in line 2"
    monkeypatch.setattr(_tables, "MOST_UNPACKED", 15)
    assert refused(path) == "holds more than 15 bytes of text: unpack it first"
