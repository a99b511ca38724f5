"""`dualfocal evaluate --sql`: the same output for predictions in a database, which is read in batches."""

import math
from typing import TYPE_CHECKING

from rich.console import Console

from dualfocal.cli._common import consoles, errors_name, print_json, progress_bar, say
from dualfocal.cli._evaluate.findings import Finding, gate, print_finding
from dualfocal.cli._evaluate.request import Request

if TYPE_CHECKING:
    from dualfocal.integrations.sql import PredictionTable
    from dualfocal.metrics import CalibrationSums
    from dualfocal.predictions import Reading

PLACE = "--sql, which reads the rows in one pass"
EXPORT = "export the rows to a file, and evaluate that"
REMEDIES = {  # of options that do not apply
    "--merge": "join the tables in the query, with UNION ALL",
    "--split": "select rows in the query, with WHERE",
    "--ignore-index": "exclude rows in the query, with WHERE",
    "--max-memory": "leave it out",
    "--percent": "divide by 100 in the query",
    "--drop-missing": "exclude rows in the query, with WHERE",
    "--group-quantiles": "compute the group in the query, with NTILE",
    "--prediction": EXPORT,
    "--confidence": EXPORT,
    "--calibrate": EXPORT,
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
    from dualfocal.integrations.sql.databases import open_database, without_password
    from dualfocal.plots import reliability_figure, save

    places, reading, plot = request.files, request.reading, request.plot
    request.refuse(PLACE, REMEDIES)
    if len(places) > 1:
        raise ValueError(f"--sql reads one database, got {len(places)}")
    out, err = consoles(request.as_json)
    name = without_password(" ".join(": ".join([*places, source]).split()))
    with open_database(places[0] if places else None) as connection, errors_name(name):
        table = _find_table(connection, source, reading)
        say(err, f"{name}: {table.taken}")
        with progress_bar(err, "reading") as progress:
            sums = table.sums_by_group(
                num_bins=reading.num_bins, binary=reading.binary, progress=progress if err.is_terminal else None
            )
        finding = _evaluate(err, name, table, sums, reading, request.inference)
    print_finding(out, finding)
    if request.as_json:
        print_json({"schema": 1, "files": [finding.to_dict()]})
    if plot is not None:
        save(reliability_figure({name: finding.evaluation}), plot, dpi=150)
        say(err, f"Reliability diagram: {plot}")
    if request.fail_over is not None:
        gate(err, {name: finding.evaluation}, request.fail_over)


def _find_table(connection: object, source: str, reading: "Reading") -> "PredictionTable":
    """Find the columns of a table, and check that they fit the options, by the rules for files."""
    from dualfocal.integrations.sql import PredictionTable
    from dualfocal.metrics.inputs import INDEPENDENT

    table = PredictionTable.find(
        connection,
        source,
        logits=reading.logits,
        probs=reading.probs,
        target=reading.target,
        group=reading.group,
        cluster=None if reading.cluster == INDEPENDENT else reading.cluster,
        positive=reading.positive,
        class_names=reading.class_names,
    )
    columns, num_classes = table.columns, len(table.labels)
    if columns.group is not None and columns.group == columns.target:
        raise ValueError(
            f"--group-by: {columns.group!r} holds the labels, and among samples of one label no model is calibrated; "
            "group by something that is known before the label"
        )
    if columns.cluster is not None and columns.cluster == columns.target:
        raise ValueError(
            f"--cluster: {columns.cluster!r} holds the labels; a cluster must be known before the label, such as a "
            "patient or an image"
        )
    if reading.binary is not None and num_classes != 2:
        raise ValueError(f"--binary needs two classes, but {columns.input} have {num_classes}")
    if reading.binary is None and table.one_score:
        raise ValueError(
            f"{columns.values[0]!r} is one score per sample, a binary problem: give --binary top_label to evaluate the "
            "confidence of the predicted class, or --binary positive for the probability of class 1"
        )
    return table


def _evaluate(
    err: Console,
    name: str,
    table: "PredictionTable",
    sums: "dict[str, CalibrationSums]",
    reading: "Reading",
    inference: bool,
) -> Finding:
    """Evaluate all groups together and, if there are groups, each of them."""
    import numpy as np

    from dualfocal.metrics.groups import evaluate_many, label_counts_follow_groups

    first, *others = sums.values()
    evaluation = sum(others, first).evaluate(inference=inference, level=reading.level, seed=reading.seed)
    finding = Finding(name, table.taken, evaluation, table.columns.class_names)
    if evaluation.nll == math.inf:
        finding.infinite_nll = "a true class has probability 0"
    if reading.group is None:
        return finding
    for group, part in sums.items():
        if part.num_clusters == 1:
            raise ValueError(f"group {group!r} holds only one cluster: leave out such groups")
    with progress_bar(err, "groups") as progress:
        finding.groups = evaluate_many(sums, level=reading.level, seed=reading.seed, progress=progress)
    classes = [part.classes for part in sums.values() if part.classes is not None]
    finding.group_column = table.columns.group
    finding.groups_follow_labels = label_counts_follow_groups(np.stack([bins.correct.sum((1, 2)) for bins in classes]))
    return finding
