"""`--cluster COLUMN` of `dualfocal evaluate` and `dualfocal compare`."""

import json
from pathlib import Path

import numpy as np
import pytest

G, SIZE = 60, 10


@pytest.fixture
def table():
    """Write a table of G patients with SIZE identical samples each, with changes."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0, 1.0, 1.0], size=G)
    labels = (probs.cumsum(1) <= rng.random((G, 1))).sum(1)

    def write(name: str, sharpness: float = 1.0, **columns: list[str]) -> str:
        p = probs**sharpness / (probs**sharpness).sum(1, keepdims=True)
        columns = {"patient": [f"p{g}" for g in range(G) for _ in range(SIZE)]} | columns
        lines = [",".join(["prob_0", "prob_1", "prob_2", "label", *columns])]
        for i in range(G * SIZE):
            values = [*map(repr, p[i // SIZE].tolist()), str(labels[i // SIZE]), *(c[i] for c in columns.values())]
            lines.append(",".join(values))
        Path(name).write_text("\n".join(lines) + "\n")
        return name

    return write


@pytest.mark.filterwarnings("default")  # the command shows warnings as a line
def test_clusters_change_the_verdict(table, run):
    out, err = run("evaluate", table("a.csv"))
    assert "540 of 600 samples have the same predictions and the same label as others" in err
    assert "miscalibrated (p < 0.001)" in out
    out, err = run("evaluate", "a.csv", "--cluster", "patient")
    assert "copies" not in err
    assert "clusters from 'patient'" in err
    assert "600 samples in 60 clusters" in out
    assert "No miscalibration detectable" in out
    assert "60 clusters, design effect 10.2: the 600 samples carry the information of 59 independent ones" in out


def test_json_holds_the_clusters(table, run):
    out, _ = run("evaluate", table("a.csv"), "--cluster", "patient", "--json")
    clusters = json.loads(out)["files"][0]["inference"]["clusters"]
    assert clusters["number"] == 60
    assert clusters["design_effect"] == pytest.approx(10, rel=0.02)


def test_clusters_in_an_array_of_their_own(table, run):
    rng = np.random.default_rng(1)
    np.savez("file.npz", logits=rng.normal(size=(200, 3)), target=rng.integers(3, size=200), image=np.arange(200) // 4)
    np.save("image.npy", np.arange(200) // 4)
    first = run("evaluate", "file.npz", "--cluster", "image")[0]
    assert "200 samples in 50 clusters" in first
    assert run("evaluate", "file.npz", "--cluster", "image.npy")[0] == first


def test_confidences_alone(run):
    rows = [f"{i % 2},{0.6 + i % 7 / 20},{i // 9 % 2},{i // 3}" for i in range(300)]
    Path("c.csv").write_text("\n".join(["prediction,confidence,label,user", *rows]) + "\n")
    assert "300 samples in 100 clusters, only the predicted class" in run("evaluate", "c.csv", "--cluster", "user")[0]


def test_several_files_and_calibrators(table, run):
    table("a.csv")
    table("b.csv", patient=[f"q{i // SIZE}" for i in range(G * SIZE)])
    out, _ = run("evaluate", "a.csv", "b.csv", "--merge", "--cluster", "patient", "--calibrate", "temperature")
    assert "1,200 samples in 120 clusters" in out
    assert "Folds and intervals keep the 120 clusters whole." in out


def test_compare_resamples_clusters(table, run):
    table("a.csv", sharpness=1.3)
    table("b.csv", sharpness=1.2)
    naive = run("compare", "a.csv", "b.csv")[0].splitlines()[-1]
    assert naive.startswith("B has the lower NLL")
    verdict = run("compare", "a.csv", "b.csv", "--cluster", "patient")[0].splitlines()[-1]
    assert "(90 % intervals, N = 600 in 60 clusters)" in verdict
    record = json.loads(run("compare", "a.csv", "b.csv", "--cluster", "patient", "--json")[0])
    alone = json.loads(run("compare", "a.csv", "b.csv", "--json")[0])
    widths = [np.diff(one["differences"]["nll"]["interval"])[0] for one in (record, alone)]
    assert widths[0] == pytest.approx(widths[1] * np.sqrt(SIZE), rel=0.15)


def test_compare_aligns_clusters_by_id(table, run):
    ids = [str(i) for i in range(G * SIZE)]
    table("a.csv", id=ids)
    lines = Path(table("b.csv", id=ids)).read_text().splitlines()
    Path("b.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    out, _ = run("compare", "a.csv", "b.csv", "--id", "id", "--cluster", "patient")
    assert "600 samples in 60 clusters" in out


BAD = {
    "no such column": (("--cluster", "doctor"), {}, "has no column 'doctor'"),
    "missing": (("--cluster", "patient"), {"patient": [""] + ["a", "b"] * 300}, "column 'patient' is empty in line 2"),
    "one": (("--cluster", "patient"), {"patient": ["a"] * 600}, "at least two different values, got only ['a']"),
    "fractions": (("--cluster", "patient"), {"patient": [str(i / 7) for i in range(600)]}, "whole numbers or texts"),
    "labels": (("--cluster", "label"), {}, "--cluster: 'label' of a.csv holds the labels"),
    "values": (("--cluster", "prob_0"), {}, "label 0 in line 2 is none of the classes (1, 2)"),
    "group": (("--cluster", "patient", "--group-by", "patient"), {}, "group 'p0': it holds only one cluster, 'p0'"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_clusters(table, run, case):
    options, columns, message = BAD[case]
    _, err = run("evaluate", table("a.csv", **columns), *options, code=2)
    assert message in err


def test_a_file_read_in_one_pass_has_the_same_clusters(table, record):
    options = ("--cluster", "patient", "--max-memory", "4KB")
    path = table("a.csv", patient=[str(i // SIZE) for i in range(G * SIZE)])
    (whole,) = record("evaluate", path, "--cluster", "patient")["files"]
    (streamed,) = record("evaluate", "a.csv", *options)["files"]
    assert streamed["ece"] == pytest.approx(whole["ece"], abs=1e-9)
    intervals = [one["inference"]["debiased_ece"]["interval"] for one in (streamed, whole)]
    assert intervals[0] == pytest.approx(intervals[1], abs=1e-9)
    assert "60 clusters" in streamed["verdict"]
