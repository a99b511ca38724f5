"""Which column is which class, and which class a label means: by name, by an option, or refused. Never swapped."""

import gzip
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from dualfocal.predictions import load_predictions

PROBS = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
CODES = np.array([0, 1, 2, 0])
OF_CODES = [0.5, 0.75, 0.75, 1.0]  # the probability of each row's class
ANIMALS = np.array(["cat", "dog", "emu"])


@pytest.fixture
def tables(tmp_path):
    """Write a table as csv, as pandas would, and as parquet; returns both paths."""

    def write(**columns: object) -> list[Path]:
        paths = [tmp_path / "file.csv", tmp_path / "file.parquet"]
        rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
        paths[0].write_text("".join(",".join(map(str, row)) + "\n" for row in [tuple(columns), *rows]))
        pq.write_table(pa.table(columns), paths[1])
        return paths

    return write


def of_true_class(path: Path, **options: object) -> list[float]:
    """The probability of each row's label: a swap of classes would change it."""
    data = load_predictions(path, **options)
    values = torch.stack([1 - data.values, data.values], 1) if data.values.ndim == 1 else data.values
    return values.gather(1, data.target[:, None])[:, 0].tolist()


# Numbers and booleans for classes that have names


def test_booleans_go_by_name(tables):
    p, y = np.array([0.75, 0.5, 0.25, 0.125]), np.array([True, False, False, True])
    for names in (("True", "False"), ("False", "True"), ("TRUE", "FALSE"), ("true", "false")):
        columns = {f"prob_{text}": p if text.lower() == "true" else 1 - p for text in names}
        for path in tables(**columns, label=y):
            assert of_true_class(path) == [0.75, 0.5, 0.75, 0.125], (names, path)
            data = load_predictions(path)
            assert data.class_names == names
            assert data.taken.endswith(f", labels from 'label' by name (0 = {names[0]}, 1 = {names[1]})")


def test_true_alone_is_not_true_and_false(tables, refusal):
    text, parquet = tables(prob_True=[0.25, 0.5], prob_maybe=[0.75, 0.5], label=[True, False])
    assert re.search(r"label 'False' in line 3 .*none of the classes \(True, maybe\)", refusal(text))
    assert load_predictions(parquet).target.tolist() == [1, 0]  # positions, as the names are in order


def test_numbers_for_names_are_positions_only_in_sorted_order(tables, refusal):
    for path in tables(**{f"prob_{text}": PROBS[:, k] for k, text in enumerate(ANIMALS)}, label=CODES):
        assert of_true_class(path) == OF_CODES
        origin = ", labels from 'label' by position (0 = cat, 1 = dog, 2 = emu)"
        assert load_predictions(path).taken.endswith(origin)
    words = r"labels in 'label' are numbers.*\(cat, emu, dog\).*--probs NAME,NAME,\.\.\."
    for codes in (CODES, CODES == 1):
        for path in tables(prob_cat=PROBS[:, 0], prob_emu=PROBS[:, 2], prob_dog=PROBS[:, 1], label=codes):
            texts = path.suffix == ".csv" and codes.dtype == bool  # "True" and "False"
            assert re.search(r"none of the classes \(cat, emu, dog\)" if texts else words, refusal(path)), path
    for path in tables(prob_dog=[0.5, 0.25], prob_cat=[0.5, 0.75], label=[-100, -100]):  # no position
        assert load_predictions(path).target.tolist() == [-100, -100]
    columns = {f"prob_class{k}": np.eye(12)[:, k] for k in range(12)}  # "class10" sorts before "class2"
    for path in tables(**columns, label=np.arange(12)):
        assert of_true_class(path) == [1.0] * 12


def test_an_option_gives_the_order_of_classes(tables):
    for path in tables(prob_dog=PROBS[:, 1], prob_emu=PROBS[:, 2], prob_cat=PROBS[:, 0], label=CODES):
        assert of_true_class(path, probs="prob_cat,prob_dog,prob_emu") == OF_CODES
        assert of_true_class(path, probs="prob_dog, prob_emu, prob_cat") == [0.25, 0.125, 0.0, 0.0]
        data = load_predictions(path, probs="prob_dog, prob_emu, prob_cat")
        assert data.class_names == ("dog", "emu", "cat")
        assert data.columns == ("prob_dog", "prob_emu", "prob_cat")
        assert data.taken.endswith("by position (0 = dog, 1 = emu, 2 = cat)")


def test_long_lists_of_classes_are_cut(tables, refusal):
    columns = {f"prob_{text}": PROBS[:, 0] for text in "abcdefghij"}
    for path in tables(**columns, label=CODES):
        origin = load_predictions(path).taken
        assert origin.endswith("by position (0 = a, 1 = b, 2 = c, 3 = d, 4 = e, 5 = f, 6 = g, ..., 9 = j)")
    for path in tables(**dict(reversed(columns.items())), label=CODES):
        assert "(j, i, h, g, f, e, d, ..., a)" in refusal(path)


# Columns in a list


def test_list_of_columns(tables, refusal):
    refused = {
        "cat,dog,fox": "has no column 'fox'",
        "cat,": "has no column ''",
        "cat,dog,cat": "each column once, got 'cat' twice",
        "cat,label": "'label' cannot hold both probs and labels",
        "": "--probs must name an array or column, got ''",
        " ": "--probs must name an array or column, got ' '",
    }
    for path in tables(id=CODES, emu=PROBS[:, 2], cat=PROBS[:, 0], dog=PROBS[:, 1], label=ANIMALS[CODES]):
        assert of_true_class(path, probs="cat,dog,emu") == of_true_class(path, probs="emu,dog,cat") == OF_CODES
        assert load_predictions(path, probs="cat,dog,emu").class_names == ("cat", "dog", "emu")
        assert load_predictions(path, logits="cat,dog,emu").input == "logits"
        for names, words in refused.items():
            assert words in refusal(path, probs=names, target="label"), names


def test_class_names_are_the_columns_without_their_common_prefix(tables):
    cases = {
        ("prob_cat", "prob_cow"): ("cat", "cow"),
        ("cat", "cow"): ("cat", "cow"),
        ("p10", "p11"): ("10", "11"),
        ("out.b_1", "out.a_1"): ("b_1", "a_1"),
        ("x_", "x_a"): ("x_", "x_a"),
        ("p0", "p1"): None,
        ("p1", "p0"): ("1", "0"),
    }
    for columns, classes in cases.items():
        for path in tables(**{name: [0.5] for name in columns}, label=[(classes or "01")[1]]):
            data = load_predictions(path, probs=",".join(columns))
            assert (data.class_names, data.target.tolist()) == (classes, [1]), columns


def test_column_names_with_a_comma_and_an_unnamed_index(text_file, refusal):
    assert of_true_class(text_file('"p_a,b",p_c,y\n0.25,0.75,"a,b"\n'), probs='p_c,"p_a,b"') == [0.25]
    assert load_predictions(text_file('"a,b",y\n0.25,1\n'), probs="a,b").values.tolist() == [0.25]  # one column
    path = text_file(",a,b,label\n0,0.5,0.5,a\n1,0.25,0.75,b\n")  # the index of pandas
    assert "--probs must name" in refusal(path, probs="")
    assert of_true_class(path) == [0.5, 0.75]


# Columns named like the labels


def test_columns_named_like_the_labels(tables):
    for names in (ANIMALS, ANIMALS[[2, 0, 1]], np.array(["0", "1", "2"]), np.array(["2", "0", "1"])):
        for path in tables(id=CODES, **dict(zip(names, PROBS.T, strict=True)), label=names[CODES]):
            assert of_true_class(path) == OF_CODES, (names, path)
            data = load_predictions(path)
            numbers = names[0].isdecimal()
            assert data.columns == (("0", "1", "2") if numbers else tuple(names))
            assert data.class_names == (None if numbers else tuple(names))
            assert "(4 x 3, float64), named like the labels, labels from 'label'" in data.taken
    for path in tables(**{"0": PROBS[:, 0], "1": PROBS[:, 1], "2": PROBS[:, 2]}, label=CODES):
        assert of_true_class(path) == OF_CODES
    for path in tables(**{"True": PROBS[:, 0], "False": 1 - PROBS[:, 0]}, label=CODES == 0):
        assert of_true_class(path) == [0.5, 0.875, 1.0, 1.0]


def test_columns_that_may_be_something_else_are_not_taken(tables, refusal):
    columns = dict(zip(ANIMALS, PROBS.T, strict=True))
    cases = {
        "a class has no samples": columns | {"label": ANIMALS[CODES % 2]},  # cat and dog do not sum to 1
        "no probabilities": columns | {"cat": 2 * columns["cat"], "label": ANIMALS[CODES]},
        "a label without column": columns | {"label": np.array(["cat", "dog", "emu", "fox"])},
        "no labels": columns | {"species": ANIMALS[CODES]},
        "text": {"cat": ["x", "y"], "dog": ["x", "y"], "label": ["cat", "dog"]},
    }
    for case, content in cases.items():
        for path in tables(**content):
            message = refusal(path, labels=case != "no labels")
            assert re.search("no column with a usual name.*--logits NAME or --probs NAME .*NAME,NAME", message), case


# Names of arrays


def test_labels_of_scikit_learn(npz, refusal):
    data = load_predictions(npz(y_true=CODES, y_pred_proba=PROBS))
    assert data.taken == "probabilities from 'y_pred_proba' (4 x 3, float64), labels from 'y_true'"
    assert load_predictions(npz(y_test=CODES, y_proba=PROBS)).label_name == "y_test"
    data = load_predictions(npz(val_probs=PROBS, target=1 - CODES, val_target=CODES))
    assert data.label_name == "val_target"  # labels of the split come first
    path = npz(val_probs=PROBS, target=CODES, test_x=PROBS)
    assert "holds no labels" in refusal(path, split="val")  # only labels of a given split count


def test_names_of_another_split_are_refused(npz, refusal):
    arrays = {
        "val_logits": 2 * PROBS,
        "val_target": CODES,
        "test_logits": 2 * PROBS,
        "test_target": CODES,
        "val_site": CODES,
    }
    path = npz(**arrays)
    for option, name in (("logits", "val_logits"), ("target", "val_target"), ("group", "val_site")):
        message = refusal(path, split="test", **{option: name})
        assert re.search(f"{name!r} belongs to the split 'val'.*'test'$", message)
        assert load_predictions(path, split="val", **{option: name}).columns == ("val_logits",)
    path = npz(**arrays, logits=-PROBS)
    assert load_predictions(path, logits="test_logits", split="test").columns == ("test_logits",)


def test_the_score_of_class_0_is_not_that_of_class_1(tables, refusal):
    for name in ("prob_0", "p0", "Probs.0", "y_prob-0"):
        one = name.replace("0", "1")
        words = f"{name!r} is named like class 0.*--probs {one}, or rename {name!r}"
        for path in tables(**{name: [0.25, 0.5], one: [0.75, 0.5]}, label=[0, 1]):
            assert re.search(words, refusal(path, probs=name))
            assert load_predictions(path, probs=one).values.tolist() == [0.75, 0.5]
        for path in tables(**{name: [0.25, 0.5]}, label=[0, 1]):
            assert re.search(words, refusal(path, probs=name))
    for path in tables(model_0=[0.25, 0.5], model_1=[0.75, 0.5], label=[0, 1]):  # names of models, not of classes
        assert load_predictions(path, probs="model_0").values.tolist() == [0.25, 0.5]


# Labels


def test_arrays_in_the_layout_of_keras(npz):
    scores = np.array([[0.25], [0.75], [1.0]], np.float32)
    for dtype in (np.float32, np.float64, np.int64, np.uint8, np.bool_):
        data = load_predictions(npz(y_prob=scores, y_true=np.array([[0], [1], [1]], dtype)))
        assert (data.values.tolist(), data.target.tolist()) == ([0.25, 0.75, 1.0], [0, 1, 1])
        assert data.target.dtype == torch.int64
        data = load_predictions(npz(y_prob=PROBS, y_true=CODES[:, None].astype(dtype)))
        assert data.target.tolist() == CODES.astype(dtype).tolist()
        assert data.values.shape == (4, 3)
    data = load_predictions(npz(logits=2 * PROBS[:, :, None], y=CODES[:, None]))  # a last axis of the samples
    assert (data.values.shape, data.target.shape) == ((4, 3, 1), (4, 1))


def test_whole_floats_in_arrays(npz, tmp_path, refusal):
    assert load_predictions(npz(logits=2 * PROBS, y=CODES.astype(np.float32))).target.tolist() == [0, 1, 2, 0]
    assert "label 1.5 in row 1 is not a whole number" in refusal(npz(logits=PROBS, y=np.array([0, 1.5, 2, 0])))
    save_file({"logits": torch.tensor(2 * PROBS), "y": torch.tensor(CODES).bfloat16()}, tmp_path / "file.safetensors")
    assert load_predictions(tmp_path / "file.safetensors").target.tolist() == [0, 1, 2, 0]


def test_probabilities_named_logits_are_refused_unless_they_are_called_logits(npz, text_file, refusal):
    assert "--probs logit_0,logit_1, otherwise" in refusal(text_file("logit_0,logit_1,y\n0.5,0.5,1\n1,0,0\n"))
    path = npz(logits=PROBS, y=CODES)
    assert re.search("'logits' must hold logits.*--probs logits.*--logits logits", refusal(path))
    assert re.search("'logits' must hold logits", refusal(path, labels=False))
    dense = npz(logits=PROBS[:, :, None].repeat(2, 2), y=CODES[:, None].repeat(2, 1))  # two pixels each
    assert re.search("'logits' must hold logits", refusal(dense))
    one_score = text_file("logit,y\n0.5,1\n1,0\n")
    assert "all values lie in [0, 1]: if they are probabilities, give --probs logit" in refusal(one_score)
    assert load_predictions(one_score, logits="logit").input == "logits"
    assert load_predictions(path, logits="logits").input == "logits"
    assert load_predictions(path, probs="logits").input == "probs"


def test_one_hot(npz, parquet, refusal):
    for dtype in (np.float32, np.int64, np.bool_):
        data = load_predictions(npz(y_prob=PROBS, y_true=np.eye(3, dtype=dtype)[CODES]))
        assert data.target.tolist() == CODES.tolist()
        assert data.taken.endswith(", labels from 'y_true' (one-hot)")
        data = load_predictions(npz(y_prob=PROBS[:, 0], y_true=np.eye(2, dtype=dtype)[CODES % 2]))
        assert data.target.tolist() == (CODES % 2).tolist()
    lists = list(np.eye(3)[CODES])
    for names in (["1", "2", "3"], ["cat", "dog", "emu"]):
        path = parquet(**{f"prob_{text}": PROBS[:, k] for k, text in enumerate(names)}, y=lists)
        assert of_true_class(path) == OF_CODES
    path = parquet(prob_dog=PROBS[:, 0], prob_cat=PROBS[:, 1], prob_emu=PROBS[:, 2], y=lists)
    assert "labels in 'y' are numbers" in refusal(path)


def test_rows_that_are_not_one_hot_are_refused(npz, refusal):
    for row, words in (([0, 0, 0], "holds only 0"), ([1, 0, 1], "holds 1, 1"), ([0, 2, 0], "holds 2")):
        labels = np.eye(3, dtype=np.int64)[CODES]
        labels[2] = row
        message = refusal(npz(y_prob=PROBS, y=labels))
        assert re.search(rf"must be one-hot.*row 2 of 'y' \(4 x 3, int64\) {words}(;|$)", message)
        assert ("--task multilabel" in message) == (words != "holds 2")
    smooth = 0.9 * np.eye(3)[CODES] + 0.1 / 3
    words = r"row 0 of 'y' \(4 x 3, float64\) holds 0.933333, 0.0333333, 0.0333333$"
    assert re.search(words, refusal(npz(y_prob=PROBS, y=smooth)))


def test_labels_beside_class_names(npz, refusal):
    labels, backwards = ANIMALS[CODES], ANIMALS[::-1]
    path = npz(probs=PROBS[:, ::-1], y=labels, class_names=backwards)
    assert of_true_class(path) == OF_CODES
    assert load_predictions(path).taken.endswith(", labels from 'y' by name (0 = emu, 1 = dog, 2 = cat)")
    path = npz(probs=PROBS[:, 0], y=np.array(["yes", "no", "no", "yes"]), class_names=np.array(["no", "yes"]))
    assert of_true_class(path) == [0.5, 0.875, 1.0, 1.0]
    message = refusal(npz(probs=PROBS, y=labels))
    assert re.search("label 'cat' in row 0 is not a class index: .*--class-names cat,dog,emu", message)
    path = npz(probs=PROBS, y=labels, class_names=np.array(["cat", "dog", "fox"]))
    assert re.search(r"label 'emu' in row 2 .*none of the classes \(cat, dog, fox\)", refusal(path))
    path = npz(probs=PROBS, y=CODES, class_names=backwards)  # numbers are positions: no column has a name here
    assert load_predictions(path).target.tolist() == CODES.tolist()
    path = npz(probs=PROBS, y=CODES.astype(str), class_names=backwards)  # numbers as text are unclear
    assert re.search("labels in 'y' are numbers.*write the labels as class names$", refusal(path))


# One score per sample


def test_true_and_false_of_one_score(tables):
    for no, yes in ((False, True), ("false", "true"), ("FALSE", "TRUE")):
        for path in tables(score=[0.25, 0.75, 0.5], outcome=[no, yes, yes]):
            assert load_predictions(path, probs="score", target="outcome").target.tolist() == [0, 1, 1], no


def test_an_option_names_the_label_of_class_1(tables, refusal):
    options = {"probs": "score", "target": "outcome"}
    for words in (("no", "yes"), ("yes", "no"), (-1, 1), (1, 2)):
        for path in tables(score=[0.25, 0.75, 0.5], outcome=[words[0], words[1], words[1]]):
            for word, target in zip(words, ([1, 0, 0], [0, 1, 1]), strict=True):
                data = load_predictions(path, **options, positive=str(word))
                assert data.target.tolist() == target, (words, word)
                assert data.taken.endswith(f", labels from 'outcome', '{word}' as class 1")
            both = ", ".join(sorted(map(str, words)))
            message = refusal(path, **options, positive="x")
            assert re.search(f"--positive .*one of two labels in 'outcome', got 'x' for {both}$", message)
            if "yes" in words:
                place = "line 2" if path.suffix == ".csv" else "row 0"
                pattern = rf"label {words[0]!r} in {place} is not a class index: .*--positive .*\(labels: no, yes\)$"
                assert re.search(pattern, refusal(path, **options))
    for path in tables(score=[0.25, 0.75, 0.5], y=["a", "b", "c"]):
        assert re.search("two labels in 'y', got 'a' for a, b, c$", refusal(path, probs="score", positive="a"))
    for path in tables(p_a=[0.25, 0.75], p_b=[0.75, 0.25], y=["a", "b"]):
        assert "--positive a needs one score per sample" in refusal(path, positive="a")


def test_columns_and_labels_from_1(tables, refusal):
    columns = {f"prob_{k + 1}": PROBS[:, k] for k in (2, 0, 1)}
    for path in tables(**columns, label=CODES + 1):
        assert of_true_class(path) == OF_CODES
        data = load_predictions(path)
        assert data.class_names == ("1", "2", "3")
        assert data.columns == ("prob_1", "prob_2", "prob_3")
        assert data.taken.endswith(", labels from 'label' by number (1 to 3)")
    for path in tables(**columns, label=[1, -100, 3, 2]):
        assert load_predictions(path).target.tolist() == [0, -100, 2, 1]
    for label in (0, 4):
        for path in tables(**columns, label=[1, label, 2, 3]):
            message = refusal(path)
            assert re.search(rf"label {label} in .*none of the classes \(1, 2, 3\)", message)
            assert ("do labels start at 0 and columns at 1?" in message) == (label == 0)


# Compressed text


CONTENT = 'p0\tp1\ty\tnote\n0.5\t0.5\t1\t"a\nb"\n0.25\t0.75\t0\tc\n'


def test_text_tables_may_be_compressed(tmp_path):
    for suffix in (".tsv", ".csv", ".csv.gz", ".tsv.gz", ".CSV.GZ"):
        path = tmp_path / f"file.x{suffix}"
        packed = suffix.lower().endswith("gz")
        path.write_bytes(gzip.compress(CONTENT.encode()) if packed else CONTENT.encode())
        data = load_predictions(path, group="note")
        assert (data.values.tolist(), data.target.tolist()) == ([[0.5, 0.5], [0.25, 0.75]], [1, 0]), suffix
        assert data.groups.tolist() == ["a\nb", "c"], suffix


def test_damaged_or_huge_compressed_text_is_refused(tmp_path, refusal):
    path = tmp_path / "file.csv.gz"
    for content in (b"p0,p1,y\n", gzip.compress(CONTENT.encode())[:-12]):
        path.write_bytes(content)
        assert "cannot be read: " in refusal(path)
    path.write_bytes(gzip.compress(b"p0,p1,y\n0.5,x,1\n"))
    assert "'p1' must hold numbers, got 'x' in line 2" in refusal(path)
    path.write_bytes(gzip.compress(b"p0,p1,y\n" + 200_000 * b"0.5,0.5,1\n"))
    assert re.match("needs more than .* MB of memory, but the limit is 5.0 MB: ", refusal(path, max_memory="5MB"))
    assert len(load_predictions(path, max_memory="50MB").values) == 200_000
