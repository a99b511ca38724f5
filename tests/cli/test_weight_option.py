"""`--weight COLUMN` of `dualfocal evaluate` and `dualfocal compare`."""

import json
from pathlib import Path

import numpy as np
import pytest
from samples import draw_logits, write_run

N = 400


@pytest.fixture
def table():
    """Write a table of N samples of three classes, selected by label, with a weight that makes up for it."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.6, 0.6, 0.6], size=8 * N)
    labels = (probs.cumsum(1) <= rng.random((8 * N, 1))).sum(1).clip(max=2)
    select = np.array([1.0, 0.3, 0.1])[labels]
    kept = np.flatnonzero(rng.random(8 * N) < select)[:N]

    def write(name: str, sharpness: float = 1.0, **columns: list[str]) -> str:
        p = probs[kept] ** sharpness
        p /= p.sum(1, keepdims=True)
        columns = {"weight": [repr(float(w)) for w in 1 / select[kept]]} | columns
        lines = [",".join(["prob_0", "prob_1", "prob_2", "label", *columns])]
        for i in range(N):
            values = [*map(repr, p[i].tolist()), str(labels[kept][i]), *(c[i] for c in columns.values())]
            lines.append(",".join(values))
        Path(name).write_text("\n".join(lines) + "\n")
        return name

    return write


def test_weights_change_the_verdict(table, run):
    assert "miscalibrated (p < 0.001)" in run("evaluate", table("a.csv"))[0]
    out, err = run("evaluate", "a.csv", "--weight", "weight")
    assert "weights from 'weight'" in err
    assert "400 samples (weighted, effective" in out
    assert "No miscalibration detectable" in out
    assert "Weighted by label: the effective sample size of the 400 samples is" in out


def test_json_holds_the_weights(table, run):
    out, _ = run("evaluate", table("a.csv"), "--weight", "weight", "--json")
    weights = json.loads(out)["files"][0]["weights"]
    assert weights["by_label"] is True
    assert 100 < weights["effective"] < 400


def test_weights_in_a_file_of_their_own_with_clusters_groups_and_calibrators(table, run):
    rng = np.random.default_rng(1)
    np.savez("file.npz", logits=rng.normal(size=(200, 3)), target=rng.integers(3, size=200), w=np.arange(200) + 1)
    np.save("w.npy", np.arange(200) + 1)
    first = run("evaluate", "file.npz", "--weight", "w")[0]
    assert "200 samples (weighted, effective 150)" in first  # 3 n (n + 1) / (4 n + 2)
    assert run("evaluate", "file.npz", "--weight", "w.npy")[0] == first
    columns = {"patient": [str(i // 4) for i in range(N)], "site": [str(i % 2) for i in range(N)]}
    options = ("--weight", "weight", "--cluster", "patient", "--group-by", "site", "--calibrate", "temperature")
    out, _ = run("evaluate", table("b.csv", **columns), *options)
    assert ") in 100 clusters" in out
    assert "Scores are weighted" in out
    assert "2 groups" in out


def test_merged_files_and_a_plot(table, run):
    table("a.csv")
    table("b.csv")
    out, _ = run("evaluate", "a.csv", "b.csv", "--merge", "--weight", "weight", "--plot", "r.png", "--no-inference")
    assert "800 samples (weighted" in out
    assert Path("r.png").stat().st_size > 10_000


def test_compare_is_weighted(table, run):
    ids = [str(i) for i in range(N)]
    table("a.csv", sharpness=1.4, id=ids)
    lines = Path(table("b.csv", id=ids)).read_text().splitlines()
    Path("b.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    out, _ = run("compare", "a.csv", "b.csv", "--id", "id", "--weight", "weight")
    assert "400 samples (weighted, effective" in out
    record = json.loads(run("compare", "a.csv", "b.csv", "--id", "id", "--weight", "weight", "--json")[0])
    assert record["weights"]["by_label"] is True
    single = json.loads(run("evaluate", "a.csv", "--weight", "weight", "--no-inference", "--json")[0])["files"][0]
    assert record["differences"]["nll"]["a"] == pytest.approx(single["nll"])


BAD = {
    "no such column": ("size", {}, "has no column 'size'"),
    "missing": ("weight", {"weight": [""] + ["1"] * (N - 1)}, "column 'weight' is empty in line 2"),
    "texts": (
        "weight",
        {"weight": ["heavy"] * N},
        "weights must be finite numbers, but 'weight' is 'heavy' in line 2",
    ),
    "negative": ("weight", {"weight": ["1", "-1"] * (N // 2)}, "not negative, but 'weight' is -1 in line 3"),
    "infinite": ("weight", {"weight": ["1"] * (N - 1) + ["1e999"]}, "'weight' is inf in line 401"),
    "the word inf": ("weight", {"weight": ["1"] * (N - 1) + ["inf"]}, "'weight' is 'inf' in line 401"),
    "the labels": ("label", {}, "--weight: 'label' of a.csv holds the labels"),
    "zero": ("weight", {"weight": ["0"] * N}, "weights must not be 0 for all samples, but 'weight' is"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_weights(table, run, case):
    name, columns, message = BAD[case]
    _, err = run("evaluate", table("a.csv", **columns), "--weight", name, code=2)
    assert message in err


def test_where_weights_do_not_apply(table, run):
    _, err = run("evaluate", table("a.csv"), "--weight", "weight", "--max-memory", "4KB", code=2)
    assert "--weight needs all rows at once" in err
    _, err = run("evaluate", "--sql", "SELECT 1", "--weight", "w", code=2)
    assert "--weight does not apply to --sql" in err
    _, err = run("monitor", "state.json", "a.csv", "--weight", "weight", code=2)
    assert "--weight does not apply to dualfocal monitor" in err


def test_compare_refuses_labels_as_weights(table, run):
    _, err = run("compare", table("a.csv"), table("b.csv"), "--weight", "label", code=2)
    assert "--weight: 'label' of a.csv holds the labels" in err


def test_a_weight_per_pixel_is_read_from_a_file(run, record):
    rng = np.random.default_rng(2)
    logits, target = rng.normal(size=(6, 3, 4, 5)), rng.integers(3, size=(6, 4, 5))
    weight = rng.uniform(0.5, 2, (6, 4, 5))
    np.savez("pixels.npz", logits=logits, target=target, w=weight)
    np.savez("negative.npz", logits=logits, target=target, w=np.where(np.arange(5) == 3, -2.0, weight))
    (found,) = record("evaluate", "pixels.npz", "--weight", "w", "--no-inference")["files"]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    of_label = np.take_along_axis(probs, target[:, None], 1)[:, 0]
    assert found["nll"] == pytest.approx(np.average(-np.log(of_label), weights=weight))
    _, err = run("evaluate", "negative.npz", "--weight", "w", code=2)
    assert "'w' is -2 in row 0" in err


def test_calibrators_of_a_run_are_fitted_on_its_validation_split_with_weights(run):
    write_run(Path("runs/a"), {"val": draw_logits(300, 4, seed=1), "test": draw_logits(300, 4)})
    np.save("w.npy", np.linspace(1, 2, 300))
    plain, weighted = (
        run("evaluate", "runs/a", "--calibrate", "temperature", *more)[0] for more in ((), ("--weight", "w.npy"))
    )
    assert "ross-validated" not in plain
    assert "ross-validated" not in weighted
