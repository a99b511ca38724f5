"""Reading predictions: every format gives the same tensors, and every unclear or damaged file a one-line error."""

import re
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from dualfocal.predictions import Predictions, load_predictions

LOGITS = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5], [0.1, 0.2, 0.3], [9.0, 8.0, 7.0]])
TARGET = np.array([2, 1, 0, 0])
GROUPS = np.array(["a", "b", "b", "a"])
SEVERAL_SPLITS = r"holds several splits \(test, val\): .*--split"
FLOATS_RULE = "float16, bfloat16, float32, float64 .*at least one row"


def assert_same(data: Predictions, values: object, target: object, kind: str = "logits") -> None:
    torch.testing.assert_close(data.values, torch.as_tensor(values), rtol=0, atol=0)  # checks the dtype too
    torch.testing.assert_close(data.target, torch.as_tensor(target, dtype=torch.int64), rtol=0, atol=0)
    assert data.input == kind


# Formats


def test_npz(npz):
    for dtype in (np.float16, np.float32, np.float64):
        data = load_predictions(npz(logits=LOGITS.astype(dtype), target=TARGET, site=GROUPS), group="site")
        assert_same(data, LOGITS.astype(dtype), TARGET)
        assert data.groups.tolist() == GROUPS.tolist()
        form = f"4 x 3, {np.dtype(dtype).name}"
        assert data.taken == f"logits from 'logits' ({form}), labels from 'target', groups from 'site'"
        assert data.class_names is None
    path = npz(logits=np.asfortranarray(LOGITS.astype(">f4")), target=TARGET.astype(">i2"))  # foreign byte order
    assert_same(load_predictions(path), LOGITS.astype(np.float32), TARGET)


def test_safetensors(tmp_path):
    group = torch.tensor([True, False, False, True])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        values = torch.tensor(LOGITS).to(dtype)
        save_file({"probs": values, "y": torch.tensor(TARGET), "old": group}, tmp_path / "file.safetensors")
        data = load_predictions(tmp_path / "file.safetensors", group="old")
        assert_same(data, values, TARGET, "probs")
        assert data.groups.dtype == bool
        assert data.groups.tolist() == group.tolist()


def test_csv(text_file):
    rows = [["y", "logit_2", "site", "logit_0", "logit_1"]]  # in any order
    for i, (a, b, c) in enumerate(LOGITS.tolist()):
        rows.append([str(TARGET[i]), repr(c), GROUPS[i], repr(a), repr(b)])
    for mark, start, end in ((",", "", "\n"), (";", "\ufeff", "\r\n"), ("\t", "", "\n")):
        data = load_predictions(text_file(start + "".join(mark.join(row) + end for row in rows)), group="site")
        assert_same(data, LOGITS, TARGET)
        assert data.groups.tolist() == GROUPS.tolist()
        assert data.class_names is None
        origin = "logits from 3 columns 'logit_0' to 'logit_2' (4 x 3, float64), labels from 'y', groups from 'site'"
        assert data.taken == origin


def test_quotes_blank_lines_and_spaces_of_a_csv(text_file):
    for mark in ",;\t":
        for within in ",;\t":  # which is no delimiter within quotes
            name = f'a""{within * 9}b'
            data = load_predictions(text_file(mark.join(['"p_' + name + '"', "p_c", "y\n1", "2", f'"{name}"\n'])))
            assert_same(data, np.array([[1.0, 2.0]]), [0], "probs")
            assert data.class_names == (f'a"{within * 9}b', "c"), (mark, within)
    content = '"y", p0 ,p1,note\n0,1,0,"a, ""b"""\n\n1, 0.25 ,0.75,#\n"1",0,1,"x\ny"\n 1 ,"0.5",0.5,z'
    values = np.array([[1, 0], [0.25, 0.75], [0, 1], [0.5, 0.5]])
    assert_same(load_predictions(text_file(content)), values, [0, 1, 1, 1], "probs")


def test_parquet_with_a_column_per_class_or_a_column_of_lists(parquet):
    for dtype in (np.float16, np.float32, np.float64):
        x = LOGITS.astype(dtype)
        path = parquet(**{"logit.1": x[:, 1], "logit.0": x[:, 0], "logit.2": x[:, 2]}, y=TARGET, site=GROUPS)
        data = load_predictions(path, group="site")
        assert_same(data, x, TARGET)
        assert data.groups.tolist() == GROUPS.tolist()
    x = LOGITS.astype(np.float32)
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 3)):
        chunks = [pa.array(part.tolist(), kind) for part in (x[:1], x[1:])]
        assert_same(load_predictions(parquet(logits=pa.chunked_array(chunks), y=TARGET)), x, TARGET)


def test_arrays_with_more_dimensions_and_one_score_per_sample(npz, text_file, parquet):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    target = np.arange(8).reshape(2, 4) % 3
    assert_same(load_predictions(npz(logits=values, labels=target)), values, target)
    assert_same(load_predictions(npz(y_prob=values[0, 0], y_true=target[1])), values[0, 0], target[1], "probs")
    assert_same(load_predictions(text_file("prob,y\n0.5,1\n0.25,0\n")), np.array([0.5, 0.25]), [1, 0], "probs")
    assert_same(load_predictions(parquet(logit=[0.5, -1.0], y=[1, 0])), np.array([0.5, -1.0]), [1, 0])


def test_labels_of_any_integer_type(npz, tmp_path):
    for dtype in (np.bool_, np.int8, np.uint8, np.uint16, np.uint32, np.uint64):
        target = (TARGET > 0).astype(dtype)
        assert_same(load_predictions(npz(logits=LOGITS, target=target)), LOGITS, target)
        save_file({"logits": torch.tensor(LOGITS), "y": torch.tensor(target)}, tmp_path / "file.safetensors")
        assert_same(load_predictions(tmp_path / "file.safetensors"), LOGITS, target)


def test_labels_as_whole_floats_and_strings(text_file, parquet):
    assert load_predictions(text_file("p0,p1,y\n0,1,1.0\n1,0,-100\n")).target.tolist() == [1, -100]
    for labels in ([1.0, 0.0], ["1", "0"]):
        assert load_predictions(parquet(logit=[0.5, -1.0], y=labels)).target.tolist() == [1, 0]


def test_groups_of_tables(text_file, parquet):
    groups = load_predictions(text_file("p0,p1,y,g\n0,1,1,10\n1,0,0,-3\n"), group="g").groups
    assert (groups.dtype, groups.tolist()) == (np.int64, [10, -3])
    groups = load_predictions(text_file("p0,p1,y,g\n0,1,1,007\n1,0,0,7\n"), group="g").groups
    assert groups.tolist() == ["007", "7"]
    groups = load_predictions(parquet(logit=[0.5, -1.0], y=[1, 0], g=[True, False]), group="g").groups
    assert (groups.dtype, groups.tolist()) == (bool, [True, False])
    data = load_predictions(parquet(logit=[0.5, -1.0], y=[1, 0]), group="y")  # groups may be the labels
    assert data.groups.tolist() == data.target.tolist() == [1, 0]


# Names


def test_usual_names(npz):
    kinds = dict.fromkeys(("logits", "Logit"), "logits")
    kinds |= dict.fromkeys(("probs", "prob", "probabilities", "probability", "proba", "SoftMax"), "probs")
    kinds |= dict.fromkeys(("y_prob", "y_proba"), "probs")
    labels = ("target", "Targets", "label", "LABELS", "y", "y_true")
    for i, (name, kind) in enumerate(kinds.items()):
        label = labels[i % len(labels)]
        data = load_predictions(npz(**{name: LOGITS, label: TARGET, "other": TARGET}))
        assert_same(data, LOGITS, TARGET, kind)
        assert f"from '{name}'" in data.taken
        assert f"labels from '{label}'" in data.taken


def test_unclear_names_are_never_guessed(npz, parquet, text_file, refusal):
    probs = np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)
    for name in ("scores", "predictions", "outputs", "preds", "x", "arr_0", "p"):
        path = npz(**{name: probs, "target": np.array([0, 1])})
        words = (
            rf"no array with a usual name.*--logits {name} or --probs {name}.*'{name}' \(2 x 2, float32\), 'target' "
        )
        assert re.search(words, refusal(path))
        assert_same(load_predictions(path, probs=name), probs, [0, 1], "probs")
        assert_same(load_predictions(path, logits=name), probs, [0, 1], "logits")
    assert re.search(r"no column with a usual name.*'p' \(double\)", refusal(parquet(p=[0.5, 0.25], y=[0, 1])))
    assert_same(load_predictions(text_file("P0,P1,y\n0.5,0.25,1\n")), np.array([[0.5, 0.25]]), [1], "probs")
    assert refusal(text_file(",".join(f"x{i}" for i in range(40)))).endswith("'x10', 'x11' and 28 more)")


def test_options_choose_among_several_names(npz, text_file, refusal):
    path = npz(logits=LOGITS, probs=-LOGITS, target=TARGET)
    assert "holds both 'logits' and 'probs': " in refusal(path)
    assert "--logits or --probs, not both" in refusal(path, probs="probs", logits="logits")
    assert_same(load_predictions(path, probs="probs"), -LOGITS, TARGET, "probs")
    assert_same(load_predictions(path, logits="logits"), LOGITS, TARGET)
    assert "holds both 'softmax' and 'probs': " in refusal(npz(softmax=LOGITS, probs=LOGITS, target=TARGET))
    path = text_file("prob,prob_0,prob_1,y\n0.5,0.25,0.75,1\n")
    assert "holds both 'prob' and 'prob_0': " in refusal(path)
    assert_same(load_predictions(path, probs="prob"), np.array([0.5]), [1], "probs")
    assert_same(load_predictions(path, probs="prob_"), np.array([[0.25, 0.75]]), [1], "probs")
    path = npz(logits=LOGITS, y=TARGET, label=2 - TARGET)
    assert re.search(r"several labels \('y', 'label'\): .*--target NAME.*--target label \(it holds: ", refusal(path))
    assert_same(load_predictions(path, target="label"), LOGITS, 2 - TARGET)


def test_names_that_are_missing_or_have_two_roles_are_refused(npz, text_file, refusal):
    for option in ("logits", "probs", "target", "group"):
        message = refusal(npz(logits=LOGITS, target=TARGET), **{option: "nope"})
        assert re.search(r"no array 'nope'.*'logits' \(4 x 3, float64\), 'target' \(4, int64\)", message), option
        message = refusal(text_file("logit_0,logit_1,y\n1,2,0\n"), **{option: "no"})
        assert re.search("no column 'no'.*'logit_0', 'logit_1', 'y'", message), option
    words = r"no labels with a usual name.*--target NAME.*\(it holds: 'logits' \(4 x 3, float64\)\)"
    assert re.search(words, refusal(npz(logits=LOGITS)))
    path = npz(scores=LOGITS[:, 0], target=TARGET)
    assert "'scores' cannot hold both logits and" in refusal(path, logits="scores", group="scores")
    path = text_file("y,z\n0.5,1\n")
    assert "no labels with a usual name" in refusal(path, probs="y")
    assert "'y' cannot hold both probs and" in refusal(path, probs="y", target="y")


# Splits


def test_splits(npz, refusal):
    arrays = {"val_logits": LOGITS[:1], "val_target": TARGET[:1], "test_logits": LOGITS, "test_target": TARGET}
    arrays |= {"val_site": GROUPS[:1], "test_site": GROUPS, "val_x": -LOGITS[:1], "test_x": -LOGITS}
    path = npz(**arrays)
    assert re.search(SEVERAL_SPLITS, refusal(path))
    assert_same(load_predictions(path, split="val"), LOGITS[:1], TARGET[:1])
    data = load_predictions(path, split="test", group="site")
    assert_same(data, LOGITS, TARGET)
    assert data.groups.tolist() == GROUPS.tolist()
    assert "from 'test_logits'" in data.taken
    assert re.search("no split 'train'.*test, val", refusal(path, split="train"))
    assert_same(load_predictions(path, split="val", probs="x"), -LOGITS[:1], TARGET[:1], "probs")
    assert_same(load_predictions(path, logits="test_x", target="test_target"), -LOGITS, TARGET)
    assert re.search(SEVERAL_SPLITS, refusal(path, logits="test_x"))


def test_the_only_split_and_names_without_prefix(npz, text_file, refusal):
    assert_same(load_predictions(npz(ood_y_prob=LOGITS, ood_y_true=TARGET)), LOGITS, TARGET, "probs")
    path = npz(logits=LOGITS, target=TARGET, val_logits=LOGITS[:1], test_logits=LOGITS[:1])
    assert_same(load_predictions(path), LOGITS, TARGET)
    message = refusal(npz(y_prob=LOGITS, y_true=TARGET), split="test")  # "y" is no split
    assert re.search("no split 'test'.*'y_prob'.*'y_true'", message)
    assert "a table has no splits" in refusal(text_file("logit_0,logit_1,y\n1,2,0\n"), split="test")


# Tables


def test_numbered_class_columns_are_sorted_as_numbers(text_file):
    order = [10, 2, 0, 1, 9, 8, 7, 6, 5, 4, 3]
    for prefix, kind in (("logit", "logits"), ("Probs", "probs"), ("proba", "probs"), ("p", "probs")):
        for mark in ("_", ".", "-", " ", ""):
            header = ",".join(f"{prefix}{mark}{k}" for k in order)
            path = text_file(f"{header},y\n{','.join(str(k / 8) for k in order)},3\n")
            assert_same(load_predictions(path), np.arange(11)[None] / 8, [3], kind)
    path = text_file("score_1,score_0,score_x,y\n0.75,0.25,b,1\n")
    data = load_predictions(path, probs="score", group="score_x")  # score_x is then no class
    assert_same(data, np.array([[0.25, 0.75]]), [1], "probs")


def test_class_names(text_file, parquet):
    data = load_predictions(text_file("prob_dog,prob_black cat,y\n0.25,0.75,black cat\n1,0,dog\n"))
    assert_same(data, np.array([[0.25, 0.75], [1, 0]]), [1, 0], "probs")
    assert data.class_names == ("dog", "black cat")  # in the order of the file, not sorted
    labels = pa.array(["cat", "dog"]).dictionary_encode()
    data = load_predictions(parquet(prob_dog=[0.25, 1.0], prob_cat=[0.75, 0.0], label=labels))
    assert_same(data, np.array([[0.25, 0.75], [1, 0]]), [1, 0], "probs")
    assert data.class_names == ("dog", "cat")
    assert data.taken.endswith(", labels from 'label' by name (0 = dog, 1 = cat)")
    assert load_predictions(text_file("p_grade1,p_grade2,y\n0.5,0.5,grade1\n")).target.tolist() == [0]
    assert load_predictions(text_file("p_class0,p_class1,y\n0.5,0.5,1\n")).target.tolist() == [1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("0.5,0.5,1\n0.25,0.75,0\n", "header line .*got '0.5,0.5,1'"),
        ("\np0,p1,y\n0,1,1\n", "header line .*got ''"),
        ("p0,p1,y\n", rf"'p0' to 'p1' .*{FLOATS_RULE}, got \(0 x 2, float64\)"),
        ("p0,p1,y\n0,1,1\n\n0,x1,1\n", "'p1' must hold numbers, got 'x1' in line 4"),
        ("p0;p1;y\n0,5;0,5;1\n", "'p0' must hold numbers, got '0,5' in line 2; .*decimal points"),
        ("p0,p1,y\n0,1,1\n,1,1\n", "'p0' is empty in line 3; 1 of 2 rows has empty cells: .*--drop-missing"),
        ("p0,p1,y\n0,1,1\n0,1, \n", "'y' is empty in line 3"),
        ("p0,p1,y\n0,1,1\n0,1\n", "line 3 has 2 fields, .*header has 3"),
        ("name,p0,p1,y\nA,0,1,1\nB, C,0,1,1\n", "line 3 has 5 fields, .*header has 4"),
        ("p0,p1,y,y\n0,1,1,1\n", "more than one column 'y'"),
        ("p_cat,p_cat,y\n1,0,1", "more than one column 'p_cat'"),
        # Classes that do not fit together.
        ("p0,p2,y\n0,1,1", "numbered 0 to 1, .*class 1 has 0 columns"),
        ("p2,p3,y\n0,1,1", "numbered 0 to 1, .*class 0 has 0 columns"),
        ("p1,p3,y\n0,1,1", "numbered 1 to 2, .*class 2 has 0 columns"),
        ("p_0,p_1,p_01,y\n0,1,0,1", "numbered 0 to 2, .*class 1 has 2 columns"),
        ("p_0,p_max,p_1,y\n0,1,0,1", "all be numbered .*'p_max' does not fit; .*--probs p_0,p_1$"),
        ("p_0,p_cat,p_dog cow,y\n0,1,0,1", "all be numbered .*'p_0' does not fit; .*--probs 'p_cat,p_dog cow'$"),
        ("p_-1,p_1,y\n0,1,1", "all be numbered .*'p_-1' does not fit"),
        ("p_cat,p__cat,y\n0,1,1", "both 'p_cat' and 'p__cat': .*--logits or --probs"),
        ("prob_1,y\n1,1", "only one class column; .*--probs 'prob_1'"),
        # Labels.
        ("p0,p1,y\n0,1,1\n1,0,0.5\n", "label 0.5 in line 3 is not a whole number"),
        ("p_dog,p_cat,y\n0,1,cat\n\n1,0,bird\n", r"label 'bird' in line 4 .*none of the classes \(dog, cat\)"),
        ("p_dog,p_cat,y\n0,1,Cat\n", r"label 'Cat' in line 2 .*none of the classes \(dog, cat\)"),
        ("p0,p1,y\n0,1,cat\n", "label 'cat' in line 2 is not a class index: "),
        ("p_grade1,p_grade2,y\n0.5,0.5,1\n", r"labels in 'y' are numbers.*\(grade1, grade2\)"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused(text_file, refusal, content, words):
    assert re.search(words, refusal(text_file(content)))


def test_a_class_in_two_columns_and_another_encoding_are_refused(text_file, refusal):
    assert "'p_cat' does not fit" in refusal(text_file("p_cat,p.cat,y\n0.5,0.5,cat\n"), probs="p")
    message = refusal(text_file("p_café,p_thé,y\n0,1,thé\n", "latin-1"))
    assert re.search("cannot be read: 'utf-8' .*0xe9", message)


def test_a_parquet_that_cannot_be_used_is_refused(parquet, refusal, monkeypatch):
    cases = [
        ({"p0": [0.5, None], "p1": [0.5, 1.0], "y": [0, 1]}, "'p0' is empty in row 1"),
        ({"logit": [0.5, 1.0], "y": [None, 1]}, "'y' is empty in row 0"),
        ({"logits": [[0.5, 1.0], None], "y": [0, 1]}, "'logits' is empty in row 1"),
        ({"logits": [[0.5, 1.0], [1.0, 2.0], [0.5, None]], "y": [0, 1, 1]}, "'logits' is empty in row 2"),
        ({"logits": [[0.5, 1.0], [2.0]], "y": [0, 1]}, "'logits' .*same length, got 2 in row 0 and 1 in row 1"),
        ({"logit": [1, 2], "y": [0, 1]}, rf"'logit' .*{FLOATS_RULE}, got \(2, int64\)"),
        ({"p_dog": [0.0, 1.0], "p_cat": [1.0, 0.0], "y": ["cat", "1"]}, "label '1' in row 1 .*none of the classes"),
    ]
    for bad in (0.5, float("nan"), float("inf")):
        cases.append(({"logit": [0.5, 1.0], "y": [1.0, bad]}, f"label {bad} in row 1 is not a whole number"))
    for columns, words in cases:
        assert re.search(words, refusal(parquet(**columns))), columns
    path = parquet(logit=[0.5], y=[1])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert re.search(r"pip install .*dualfocal\[cli\]", refusal(path))


# Files and arrays that cannot be used


def test_arrays_of_a_wrong_type_or_shape_are_refused(npz, refusal):
    good = {"logits": LOGITS, "y": TARGET}
    cases = [
        ({"logits": TARGET[:, None]}, rf"'logits' .*{FLOATS_RULE}, got \(4 x 1, int64\)"),
        ({"logits": TARGET > 0}, rf"'logits' .*{FLOATS_RULE}, got \(4, bool\)"),
        ({"y": TARGET * 1j}, "labels must be integers, but 'y' is complex128"),
        ({"g": TARGET * 1j}, "groups must be strings, numbers or booleans, but 'g' is complex128"),
        ({"y": TARGET[:3]}, r"one label, got 'logits' \(4 x 3, float64\) and 'y' \(3, int64\)"),
        ({"g": TARGET[:3]}, r"one group, got 'logits' \(4 x 3, float64\) and 'g' \(3, int64\)"),
        ({"g": TARGET[:, None]}, r"one group, got 'logits' \(4 x 3, float64\) and 'g' \(4 x 1, int64\)"),
    ]
    for changes, words in cases:
        path = npz(**good | changes)
        assert re.search(words, refusal(path, group="g" if "g" in changes else None)), words


def test_missing_files_and_other_formats_are_refused(tmp_path, refusal):
    assert "no such file" in refusal(tmp_path / "none.npz")
    assert "must be a file, but is a folder" in refusal(tmp_path)
    remedies = {
        ".npz.gz": r"must be \.npz, .*\.feather, got '\.npz\.gz'",
        ".pkl": r"is a pickle.* never read.*savez\(.*pickle\.load\(open\('file\.pkl', 'rb'\)\)",
        ".json": "one object per line, and the suffix .jsonl",
        ".xlsx": "save it as .csv",
    }
    for suffix, words in remedies.items():
        (tmp_path / f"file{suffix}").write_bytes(b"x")
        assert re.search(words, refusal(tmp_path / f"file{suffix}"))


class Trap:
    """Unpickling it would raise something that no reader expects."""

    def __reduce__(self):
        return (sys.exit, ("unpickled",))


def test_pickles_are_never_loaded(npz, tmp_path, refusal):
    path = npz(logits=np.array([Trap(), Trap()], dtype=object), target=np.array([0, 1]))
    assert re.search("'logits' cannot be read: .*[Oo]bject arrays", refusal(path))
    assert "'logits' (unreadable), 'target' (2, int64)" in refusal(path, group="nope")
    np.save(tmp_path / "file.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "file.npy").rename(tmp_path / "file.npz")
    assert "is not an .npz archive" in refusal(tmp_path / "file.npz")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_damaged_files_are_refused(npz, parquet, tmp_path, refusal, suffix):
    path = tmp_path / f"file{suffix}"
    if suffix == ".npz":
        npz(logits=LOGITS, target=TARGET)
    elif suffix == ".parquet":
        parquet(logit=LOGITS[:, 0], y=TARGET)
    else:
        save_file({"logits": torch.tensor(LOGITS), "target": torch.tensor(TARGET)}, path)
    good = path.read_bytes()
    start = 150 if suffix == ".npz" else 0  # an npz keeps its directory at the end: here an array is hit
    flipped = good[:start] + bytes(255 - byte for byte in good[start : start + 20]) + good[start + 20 :]
    for damaged in (b"", b"noise\n" * 100, good[: len(good) // 2], flipped):
        path.write_bytes(damaged)
        assert re.search("cannot be read: |^is not an .npz archive", refusal(path)), damaged
