"""Names that people use, questions that they leave open, and rows or values that need an option."""

import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualfocal.cli import main
from dualfocal.predictions import PredictionsError, load_predictions, rewrite_predictions

PROBS = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
CODES = np.array([0, 1, 2, 0])
ANIMALS = np.array(["cat", "dog", "emu"])


# Names


def test_names_of_other_programs(npz, text_file):
    data = load_predictions(npz(predictions=4 * PROBS, label_ids=CODES))  # Trainer.predict of Hugging Face
    assert (data.input, data.label_name, data.columns) == ("logits", "label_ids", ("predictions",))
    data = load_predictions(text_file("logprob_A,logprob_B,answer\n-1,-2,B\n-0.5,-3,A\n"))
    assert (data.input, data.target.tolist(), data.class_names) == ("logits", [1, 0], ("A", "B"))
    assert "log-probabilities" in data.taken
    assert load_predictions(npz(log_probs=np.log(PROBS + 0.1), true_label=CODES)).label_name == "true_label"
    data = load_predictions(npz(val_log_probs=-PROBS, test_log_probs=PROBS, val_y=CODES), split="val")
    assert (data.columns, data.label_name) == (("val_log_probs",), "val_y")


def test_stronger_names_of_labels_win(npz, refusal):
    assert load_predictions(npz(logits=4 * PROBS, label=CODES, answer=2 - CODES)).label_name == "label"
    assert "several labels ('label', 'true_label')" in refusal(npz(logits=PROBS, label=CODES, true_label=CODES))


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_the_suggested_options_work(tmp_path, capsys, suffix):
    """Every unclear file leads to one error with options, and with these the file is evaluated."""
    scores = {f"model out {text}": PROBS[:, k] for k, text in enumerate("abc")}
    cases = [
        {"scores": PROBS[:, 0], "outcome": CODES % 2, "sex": np.array([*"mfmm"]), "age": np.arange(40, 44)},
        {"id": CODES, **scores, "truth": np.array([*"abca"])},
        {"y_score": PROBS[:, 1], "label": CODES % 2, "true_label": CODES % 2},
    ]
    if suffix == ".npz":
        cases = [{"scores": PROBS, "outcome": CODES}, {"arr_0": PROBS, "arr_1": CODES}]
        cases += [
            {
                f"{split}_{name}": array
                for split in ("dev", "test")
                for name, array in {"probs": PROBS, "outcome": CODES}.items()
            }
        ]
    for number, columns in enumerate(cases):
        path = tmp_path / f"file {number}{suffix}"
        if suffix == ".npz":
            np.savez(path, **columns)
        elif suffix == ".csv":
            rows = zip(*(column.tolist() for column in columns.values()), strict=True)
            path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
        else:
            pq.write_table(pa.table(columns), path)
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", str(path)])
        error = capsys.readouterr().err
        assert (ended.value.code, error.count("\n")) == (2, 1)
        options = shlex.split(re.search(r"for example: (.*?)(, or --logits|  ?\(it holds)", error)[1])
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", str(path), *options, "--no-inference"])
        assert ended.value.code == 0, (error, capsys.readouterr().err)
        capsys.readouterr()


def test_columns_that_cannot_be_labels_are_not_suggested(text_file, refusal):
    message = refusal(text_file("prob_cat,prob_dog,hospital,patient\n0.5,0.5,A,140\n0.25,0.75,B,141\n"))
    assert "--target NAME (it holds" in message
    assert "for example" not in message
    assert "--target hospital" in refusal(text_file("p0,p1,hospital,patient\n0.5,0.5,A,140\n0.25,0.75,B,141\n"))
    message = refusal(text_file("score,sex\n0.5,m\n0.25,f\n"))
    assert "--probs score --binary positive --target NAME" in message


def test_columns_named_like_the_labels_that_are_no_probabilities_are_asked_for(text_file, refusal):
    message = refusal(text_file("cat,dog,label\n0.5,-0.25,cat\n0.25,3.5,dog\n"))
    assert "--probs cat,dog, or --logits cat,dog if they are logits" in message


# Class names


def test_an_option_names_the_classes(npz, parquet, tmp_path, refusal):
    (tmp_path / "names.txt").write_text("cat\ndog\n\nemu\n")
    for names in ("cat, dog,emu", ("cat", "dog", "emu"), str(tmp_path / "names.txt"), f"@{tmp_path / 'names.txt'}"):
        for path in (npz(probs=PROBS, y=ANIMALS[CODES]), parquet(probs=list(PROBS), y=ANIMALS[CODES])):
            data = load_predictions(path, class_names=names)
            assert (data.target.tolist(), data.class_names) == (CODES.tolist(), ("cat", "dog", "emu"))
    path = npz(probs=PROBS, y=CODES)
    assert load_predictions(path, class_names="emu,dog,cat").target.tolist() == CODES.tolist()  # by position
    for names in ("cat,dog", "cat,dog,dog", "", "a,b,c,d"):
        assert "--class-names must be 3 distinct names" in refusal(path, class_names=names), names
    assert load_predictions(npz(probs=PROBS[:, 0], y=ANIMALS[CODES % 2]), class_names="dog,cat").target.tolist() == [
        *(1, 0, 1, 1)
    ]
    with pytest.raises(PredictionsError, match="must be a text file with one name per line"):
        load_predictions(path, class_names="@nothing.txt")


def test_names_of_columns_and_of_the_option_must_agree(text_file, refusal):
    path = text_file("prob_cat,prob_dog,y\n0.25,0.75,dog\n")
    assert load_predictions(path, class_names="cat,dog").target.tolist() == [1]
    assert "--class-names must be those of the columns" in refusal(path, class_names="dog,cat")
    path = text_file("prob_0,prob_1,y\n0.25,0.75,dog\n")
    assert load_predictions(path, class_names="dog,cat").target.tolist() == [0]


# Percent


def test_percent(npz, text_file, refusal):
    for percent in (100 * PROBS, (100 * PROBS).astype(np.float32), np.array([[50, 25, 25]] * 4)):
        data = load_predictions(npz(probs=percent, y=CODES), percent=True)
        np.testing.assert_allclose(data.values, percent / 100)
    data = load_predictions(text_file("p0,p1,p2,y\n33,33,33,0\n"), percent=True)  # rounded
    np.testing.assert_allclose(data.values, [[1 / 3] * 3])
    assert load_predictions(npz(probs=np.array([5.0, 99.0]), y=CODES[:2]), percent=True).values.tolist() == [0.05, 0.99]
    assert "--percent is for probabilities" in refusal(npz(logits=PROBS, y=CODES), percent=True)
    assert "if they are percent, give --percent" in refusal(npz(probs=np.array([[50, 50]] * 4), y=CODES))


def test_percent_and_nan_are_named_with_their_option(npz, capsys):
    def evaluate(path) -> str:
        with pytest.raises(SystemExit):
            main(["evaluate", str(path), "--no-inference", "--json"])
        return capsys.readouterr().err

    assert "these are percent: give --percent" in evaluate(npz(probs=100 * PROBS, y=CODES % 2))
    assert "these are percent: give --percent" in evaluate(npz(probs=100 * PROBS[:, 0], y=CODES % 2))
    assert "dualfocal: " not in evaluate(npz(probs=PROBS, y=CODES))
    bad = PROBS.copy()
    bad[1:3, 0] = np.nan
    assert re.search(r"row 1 holds NaN; 2 of 4 rows .*--drop-missing", evaluate(npz(probs=bad, y=CODES)))
    ignored = evaluate(npz(probs=bad, y=np.array([0, -100, -100, 1])))
    assert "dualfocal: " not in ignored


# Missing values


def test_rows_with_missing_values_are_dropped_on_request(tmp_path, npz, text_file, refusal):
    text = "p0,p1,y,note\n1,0,0,a\n,1,1,b\n0.5,0.5,,c\nNA,0.5,1,d\n0.25,0.75,1,e\n"
    nulls = [{"p0": [1.0, None, 0.5, None, 0.25], "p1": [0.0, 1.0, 0.5, 0.5, 0.75], "y": [0, 1, None, 1, 1]}]
    nulls.append({"probs": [[1.0, 0.0], None, [0.5, 0.5], [None, 0.5], [0.25, 0.75]], "y": ["0", "1", None, "1", "1"]})
    paths = [text_file(text)]
    for k, columns in enumerate(nulls):
        paths.append(tmp_path / f"{k}.parquet")
        pq.write_table(pa.table({**columns, "note": list("abcde")}), paths[-1])
    for path in paths:
        message = refusal(path)
        assert re.search(
            "'(p0|probs)' is empty in (line 3|row 1); 3 of 5 rows have empty cells: .*--drop-missing", message
        )
        data = load_predictions(path, drop_missing=True, group="note")
        assert (data.values.tolist(), data.target.tolist()) == ([[1, 0], [0.25, 0.75]], [0, 1])
        assert (data.groups.tolist(), data.kept.tolist()) == (["a", "e"], [0, 4])
        assert data.taken.endswith("; 3 of 5 rows had missing values and were dropped")
        rewrite_predictions(tmp_path / "new.csv", data, data.values)
        assert load_predictions(tmp_path / "new.csv", group="note").groups.tolist() == ["a", "e"]
    values, labels = PROBS.copy(), CODES.astype(float)
    values[0, 1] = labels[3] = np.nan
    path = npz(probs=values, y=labels)
    assert "label nan in row 3" in refusal(path)
    assert load_predictions(path, drop_missing=True).target.tolist() == [1, 2]
    assert "no row is left" in refusal(text_file("p0,p1,y\n,1,1\n"), drop_missing=True)


def test_nan_and_empty_cells_of_one_column_are_both_dropped(text_file, parquet, monkeypatch):
    monkeypatch.setattr("dualfocal.predictions._formats.tables.READ_AT_ONCE", 1)  # each row is read on its own
    p0, p1, labels = [0.9, np.nan, None, 0.2], [0.1, 0.2, 0.3, 0.8], [0, 1, 1, 1]
    lines = [f"{'' if a is None else a},{b},{label}" for a, b, label in zip(p0, p1, labels, strict=True)]
    for path in (parquet(p0=p0, p1=p1, y=labels), text_file("\n".join(["p0,p1,y", *lines]))):
        data = load_predictions(path, drop_missing=True)
        assert (data.kept.tolist(), data.target.tolist()) == ([0, 3], [0, 1])


def test_places_are_those_of_the_file_after_rows_were_dropped(text_file, refusal):
    path = text_file("p_a,p_b,y\n,1,b\n\n0.5,0.5,c\n")
    assert "label 'c' in line 4 is none of" in refusal(path, drop_missing=True)
