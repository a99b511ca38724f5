"""Groups of samples, each evaluated on its own: `--group-by` of `dualfocal evaluate`."""

from collections.abc import Sequence

from rich.console import Console

from dualfocal.cli._common import print_table, say
from dualfocal.metrics.groups import GroupEvaluation, group_table
from dualfocal.predictions import Predictions


def check_groups(name: str, data: Predictions) -> None:
    """Raise a ValueError if the groups are the labels."""
    if data.group_name is not None and data.group_name == data.label_name:
        raise ValueError(
            f"--group-by: {data.group_name!r} of {name} holds the labels, and among samples of one label no model is "
            "calibrated; group by what is known before the label is"
        )


def print_groups(out: Console, column: str, groups: Sequence[GroupEvaluation]) -> None:
    """The table, and how many groups are miscalibrated."""
    table = group_table(column, groups)
    print_table(out, table.title, table.headings, table.rows)
    number = sum(group.p_adjusted <= 0.05 for group in groups)
    text = (
        f"{number} of {len(groups)} groups are miscalibrated at 5 %, p-values adjusted for {len(groups)} tests (Holm). "
        "Worst first by the lower end of the interval."
    )
    say(out, text, "bold")
