"""`dualfocal evaluate --sql`: the output for files, for a table that stays in its database."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from postgres_server import binaries, running_server

from dualfocal.cli import main

if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":
    pytest.importorskip("duckdb", reason="make test-integrations installs it")
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

N, CLASSES = 3000, 4
CLOSE = ("adaptive_ece", "aurc")  # from fine bins


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Over-confident predictions in two parquet files, below an empty working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((N, CLASSES))
    target = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    columns = {f"prob_{k}": p[:, k].astype(np.float32) for k in range(CLASSES)}
    content = pa.table({**columns, "label": target, "site": np.where(rng.random(N) < 0.5, "north", "south")})
    Path("parts").mkdir()
    for part in range(2):
        pq.write_table(content.slice(part * N // 2, N // 2), f"parts/{part}.parquet")
    return content


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *arguments])
    assert ended.value.code == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def numbers(content: dict[str, Any]) -> dict[str, float]:
    """The numbers that must agree with those of a file to rounding."""
    return {
        name: value
        for name, value in content.items()
        if isinstance(value, int | float) and name not in (*CLOSE, "streamed")
    }


def test_parquet_files_have_the_numbers_of_a_file(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(table.drop_columns("site"), "all.parquet")
    expected = json.loads(run(capsys, "all.parquet", "--json")[0])["files"][0]
    actual = json.loads(run(capsys, "--sql", "SELECT * FROM 'parts/*.parquet'", "--json")[0])["files"][0]
    assert numbers(actual) == pytest.approx(numbers(expected), abs=1e-9)
    assert [actual[name] for name in CLOSE] == pytest.approx([expected[name] for name in CLOSE], rel=0.02)
    assert actual["verdict"].startswith("Over-confident")


def test_a_database_file_with_groups_and_a_plot(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    with duckdb.connect("p.duckdb") as database:
        database.execute("CREATE TABLE predictions AS SELECT * FROM 'parts/*.parquet'")
    before = Path("p.duckdb").read_bytes()
    out, err = run(capsys, "p.duckdb", "--sql", "predictions", "--group-by", "site", "--plot", "r.png")
    assert "probabilities from 4 columns 'prob_0' to 'prob_3' (float32), labels from 'label'" in err
    assert "2 of 2 groups are detectably miscalibrated" in out
    assert Path("r.png").stat().st_size > 1000
    assert Path("p.duckdb").read_bytes() == before
    query = "SELECT * FROM predictions WHERE site = 'north'"
    north = json.loads(run(capsys, "p.duckdb", "--sql", query, "--json")[0])["files"][0]
    assert north["num_samples"] == table["site"].to_pylist().count("north")
    out, _ = run(capsys, "p.duckdb", "--sql", "SELECT *, label % 2 AS side FROM predictions", "--group-by", "side")
    assert "Each label lies in one group" in out


def test_a_postgresql_url(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    psycopg = pytest.importorskip("psycopg")
    if binaries() is None:
        pytest.skip("no PostgreSQL server: apt-get install postgresql")
    with running_server() as url:
        with psycopg.connect(url) as connection:
            connection.execute(
                "CREATE TABLE predictions (prob_0 REAL, prob_1 REAL, prob_2 REAL, prob_3 REAL, label INT)"
            )
            rows = list(zip(*table.drop_columns("site").to_pydict().values(), strict=True))
            connection.cursor().executemany("INSERT INTO predictions VALUES (%s, %s, %s, %s, %s)", rows)
        secret = url.replace("postgres@", "postgres:swordfish@")
        out, err = run(capsys, secret, "--sql", "predictions")
        assert "Over-confident" in out
        assert "swordfish" not in out + err
        _, err = run(capsys, secret, "--sql", "nothing", code=2)
        assert "nothing" in err
        assert "swordfish" not in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sql", "SELECT * FRM x"], "syntax error"),
        (["--sql", "SELECT * FROM 'none.parquet'"], "none.parquet"),
        (["missing.duckdb", "--sql", "t"], "no such DuckDB file"),
        (["a.duckdb", "b.duckdb", "--sql", "t"], "one database"),
        (["--sql", "t", "--merge"], "--merge does not apply"),
        (["--sql", "t", "--calibrate", "temperature"], "--calibrate does not apply"),
        (["--sql", "t", "--convention", "published"], "--convention does not apply"),
        (["--sql", "t", "--plot", "a.png", "--plot-style", "corp"], "--plot-style corp does not apply"),
        (["--sql", "t", "--ignore-index", "3"], "WHERE"),
        (["--sql", "t", "--split", "val"], "--split does not apply"),
        (["--sql", "t", "--max-memory", "1GB"], "--max-memory does not apply"),
        (["--sql", "t", "--weight", "w"], "--weight does not apply"),
        (["--sql", "SELECT * FROM 'parts/*.parquet'", "--cluster", "label"], "holds the labels"),
        (["--sql", "SELECT * FROM 'parts/*.parquet'", "--cluster", "site", "--group-by", "site"], "only one cluster"),
        (["--sql", "SELECT * FROM 'parts/*.parquet'", "--class-names", "a,b"], "must be 4 distinct names"),
        (["--sql", "SELECT * FROM 'parts/*.parquet'", "--group-by", "label"], "holds the labels"),
        (["--sql", "SELECT * FROM 'parts/*.parquet'", "--binary", "top_label"], "two classes"),
        (["--sql", "SELECT prob_0 AS score, label > 0 AS y FROM 'parts/*.parquet'", "--probs", "score"], "top_label"),
        (["--sql", "SELECT *, label - 1 AS y FROM 'parts/*.parquet'", "--target", "y"], "labels must be"),
    ],
)
def test_one_line_says_what_is_wrong(
    table: pa.Table, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    out, err = run(capsys, *arguments, code=2)
    assert words in err
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize("binary", ["top_label", "positive"])
def test_one_score_per_sample(table: pa.Table, capsys: pytest.CaptureFixture[str], binary: str) -> None:
    state = np.where(table["label"].to_numpy() == 0, "ill", "well")
    pq.write_table(pa.table({"score": table["prob_0"], "state": state}), "score.parquet")
    options = ["--probs", "score", "--target", "state", "--positive", "ill", "--binary", binary]
    expected = json.loads(run(capsys, "score.parquet", *options, "--json")[0])["files"][0]
    actual = json.loads(run(capsys, "--sql", "SELECT * FROM 'score.parquet'", *options, "--json")[0])["files"][0]
    assert numbers(actual) == pytest.approx(numbers(expected), abs=1e-9)
    assert (actual["num_samples"], actual["num_classes"]) == (N, 2)
    out, _ = run(capsys, "--sql", "SELECT * FROM 'score.parquet'", *options, "--no-inference")
    assert f"--binary {'positive' if binary == 'top_label' else 'top_label'} evaluates" in " ".join(out.split())


def test_clusters_and_class_names(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    numbered = table.append_column("patient", pa.array(np.arange(N) // 5))
    pq.write_table(numbered, "all.parquet")
    options = ["--cluster", "patient", "--class-names", "ant,bee,cat,dog"]
    expected = json.loads(run(capsys, "all.parquet", *options, "--json")[0])["files"][0]
    actual = json.loads(run(capsys, "--sql", "SELECT * FROM 'all.parquet'", *options, "--json")[0])["files"][0]
    assert numbers(actual) == pytest.approx(numbers(expected), abs=1e-9)
    intervals = [one["inference"]["debiased_ece"]["interval"] for one in (actual, expected)]
    assert intervals[0] == pytest.approx(intervals[1], abs=1e-9)
    assert actual["verdict"].split(". ")[0] == expected["verdict"].split(". ")[0]
    assert "600 clusters" in actual["verdict"]
    alone = json.loads(run(capsys, "--sql", "SELECT * FROM 'all.parquet'", "--cluster", "none", "--json")[0])
    assert "clusters" not in alone["files"][0]["verdict"]
