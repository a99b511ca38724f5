"""Predictions in DuckDB and PostgreSQL have the numbers of the same predictions in Python."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from postgres_server import binaries, running_server
from torch import Tensor

from dualfocal import evaluate
from dualfocal.integrations.sql import PredictionTable, evaluate_table
from dualfocal.metrics import CalibrationSums
from dualfocal.predictions import PredictionsError

if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":  # in make test-integrations, a missing driver is a failure
    pytest.importorskip("duckdb", reason="make test-integrations installs it")
import duckdb
import pyarrow

REAL, DOUBLE = "REAL", "DOUBLE PRECISION"
SAME = ("error", "nll", "brier", "ece", "mce", "classwise_ece", "confidence", "accuracy")
CLOSE = ("adaptive_ece", "aurc")  # from fine bins


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    psycopg = pytest.importorskip("psycopg", reason="make test-integrations installs it")
    if binaries() is None:
        pytest.skip("no PostgreSQL server: apt-get install postgresql")
    with running_server() as url, psycopg.connect(url) as connection:
        yield connection


@pytest.fixture(params=["duckdb", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty database; what a test writes is undone."""
    if request.param == "duckdb":
        with duckdb.connect() as connection:
            yield connection
        return
    connection = request.getfixturevalue("postgres")
    yield connection
    connection.rollback()


def summed(
    connection: Any, source: str, num_bins: int = 15, binary: str | None = None, **columns: Any
) -> CalibrationSums:
    """Find the columns of a table and sum it up."""
    return PredictionTable.find(connection, source, **columns).sums(num_bins=num_bins, binary=binary)


def probabilities(n: int = 2000, num_classes: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Over-confident predictions, with the values that binning can get wrong: edges, ties, 0, 1 and halves of units."""
    logits = 3 * torch.randn(n, num_classes, dtype=torch.float64)
    p = logits.softmax(1)
    target = torch.multinomial((logits / 1.3).softmax(1), 1)[:, 0]
    edges = torch.arange(16, dtype=torch.float64) / 15
    for row, edge in enumerate(edges):
        p[row] = (1 - edge) / (num_classes - 1)
        p[row, row % num_classes] = edge
    p[16:20] = 1 / num_classes  # ties of all classes
    p[20:24] = torch.eye(num_classes, dtype=torch.float64)[torch.arange(4) % num_classes]  # 0 and 1, some wrong
    for row in range(24, 60):  # halves of units, which round to the even one
        p[row, 1:] = 0.0
        p[row, 1] = (row - 23.5) * 2.0**-32
        p[row, 0] = 1 - p[row, 1]
    p[60] = 0.0
    p[60, -2:] = 0.5  # a tie
    p[61, :2] = torch.tensor([1.0 + 4e-7, -4e-7], dtype=torch.float64)  # within rounding
    p[61, 2:] = 0.0
    p[62, 0], p[62, 1:] = 1 - 1e-30, 1e-30
    return p.to(dtype), target


def fill(database: Any, columns: dict[str, tuple[str, list[Any]]], name: str = "predictions") -> None:
    """Create a table of columns (type and values), with rows in random order."""

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    definition = ", ".join(f"{quoted(column)} {kind}" for column, (kind, _) in columns.items())
    database.execute(f"CREATE TEMPORARY TABLE {quoted(name)} ({definition})")
    rows = list(zip(*(values for _, values in columns.values()), strict=True))
    rows = [rows[i] for i in torch.randperm(len(rows)).tolist()]
    if isinstance(database, duckdb.DuckDBPyConnection):
        marks = ", ".join([f"({', '.join('?' * len(columns))})"] * len(rows))  # one statement: ten times as fast
        database.execute(f"INSERT INTO {quoted(name)} VALUES {marks}", [value for row in rows for value in row])
    else:
        marks = ", ".join(["%s"] * len(columns))
        database.cursor().executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", rows)


def wide(p: Tensor, target: Tensor, kind: str) -> dict[str, tuple[str, list[Any]]]:
    """Return one column per class, and labels."""
    columns = {f"prob_{k}": (kind, p[:, k].double().tolist()) for k in range(p.shape[1])}
    return {**columns, "label": ("SMALLINT", target.tolist())}


def check_same(
    actual: CalibrationSums, p: Tensor, target: Tensor, *, input: str = "probs", clusters: Any = None, **options: Any
) -> None:
    """Check the numbers of a table against those of the rows, and of sums made in one piece."""
    evaluation = actual.evaluate(inference=False)
    rows = evaluate(p, target, input=input, inference=False, **options)
    sums = CalibrationSums.from_predictions(p, target, input=input, clusters=clusters, **options)
    assert repr(actual) == repr(sums)
    for expected, names, tolerance in ((rows, SAME, 1e-9), (sums.evaluate(inference=False), (*SAME, *CLOSE), 1e-12)):
        for name in names:
            assert getattr(evaluation, name) == pytest.approx(getattr(expected, name), abs=tolerance), name


@pytest.mark.parametrize(("kind", "dtype"), [(REAL, torch.float32), (DOUBLE, torch.float64)])
@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_stored_probabilities_have_the_numbers_of_rows(
    database: Any, kind: str, dtype: torch.dtype, num_bins: int
) -> None:
    p, target = probabilities(dtype=dtype)
    fill(database, wide(p, target, kind))
    check_same(summed(database, "predictions", num_bins=num_bins), p, target, num_bins=num_bins)


@pytest.mark.parametrize(("kind", "dtype"), [(REAL, torch.float32), (DOUBLE, torch.float64)])
def test_array_columns(database: Any, kind: str, dtype: torch.dtype) -> None:
    p, target = probabilities(500, dtype=dtype)
    fill(database, {"probs": (f"{kind}[]", p.double().tolist()), "y": ("INTEGER", target.tolist())})
    check_same(summed(database, "predictions"), p, target)


def test_decimals(database: Any) -> None:
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.99, 0.01]], dtype=torch.float64)
    target = torch.tensor([1, 0, 0])
    fill(database, wide(p, target, "DECIMAL(4, 2)") | {"label": ("DECIMAL(4, 2)", target.tolist())})
    check_same(summed(database, "predictions"), p, target)


def test_many_classes(database: Any) -> None:
    p = (2 * torch.randn(300, 130, dtype=torch.float64)).softmax(1)
    target = torch.multinomial(p, 1)[:, 0]
    fill(database, {"probs": ("DOUBLE PRECISION[]", p.tolist()), "y": ("INTEGER", target.tolist())})
    check_same(summed(database, "predictions"), p, target)


def test_duckdb_arrays_of_fixed_length() -> None:
    p, target = probabilities(200)
    with duckdb.connect() as database:
        fill(database, {"probs": ("FLOAT[5]", p.double().tolist()), "y": ("INTEGER", target.tolist())})
        check_same(summed(database, "predictions"), p, target)


def test_logits(database: Any) -> None:
    logits = 4 * torch.randn(2000, 5, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1)[:, 0]
    logits[0, 1:] = -torch.inf
    logits[1], logits[2] = logits[1] + 5000, logits[2] * 300
    logits[3] = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    target[0], target[2] = 0, logits[2].argmax()
    columns = {f"logit_{k}": (DOUBLE, logits[:, k].tolist()) for k in range(5)}
    fill(database, {**columns, "target": ("BIGINT", target.tolist())})
    check_same(summed(database, "predictions"), logits, target, input="logits")


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("num_bytes", [4_000, 100_000])
def test_batches_do_not_change_the_numbers(
    database: Any, monkeypatch: pytest.MonkeyPatch, num_bytes: int, arrays: bool
) -> None:
    p, target = probabilities()
    columns = {"probs": ("REAL[]", p.double().tolist()), "label": ("INTEGER", target.tolist())}
    content = (columns if arrays else wide(p, target, REAL)) | {"c": ("INTEGER", [i // 4 for i in range(len(p))])}
    fill(database, content)
    whole = summed(database, "predictions", cluster="c").evaluate()
    monkeypatch.setattr("dualfocal.integrations.sql.databases.BATCH_BYTES", num_bytes)
    fractions: list[float] = []
    table = PredictionTable.find(database, "predictions", cluster="c")
    parts = table.sums(progress=fractions.append).evaluate()
    assert len(fractions) > 1
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    for name in (*SAME, *CLOSE):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), abs=1e-12)
    assert parts.inference.joint_p_value == pytest.approx(whole.inference.joint_p_value, abs=1e-9)


def test_text_labels_are_matched_by_name(database: Any) -> None:
    p, target = probabilities(400, 3)
    names = ["it's", "back\\slash", 'a "quote"']
    columns = {f"prob_{name}": (REAL, p[:, k].double().tolist()) for k, name in enumerate(names)}
    fill(database, {**columns, "label": ("VARCHAR", [names[k] for k in target])})
    sums = summed(database, "predictions")
    check_same(sums, p, target)
    assert sums.class_names == tuple(names)


@pytest.mark.parametrize("labels", [[7, -1, 30], [2**60, 2**60 + 1, 5]])
def test_numbers_as_class_names(database: Any, labels: list[int]) -> None:
    p, target = probabilities(400, 3)
    columns = wide(p, target, REAL) | {"label": ("BIGINT", [labels[k] for k in target])}
    fill(database, columns)
    check_same(summed(database, "predictions", class_names=labels), p, target)


def test_class_names_of_arrays(database: Any) -> None:
    p, target = probabilities(400, 3)
    names = ["cat", "dog", "emu"]
    content = {"probs": ("REAL[]", p.double().tolist()), "label": ("TEXT", [names[k] for k in target])}
    fill(database, content | {"index": ("INTEGER", target.tolist())})
    check_same(summed(database, "predictions", class_names="cat,dog,emu"), p, target)
    by_position = summed(database, "predictions", target="index", class_names=names)
    check_same(by_position, p, target)
    assert by_position.class_names == tuple(names)
    with pytest.raises(PredictionsError, match="must be 3 distinct names"):
        summed(database, "predictions", class_names="cat,dog")
    query = "SELECT probs[1] AS prob_a, probs[2] AS prob_b, probs[3] AS prob_c, index AS label FROM predictions"
    with pytest.raises(PredictionsError, match="must be those of the columns, a, b, c"):
        summed(database, query, class_names=names)


def test_columns_numbered_from_one_take_labels_from_one(database: Any) -> None:
    p, target = probabilities(400, 3)
    columns = {f"p{k + 1}": (REAL, p[:, k].double().tolist()) for k in range(3)}
    fill(database, {**columns, "y": ("DOUBLE PRECISION", (target + 1).double().tolist())})
    check_same(summed(database, "predictions"), p, target)


@pytest.mark.parametrize("binary", ["top_label", "positive"])
@pytest.mark.parametrize("labels", ["boolean", "text"])
def test_one_score_per_row(database: Any, labels: str, binary: str) -> None:
    score = torch.rand(500)
    target = (torch.rand(500) < score).long()
    kinds = {"boolean": ("BOOLEAN", target.bool().tolist()), "text": ("TEXT", [["no", "yes"][k] for k in target])}
    fill(database, {"score": (REAL, score.double().tolist()), "outcome": kinds[labels]})
    table = PredictionTable.find(
        database, "predictions", probs="score", target="outcome", positive="yes" if labels == "text" else None
    )
    check_same(table.sums(binary=binary), score, target, binary=binary)
    if binary == "top_label":  # the default
        check_same(table.sums(), score, target, binary=binary)


def test_one_logit_per_row(database: Any) -> None:
    score = torch.tensor([-torch.inf, 3.0, 1.0, 0.5, -2.0], dtype=torch.float64)
    target = torch.tensor([0, 1, 1, 0, 0])
    fill(database, {"score": (DOUBLE, score.tolist()), "y": ("INTEGER", target.tolist())})
    sums = summed(database, "predictions", logits="score", binary="positive")
    check_same(sums, score, target, input="logits", binary="positive")


@pytest.mark.parametrize("num_bytes", [20_000, 64_000_000])
def test_groups_have_their_own_sums(database: Any, monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr("dualfocal.integrations.sql.databases.BATCH_BYTES", num_bytes)
    p, target = probabilities()
    group = torch.randint(3, (len(p),))
    names = ["north", "south", ""]
    fill(database, {**wide(p, target, REAL), "region": ("TEXT", [names[k] for k in group])})
    table = PredictionTable.find(database, "predictions", group="region")
    sums = table.sums_by_group()
    assert list(sums) == sorted(names)
    for k, name in enumerate(names):
        check_same(sums[name], p[group == k], target[group == k])
    check_same(table.sums(), p, target)


@pytest.mark.parametrize("kind", ["BIGINT", "TEXT"])
def test_clusters(database: Any, kind: str) -> None:
    p, target = probabilities(1000)
    clusters = np.arange(1000) // 8
    names = clusters if kind == "BIGINT" else clusters.astype(str)
    groups = ["ab"[k % 2] for k in range(1000)]
    content = wide(p, target, REAL) | {"patient": (kind, names.tolist()), "g": ("TEXT", groups)}
    fill(database, content)
    check_same(summed(database, "predictions", cluster="patient"), p, target, clusters=names)
    actual = evaluate_table(database, "predictions", cluster="patient")
    expected = CalibrationSums.from_predictions(p, target, input="probs", clusters=names).evaluate()
    assert actual.inference.joint_p_value == pytest.approx(expected.inference.joint_p_value, abs=1e-9)
    assert actual.inference.debiased_ece == pytest.approx(expected.inference.debiased_ece, abs=1e-9)
    table = PredictionTable.find(database, "predictions", cluster="patient", group="g")
    assert [sums.num_clusters for sums in table.sums_by_group().values()] == [125, 125]
    query = "SELECT p.*, NULLIF(p.patient, n.patient) AS c FROM predictions AS p, (SELECT MIN(patient) AS patient "
    with pytest.raises(PredictionsError, match=r'8 of 1,000 rows .* "c" IS NOT NULL'):
        summed(database, query + "FROM predictions) AS n", cluster="c")


def test_adaptive_ece_and_aurc_are_close_to_those_of_rows() -> None:
    p = (2 * torch.randn(50_000, 4, dtype=torch.float64)).softmax(1)
    target = torch.multinomial((p.log() / 1.3).softmax(1), 1)[:, 0]
    table = pyarrow.table({**{f"p{k}": p[:, k].numpy() for k in range(4)}, "y": target.numpy()})
    with duckdb.connect() as database:
        database.register("predictions", table)
        actual = evaluate_table(database, "predictions", inference=False)
    expected = evaluate(p, target, input="probs", inference=False)
    for name in CLOSE:
        assert getattr(actual, name) == pytest.approx(getattr(expected, name), rel=1e-3), name


def test_the_verdict_is_that_of_python(database: Any) -> None:
    p, target = probabilities(1000)
    fill(database, wide(p, target, REAL))
    actual = evaluate_table(database, "predictions")
    expected = evaluate(p, target, input="probs", inference=True)
    for name in SAME:
        assert getattr(actual, name) == pytest.approx(getattr(expected, name), abs=1e-9), name
    assert actual.verdict().split(". ")[0] == expected.verdict().split(". ")[0]


def test_a_connection_that_commits_by_itself(postgres: Any) -> None:
    """Named cursors need a transaction, or must be kept."""
    import psycopg

    with psycopg.connect(postgres.info.dsn, autocommit=True) as connection:
        values = "VALUES (0.25::real, 0.75::real, 1), (0.5, 0.5, 0)"
        assert summed(connection, f"SELECT * FROM ({values}) AS t (p0, p1, y)").num_samples == 2


def test_errors_in_the_middle_of_the_rows_are_one_line() -> None:
    label = "CAST(CASE WHEN range = 900000 THEN 'x' ELSE '1' END AS INTEGER) AS label"
    with duckdb.connect() as database, pytest.raises(ValueError, match="Could not convert string 'x'") as error:
        summed(database, f"SELECT 0.25 AS p0, 0.75 AS p1, {label} FROM range(1000000)")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ((None, 0.5, 0), "NULL"),
        ((0.5, 0.5, None), "labels must not be NULL"),
        ((0.5, 0.6, 0), "sum to 1"),
        ((float("nan"), 0.5, 0), "sum to 1"),
        ((-0.1, 1.1, 0), "sum to 1"),
        ((float("inf"), 0.0, 0), "sum to 1"),
        ((0.5, 0.5, 2), "labels must be"),
        ((0.5, 0.5, -100), "labels must be"),
        ((0.5, 0.5, 0.5), "labels must be"),
        ((0.5, 0.5, float("nan")), "labels must be"),
    ],
)
def test_invalid_rows_are_counted_and_refused(database: Any, row: tuple[Any, ...], rule: str) -> None:
    rows = [(0.25, 0.75, 1)] * 5 + [row] * 3
    first, second, label = ([r[i] for r in rows] for i in range(3))
    fill(database, {"p0": (DOUBLE, first), "p1": (DOUBLE, second), "y": (DOUBLE, label)})
    with pytest.raises(PredictionsError, match="3 of 8 rows") as error:
        summed(database, "predictions")
    assert rule in str(error.value)
    assert "WHERE" in str(error.value)
    valid = "SELECT * FROM predictions WHERE p0 = 0.25 -- the rest is invalid"
    assert summed(database, valid).num_samples == 5


def test_invalid_logits_arrays_and_groups_are_refused(database: Any) -> None:
    values = [[1.0, 2.0], [1.0, float("nan")], [float("-inf")] * 2, [float("inf"), 0.0], [1.0], None, [1.0, None]]
    groups = ["a", "a", "a", "a", "a", "a", "a"]
    fill(database, {"logits": (f"{DOUBLE}[]", values), "y": ("INTEGER", [0] * 7), "g": ("TEXT", groups)})
    first = "SELECT * FROM predictions ORDER BY CASE WHEN logits[1] = 1 AND logits[2] = 2 THEN 0 ELSE 1 END"
    with pytest.raises(PredictionsError, match="6 of 7 rows") as error:
        summed(database, first)
    assert "NaN or +inf, and each row needs a finite value: 3 rows" in str(error.value)
    assert "must have 2 values: 2 rows" in str(error.value)
    assert "must not be NULL: 1 row" in str(error.value)
    valid = "SELECT logits, y, NULLIF(g, 'a') AS g FROM predictions WHERE logits[1] = 1 AND logits[2] = 2"
    with pytest.raises(PredictionsError, match='"g" IS NOT NULL'):
        PredictionTable.find(database, valid, group="g").sums()


def test_an_empty_table_has_no_samples(database: Any) -> None:
    fill(database, {"p0": (REAL, [0.5]), "p1": (REAL, [0.5]), "y": ("INTEGER", [0])})
    with pytest.raises(PredictionsError, match="no samples"):
        summed(database, "SELECT * FROM predictions WHERE y > 0")


def test_probabilities_named_logits_are_refused(database: Any) -> None:
    p, target = probabilities(100, dtype=torch.float64)
    columns = {f"logit_{k}": (DOUBLE, p[:, k].abs().tolist()) for k in range(5)}
    fill(database, {**columns, "y": ("INTEGER", target.tolist())})
    with pytest.raises(PredictionsError, match="--probs"):
        summed(database, "predictions")
    assert summed(database, "predictions", logits="logit").num_samples == 100


def test_too_many_groups_are_refused(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection can be used afterwards, although rows are left."""
    monkeypatch.setattr("dualfocal.integrations.sql.databases.BATCH_BYTES", 20_000)
    n = 3000
    fill(database, {"p0": (REAL, [0.5] * n), "p1": (REAL, [0.5] * n), "g": ("INTEGER", list(range(n)))})
    query = "SELECT *, g % 2 AS y FROM predictions"
    with pytest.raises(PredictionsError, match="at most 1000 groups") as error:
        PredictionTable.find(database, query, group="g").sums()
    assert summed(database, query).num_samples == n, error


@pytest.mark.parametrize("name", ['x"; DROP TABLE victims; --', "x') OR 1=1; DROP TABLE victims; --", "x\\", "é ☃"])
def test_names_cannot_inject_sql(database: Any, name: str) -> None:
    """Any name of a column, a table, a group or a label is only a name."""
    database.execute("CREATE TEMPORARY TABLE victims (a INTEGER)")
    p, target = probabilities(100, 2, torch.float64)
    columns = {f"prob_{name}": (DOUBLE, p[:, 0].tolist()), "prob_b": (DOUBLE, p[:, 1].tolist())}
    labels = [[name, "b"][k] for k in target]
    fill(database, {**columns, f"l{name}": ("TEXT", labels), f"g{name}": ("TEXT", labels)}, name=f"t{name}")
    source = f"t{name}" if "." not in name else f'"t{name}"'
    table = PredictionTable.find(database, source, target=f"l{name}", group=f"g{name}")
    assert sorted(table.sums_by_group()) == sorted([name, "b"])
    check_same(table.sums(), p, target)
    assert database.execute("SELECT COUNT(*) FROM victims").fetchall() == [(0,)]
