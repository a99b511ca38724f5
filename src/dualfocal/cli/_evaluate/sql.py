"""`dualfocal evaluate --sql`: the same output for predictions in a database, from sums that the database computes."""

import math
from typing import TYPE_CHECKING

from rich.console import Console

from dualfocal.cli._common import consoles, errors_name, print_json, progress_bar, say
from dualfocal.cli._evaluate.findings import Finding, gate, print_finding
from dualfocal.cli._evaluate.request import Request

if TYPE_CHECKING:
    from dualfocal.integrations.sql import PredictionTable
    from dualfocal.metrics import BinnedPredictions
    from dualfocal.predictions import Reading

PLACE = "--sql, which leaves the rows in the database"
TOP_LABEL = (
    "Two classes: the metrics are about the confidence of the predicted class, and the Brier score is the sum over "
    "both classes."
)
EXPORT = "export the rows to a file, and evaluate that"
REMEDIES = {  # of options that do not apply
    "--merge": "join the tables in the query, with UNION ALL",
    "--split": "select rows in the query, with WHERE",
    "--ignore-index": "exclude rows in the query, with WHERE",
    "--max-memory": "leave it out",
    "--percent": "divide by 100 in the query",
    "--drop-missing": "exclude rows in the query, with WHERE",
    "--class-names": "rename the columns in the query",
    "--group-quantiles": "compute the group in the query, with NTILE",
    "--prediction": EXPORT,
    "--confidence": EXPORT,
    "--calibrate": EXPORT,
    "--cluster": EXPORT,
    "--weight": EXPORT,
    "--convention": EXPORT,
    "--plot-style quantile": EXPORT,
    "--plot-style corp": EXPORT,
}


def evaluate_sql(request: Request, source: str) -> None:
    """Evaluate a table or a SELECT, and print the result.

    Args:
        request: the files are a DuckDB file or a PostgreSQL URL, or nothing for DuckDB in memory.
        source: the table or the SELECT.
    """
    from dualfocal.integrations.sql import PredictionTable
    from dualfocal.integrations.sql.databases import open_database, without_password
    from dualfocal.plots import reliability_figure, save

    places, reading, plot = request.files, request.reading, request.plot
    request.refuse(PLACE, REMEDIES)
    if reading.binary == "positive":
        raise ValueError(f"--binary positive does not apply to {PLACE}: {EXPORT}")
    if len(places) > 1:
        raise ValueError(f"--sql reads one database, got {len(places)}")
    out, err = consoles(request.as_json)
    name = without_password(" ".join(": ".join([*places, source]).split()))
    with open_database(places[0] if places else None) as connection, errors_name(name):
        table = PredictionTable.find(
            connection,
            source,
            logits=reading.logits,
            probs=reading.probs,
            target=reading.target,
            group=reading.group,
            positive=reading.positive,
        )
        _check_columns(table, reading)
        say(err, f"{name}: {table.taken}")
        states = table.bin_groups(num_bins=reading.num_bins)
    finding = _evaluate(err, name, table, states, reading, request.inference)
    print_finding(out, finding, TOP_LABEL)
    if request.as_json:
        print_json({"schema": 1, "files": [finding.to_dict()]})
    if plot is not None:
        save(reliability_figure({name: finding.evaluation}), plot, dpi=150)
        say(err, f"Reliability diagram: {plot}")
    if request.fail_over is not None:
        gate(err, {name: finding.evaluation}, request.fail_over)


def _check_columns(table: "PredictionTable", reading: "Reading") -> None:
    """Raise a ValueError if the columns do not fit the options, by the rules for files."""
    columns, num_classes = table.columns, table.reduction().num_classes
    if columns.group is not None and columns.group == columns.target:
        raise ValueError(
            f"--group-by: {columns.group!r} holds the labels, and among samples of one label no model is calibrated; "
            "group by something that is known before the label"
        )
    if reading.binary is not None and num_classes != 2:
        raise ValueError(f"--binary needs two classes, but {columns.input} have {num_classes}")
    if reading.binary is None and table.array_length is None and len(columns.values) == 1:
        raise ValueError(
            f"{columns.values[0]!r} is one score per sample, a binary problem: score the confidence of the predicted "
            "class with --binary top_label"
        )


def _evaluate(
    err: Console,
    name: str,
    table: "PredictionTable",
    states: "dict[str, BinnedPredictions]",
    reading: "Reading",
    inference: bool,
) -> Finding:
    """Evaluate all groups together and, if there are groups, each of them."""
    import torch

    from dualfocal.metrics.groups import draws_for_groups, label_counts_follow_groups, rank_groups

    first, *others = states.values()
    evaluation = sum(others, first).evaluate(inference=inference, level=reading.level, seed=reading.seed)
    finding = Finding(name, table.taken, evaluation, table.class_names)
    if evaluation.nll == math.inf:
        finding.infinite_nll = "a true class has probability 0"
    if reading.group is None:
        return finding
    evaluations, draws = {}, draws_for_groups(len(states))
    with progress_bar(err, "groups") as progress:
        for done, (group, state) in enumerate(states.items(), start=1):
            evaluations[group] = state.evaluate(level=reading.level, draws=draws, seed=reading.seed)
            progress(done / len(states))
    counts = torch.stack([state.classes.correct.sum((1, 2)) for state in states.values()])
    finding.group_column = table.columns.group
    finding.groups = rank_groups(evaluations)
    finding.groups_follow_labels = label_counts_follow_groups(counts)
    return finding
