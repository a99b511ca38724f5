"""Predictions in DuckDB and PostgreSQL have the sums and the verdict of the same predictions in Python."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from postgres_server import binaries, running_server
from torch import Tensor

from dualfocal.integrations.sql import PredictionTable, bin_table, evaluate_table, reduction_query
from dualfocal.metrics import BinnedPredictions, BinStats
from dualfocal.predictions import PredictionsError

if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":  # in make test-integrations, a missing driver is a failure
    pytest.importorskip("duckdb", reason="make test-integrations installs it")
import duckdb

REAL, DOUBLE = "REAL", "DOUBLE PRECISION"
EXACT = ("fine", "classes", "squares", "cubes", "infinite_nll", "brier")


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


def check_same(actual: BinnedPredictions, p: Tensor, target: Tensor, **options: Any) -> None:
    expected = BinnedPredictions.from_predictions(p, target, input="probs", **options)
    assert torch.equal(actual.edges, expected.edges)
    assert [name for name in EXACT if getattr(actual, name) != getattr(expected, name)] == []
    assert abs(actual.nll - expected.nll) <= len(p)  # units of 2^-32


@pytest.mark.parametrize(("kind", "dtype"), [(REAL, torch.float32), (DOUBLE, torch.float64)])
@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_stored_probabilities_have_the_same_bits(database: Any, kind: str, dtype: torch.dtype, num_bins: int) -> None:
    p, target = probabilities(dtype=dtype)
    fill(database, wide(p, target, kind))
    check_same(bin_table(database, "predictions", num_bins=num_bins), p, target, num_bins=num_bins)


@pytest.mark.parametrize(("kind", "dtype"), [(REAL, torch.float32), (DOUBLE, torch.float64)])
def test_array_columns_have_the_same_bits(database: Any, kind: str, dtype: torch.dtype) -> None:
    p, target = probabilities(500, dtype=dtype)
    fill(database, {"probs": (f"{kind}[]", p.double().tolist()), "y": ("INTEGER", target.tolist())})
    check_same(bin_table(database, "predictions"), p, target)


def test_many_classes(database: Any) -> None:
    p = (2 * torch.randn(300, 130, dtype=torch.float64)).softmax(1)
    target = torch.multinomial(p, 1)[:, 0]
    fill(database, {"probs": ("DOUBLE PRECISION[]", p.tolist()), "y": ("INTEGER", target.tolist())})
    actual, expected = bin_table(database, "predictions"), BinnedPredictions.from_predictions(p, target, input="probs")
    assert all(getattr(actual, name) == getattr(expected, name) for name in EXACT if name != "brier")
    assert abs(actual.brier - expected.brier) <= len(p)


def test_duckdb_arrays_of_fixed_length() -> None:
    p, target = probabilities(200)
    with duckdb.connect() as database:
        fill(database, {"probs": ("FLOAT[5]", p.double().tolist()), "y": ("INTEGER", target.tolist())})
        check_same(bin_table(database, "predictions"), p, target)


def test_tiny_probabilities_do_not_underflow(database: Any) -> None:
    p = torch.tensor([[1 - 1e-16, 1e-300, 1e-200], [1e-308, 1.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([1, 2])
    fill(database, wide(p, target, DOUBLE))
    check_same(bin_table(database, "predictions"), p, target)


def test_text_labels_are_matched_by_name(database: Any) -> None:
    p, target = probabilities(400, 3)
    names = ["it's", "back\\slash", 'a "quote"']
    columns = {f"prob_{name}": (REAL, p[:, k].double().tolist()) for k, name in enumerate(names)}
    fill(database, {**columns, "label": ("VARCHAR", [names[k] for k in target])})
    check_same(bin_table(database, "predictions"), p, target)


def test_class_labels_can_be_given(database: Any) -> None:
    p, target = probabilities(400, 3)
    labels = [7, -1, 30]
    columns = wide(p, target, REAL) | {"label": ("INTEGER", [labels[k] for k in target])}
    fill(database, columns)
    check_same(bin_table(database, "predictions", class_labels=labels), p, target)


def test_columns_numbered_from_one_take_labels_from_one(database: Any) -> None:
    p, target = probabilities(400, 3)
    columns = {f"p{k + 1}": (REAL, p[:, k].double().tolist()) for k in range(3)}
    fill(database, {**columns, "y": ("DOUBLE PRECISION", (target + 1).double().tolist())})
    check_same(bin_table(database, "predictions"), p, target)


@pytest.mark.parametrize("labels", ["boolean", "text"])
def test_one_score_per_sample(database: Any, labels: str) -> None:
    score = torch.rand(500)
    target = (torch.rand(500) < score).long()
    kinds = {"boolean": ("BOOLEAN", target.bool().tolist()), "text": ("TEXT", [["no", "yes"][k] for k in target])}
    fill(database, {"score": (REAL, score.double().tolist()), "outcome": kinds[labels]})
    table = PredictionTable.find(
        database, "predictions", probs="score", target="outcome", positive="yes" if labels == "text" else None
    )
    check_same(table.bin(), score, target, binary="top_label")


def test_groups_have_their_own_sums(database: Any) -> None:
    p, target = probabilities()
    group = torch.randint(3, (len(p),))
    names = ["north", "south", ""]
    fill(database, {**wide(p, target, REAL), "region": ("TEXT", [names[k] for k in group])})
    table = PredictionTable.find(database, "predictions", group="region")
    states = table.bin_groups()
    assert list(states) == sorted(names)
    for k, name in enumerate(names):
        check_same(states[name], p[group == k], target[group == k])
    check_same(table.bin(), p, target)


def test_logits_are_within_tolerance(database: Any) -> None:
    """Counts of bins differ only for probabilities within 2^-32 of an edge; here none is."""
    logits = 4 * torch.randn(2000, 5, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1)[:, 0]
    logits[0, 1:] = -torch.inf
    logits[1], logits[2] = logits[1] + 5000, logits[2] * 300
    logits[3] = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    target[0], target[4] = 0, 2
    columns = {f"logit_{k}": (DOUBLE, logits[:, k].tolist()) for k in range(5)}
    fill(database, {**columns, "target": ("BIGINT", target.tolist())})
    actual, expected = bin_table(database, "predictions"), BinnedPredictions.from_predictions(logits, target)
    assert torch.equal(actual.classes.count, expected.classes.count)
    assert torch.equal(actual.classes.correct, expected.classes.correct)
    assert int((actual.fine.count - expected.fine.count).abs().sum()) <= 2
    for name in ("nll", "brier"):
        assert abs(getattr(actual, name) - getattr(expected, name)) <= 2 * len(logits)
    assert float((actual.classes.confidence - expected.classes.confidence).abs().max()) < 1e-6
    assert float((actual.squares.double() - expected.squares.double()).abs().max()) < 1e-6


def test_the_verdict_is_that_of_python(database: Any) -> None:
    p, target = probabilities(1000)
    fill(database, wide(p, target, REAL))
    actual = evaluate_table(database, "predictions")
    expected = BinnedPredictions.from_predictions(p, target, input="probs").evaluate()
    assert actual.verdict() == expected.verdict()
    assert actual.inference == expected.inference
    assert (actual.ece, actual.aurc, actual.brier) == (expected.ece, expected.aurc, expected.brier)
    assert actual.nll == pytest.approx(expected.nll, abs=2**-32)


def test_the_result_is_a_table_of_binned_predictions(database: Any) -> None:
    """The SQL can be run elsewhere, and its result read later."""
    p, target = probabilities(300)
    fill(database, wide(p, target, REAL))
    query = reduction_query("predictions", [f"prob_{k}" for k in range(5)], "label", dtype="float32")
    cursor = database.execute(query)
    names = [column[0] for column in cursor.description]
    columns = dict(zip(names, zip(*cursor.fetchall(), strict=True), strict=True))
    expected = BinnedPredictions.from_predictions(p, target, input="probs")
    assert BinnedPredictions.from_table(columns, num_classes=5, edges=expected.edges).classes == expected.classes


def test_bins_by_hand_are_read_back(database: Any) -> None:
    confidence, correct = torch.rand(500, dtype=torch.float64), torch.rand(500) < 0.5
    fill(database, {"c": (DOUBLE, confidence.tolist()), "hit": ("INTEGER", correct.long().tolist())})
    query = """SELECT CAST(CEIL(u * 4 / 4294967296e0) AS INTEGER) - 1, COUNT(*), SUM(u), SUM(hit)
    FROM (SELECT hit, CAST(c * 4294967296e0 AS BIGINT) AS u FROM predictions) AS t GROUP BY 1"""
    bins = BinStats.from_table(database.execute(query).fetchall(), num_bins=4)
    assert bins == BinStats.from_confidence(confidence, correct, num_bins=4)


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
        bin_table(database, "predictions")
    assert rule in str(error.value)
    assert "WHERE" in str(error.value)
    valid = "SELECT * FROM predictions WHERE p0 = 0.25 -- the rest is invalid"
    assert bin_table(database, valid).num_samples == 5


def test_invalid_logits_arrays_and_groups_are_refused(database: Any) -> None:
    values = [[1.0, 2.0], [1.0, float("nan")], [float("-inf")] * 2, [float("inf"), 0.0], [1.0], None, [1.0, None]]
    groups = ["a", "a", "a", "a", "a", "a", "a"]
    fill(database, {"logits": (f"{DOUBLE}[]", values), "y": ("INTEGER", [0] * 7), "g": ("TEXT", groups)})
    first = "SELECT * FROM predictions ORDER BY CASE WHEN logits[1] = 1 AND logits[2] = 2 THEN 0 ELSE 1 END"
    with pytest.raises(PredictionsError, match="6 of 7 rows") as error:
        bin_table(database, first)
    assert "NaN or +inf, and each row needs a finite value: 3 rows" in str(error.value)
    assert "must have 2 values: 2 rows" in str(error.value)
    assert "must not be NULL: 1 row" in str(error.value)
    valid = "SELECT logits, y, NULLIF(g, 'a') AS g FROM predictions WHERE logits[1] = 1 AND logits[2] = 2"
    with pytest.raises(PredictionsError, match='"g" IS NOT NULL'):
        PredictionTable.find(database, valid, group="g").bin()


def test_an_empty_table_has_no_samples(database: Any) -> None:
    fill(database, {"p0": (REAL, [0.5]), "p1": (REAL, [0.5]), "y": ("INTEGER", [0])})
    with pytest.raises(PredictionsError, match="no samples"):
        bin_table(database, "SELECT * FROM predictions WHERE y > 0")


def test_probabilities_named_logits_are_refused(database: Any) -> None:
    p, target = probabilities(100, dtype=torch.float64)
    columns = {f"logit_{k}": (DOUBLE, p[:, k].abs().tolist()) for k in range(5)}
    fill(database, {**columns, "y": ("INTEGER", target.tolist())})
    with pytest.raises(PredictionsError, match="--probs"):
        bin_table(database, "predictions")
    assert bin_table(database, "predictions", logits="logit").num_samples == 100


def test_too_many_groups_are_refused(database: Any) -> None:
    n = 1001
    fill(database, {"p0": (REAL, [0.5] * n), "p1": (REAL, [0.5] * n), "y": ("INTEGER", list(range(n)))})
    with pytest.raises(PredictionsError, match="at most 1000 groups"):
        PredictionTable.find(database, "SELECT *, y AS g FROM predictions", group="g").bin()


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
    assert sorted(table.bin_groups()) == sorted([name, "b"])
    check_same(table.bin(), p, target)
    assert database.execute("SELECT COUNT(*) FROM victims").fetchall() == [(0,)]


def test_random_confidences_fall_into_the_same_cells() -> None:
    """Cells of all levels, for many numbers of bins."""
    generator = np.random.default_rng(0)
    top = np.concatenate(
        [generator.random(3000) / 2 + 0.5, 1 - generator.random(3000) * 2.0 ** -generator.integers(1, 36, 3000)]
    )
    p = torch.from_numpy(np.stack([top, 1 - top], axis=1))
    target = torch.zeros(len(p), dtype=torch.int64)
    with duckdb.connect() as database:
        fill(database, wide(p, target, DOUBLE))
        for num_bins in (1, 2, 3, 7, 100, 1000):
            check_same(bin_table(database, "predictions", num_bins=num_bins), p, target, num_bins=num_bins)
