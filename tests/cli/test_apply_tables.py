"""`dualfocal apply` to tables: values change, all else stays; labels that cannot be used are none."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import draw_logits

from dualfocal.calibrators import TemperatureScaling, load_calibrator, save_calibrator
from dualfocal.predictions import load_predictions

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LOGITS = np.array([[2.0, 0.5, -1.0], [0.25, 1.0, 3.0], [-2.0, 0.0, 0.5], [1.0, 1.5, -0.5]])


@pytest.fixture(autouse=True)
def _calibrator(_folder):
    logits, target = draw_logits(200, 3, scale=4, overconfidence=2)
    save_calibrator(TemperatureScaling().fit(logits, target), "cal.npz")


def expected(logits: np.ndarray = LOGITS) -> np.ndarray:
    return load_calibrator("cal.npz")(torch.from_numpy(logits)).numpy()


def columns_of(path: str) -> dict[str, list[Any]]:
    if path.endswith(".parquet"):
        return pq.read_table(path).to_pydict()
    with Path(path).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def write(path: str, columns: dict[str, Any]) -> str:
    if path.endswith(".parquet"):
        pq.write_table(pa.table(columns), path)
    else:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.endswith(".tsv") else ",")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


OTHERS = {
    "id": ["007", "x,y", 'a "b"', "two\nlines"],
    "hospital": ["north", "", " south", "é;è"],
    "week": [1, 20, 3, -4],
}


@pytest.mark.parametrize("target_suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_every_other_column_stays(run, suffix, target_suffix):
    columns = {"id": OTHERS["id"], "logit_1": LOGITS[:, 1], "logit_0": LOGITS[:, 0], "hospital": OTHERS["hospital"]}
    columns |= {"logit_2": LOGITS[:, 2], "y_true": [0, 2, 2, 1], "week": OTHERS["week"]}
    run("apply", "cal.npz", write(f"in{suffix}", columns), "--out", f"out{target_suffix}")
    got = columns_of(f"out{target_suffix}")
    assert list(got) == list(columns)
    for name in ("id", "hospital"):
        assert got[name] == OTHERS[name]
    numbers = target_suffix == ".parquet"
    assert got["week"] == (OTHERS["week"] if numbers else list(map(str, OTHERS["week"])))
    assert got["y_true"] == ([0, 2, 2, 1] if numbers else list("0221"))
    for k in range(3):
        assert [float(x) for x in got[f"logit_{k}"]] == expected()[:, k].tolist()
    read = load_predictions(f"out{target_suffix}")
    assert torch.equal(read.values, torch.from_numpy(expected()))
    assert read.target.tolist() == [0, 2, 2, 1]


def test_numbers_of_a_csv_are_numbers_in_a_parquet_if_nothing_is_lost(run):
    numbers = {"week": [1, 20, 3, -4], "age": [67.59351258646508, 3, 0.5, -1e-05]}
    texts = {"id": ["007", "8", "9", "10"], "code": ["1e5", "2", "3", "4"], "version": ["1.1", "1.10", "1.2", "1.3"]}
    write("in.csv", {**numbers, **texts, **{f"logit_{k}": LOGITS[:, k] for k in range(3)}})
    run("apply", "cal.npz", "in.csv", "--out", "out.parquet")
    got = columns_of("out.parquet")
    assert {name: got[name] for name in (*numbers, *texts)} == numbers | texts


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_percent_stays_percent(run, refused, suffix):
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    write("in.csv", {f"prob_{k}": 100 * probs[:, k] for k in range(3)})
    out, _ = run("apply", "cal.npz", "in.csv", "--percent", "--out", f"out{suffix}")
    assert f"Saved: out{suffix} (in percent" in out
    values = load_predictions(f"out{suffix}", labels=False).values
    torch.testing.assert_close(values, 100 * torch.from_numpy(expected(np.log(probs))).softmax(1))
    write("in.csv", {f"prob_{k}": probs[:, k] for k in range(3)})
    assert "they sum to 1: leave out --percent" in refused(
        "apply", "cal.npz", "in.csv", "--percent", "--out", "again.csv"
    )


def test_more_rows_than_are_text_at_one_time(run, monkeypatch):
    monkeypatch.setattr("dualfocal.predictions.saving.BLOCK", 3)
    write("in.csv", {"id": list("abcd"), **{f"logit_{k}": LOGITS[:, k] for k in range(3)}})
    run("apply", "cal.npz", "in.csv", "--out", "out.csv")
    assert torch.equal(load_predictions("out.csv", labels=False).values, torch.from_numpy(expected()))


def test_types_and_gaps_of_a_parquet_stay(run):
    kinds = {
        "when": pa.array([1, 2, None, 4], pa.timestamp("ms")),
        "flag": pa.array([True, None, False, True]),
        "ward": pa.array(["a", "b", "a", None]).dictionary_encode(),
    }
    write("in.parquet", {"logits": list(LOGITS.astype(np.float32)), **kinds})
    run("apply", "cal.npz", "in.parquet", "--out", "out.parquet")
    got = pq.read_table("out.parquet")
    assert got.column_names == ["logits", *kinds]
    for name, column in kinds.items():
        assert got[name].combine_chunks().equals(column)
    values = load_predictions("out.parquet", labels=False).values
    assert torch.equal(values, torch.from_numpy(expected(LOGITS.astype(np.float32))))
    run("apply", "cal.npz", "in.parquet", "--out", "out.csv")  # which has no lists
    assert list(columns_of("out.csv")) == ["logit_0", "logit_1", "logit_2", *kinds]
    assert columns_of("out.csv")["flag"] == ["True", "", "False", "True"]


def test_lists_that_find_their_place_taken(refused):
    write("in.parquet", {"logits": list(LOGITS), "logit_1": [1, 2, 3, 4]})
    line = refused("apply", "cal.npz", "in.parquet", "--logits", "logits", "--out", "out.csv")
    assert line.startswith("out.csv: the new values need a column 'logit_1'")
    assert not Path("out.csv").exists()


def test_columns_given_by_a_list_keep_their_places(run):
    probs = torch.from_numpy(LOGITS).softmax(1).numpy()
    columns = {"emu": probs[:, 2], "cat": probs[:, 0], "dog": probs[:, 1], "species": ["cat", "emu", "emu", "dog"]}
    write("in.csv", columns)
    options = ["--probs", "cat,dog,emu", "--target", "species"]
    out, err = run("apply", "cal.npz", "in.csv", *options, "--out", "out.csv")
    assert "by name (0 = cat, 1 = dog, 2 = emu)" in err
    assert "after" in out
    got = columns_of("out.csv")
    assert list(got) == list(columns)
    assert got["species"] == columns["species"]
    after = torch.from_numpy(expected()).softmax(1)
    np.testing.assert_allclose([float(x) for x in got["emu"]], after[:, 2], rtol=1e-9)
    np.testing.assert_allclose([float(x) for x in got["cat"]], after[:, 0], rtol=1e-9)


def test_one_score_of_a_packed_table(run):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator)
    save_calibrator(TemperatureScaling().fit(scores, torch.bernoulli(scores.sigmoid()).long()), "cal.npz")
    Path("in.csv.gz").write_bytes(gzip.compress(b"id,score,outcome\na,0.25,no\nb,0.75,yes\n\nc,0.5,yes\n"))
    options = ["--probs", "score", "--target", "outcome", "--positive", "yes"]
    out, _ = run("apply", "cal.npz", "in.csv.gz", *options, "--out", "out.csv")
    assert "before" in out
    got = columns_of("out.csv")
    assert (got["id"], got["outcome"]) == (list("abc"), ["no", "yes", "yes"])
    temperature = float(load_calibrator("cal.npz").temperature)
    assert float(got["score"][1]) == pytest.approx(1 / (1 + (1 / 3) ** (1 / temperature)), rel=1e-6)
    assert load_predictions("out.csv", probs="score", target="outcome", positive="yes").target.tolist() == [0, 1, 1]


def test_arrays_are_written_as_ever(run):
    np.savez("in.npz", logits=LOGITS, target=np.array([0, 2, 2, 1]), id=np.arange(4))
    run("apply", "cal.npz", "in.npz", "--out", "out.csv")
    assert list(columns_of("out.csv")) == ["logit_0", "logit_1", "logit_2", "target"]
    run("apply", "cal.npz", "out.csv", "--out", "out.npz")
    with np.load("out.npz") as file:
        assert sorted(file) == ["logits", "target"]


# Labels that cannot be used


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (LOGITS, "must be one-hot"),
        (np.array(["a", "b", "c", "a"]), "label 'a' in row 0 is not a class index"),
        (np.array([1, 2, 3, 1]), "target 3 is out of range"),
        (np.array([0.5, 1, 2, 0]), "label 0.5 in row 0 is not a whole number"),
        (np.arange(3), "each row needs one label"),
    ],
)
def test_labels_that_cannot_be_used_are_none(run, record, refused, labels, why):
    np.savez("in.npz", logits=LOGITS, y=labels)
    out, err = run("apply", "cal.npz", "in.npz", "--out", "out.npz")
    assert why in err.splitlines()[-1]
    assert out == "0 of 4 predicted classes changed.\nSaved: out.npz\n"
    got = load_predictions("out.npz", labels=False)
    assert torch.equal(got.values, torch.from_numpy(expected()))
    assert got.labels is None
    assert not {"before", "after"} & record("apply", "cal.npz", "in.npz", "--out", "out.npz").keys()
    Path("out.npz").unlink()
    assert why in refused("apply", "cal.npz", "in.npz", "--target", "y", "--out", "out.npz")


def test_unusable_labels_of_a_table_stay_in_it(run):
    columns = {f"logit_{k}": LOGITS[:, k] for k in range(3)} | {"label": ["good", "", "bad", "good"]}
    _, err = run("apply", "cal.npz", write("in.csv", columns), "--out", "out.csv")
    assert ", no labels ('label' cannot be used: column 'label' is empty in line 3; 1 of 4 rows " in err
    assert columns_of("out.csv")["label"] == columns["label"]
