"""Tables on consoles of any width."""

import io
import re

import pytest
from rich.console import Console

from dualfocal.tables import Table

HEADINGS = ["set", "N", "error [%]", "NLL [nats]", "90 % interval", "AUROC entropy", "AUROC errors"]
ROWS = [
    ["noise-1", "600", "35.62-42.15", "0.9007-1.0195", "-0.0063 to +0.0030", "53.3-58.7", "61.8-69.1"],
    ["cross_entropy", "1,600", "5.1", "0.1", "+0.1000 to +0.2000", "", "70.5"],
]


def printed(table: Table, width: int, *, boxed: bool) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in table.rich(width, boxed=boxed):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("boxed", [True, False])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_number_and_no_name_is_cut(width, boxed):
    text = printed(Table(HEADINGS, ROWS), width, boxed=boxed)
    assert max(map(len, text.splitlines())) <= width
    words = {word for row in ROWS for cell in row for word in cell.split()}
    assert words <= set(re.findall(r"[^\s│]+", text))


def test_a_wide_table_becomes_several_with_the_first_column():
    first, second = Table(HEADINGS, ROWS).rich(80)
    assert [str(column.header) for column in first.columns][:2] == ["set", "N"]
    assert str(second.columns[0].header) == "set"
    headings = [*first.columns, *second.columns[1:]]
    assert [str(column.header) for column in headings] == HEADINGS
    assert len(Table(HEADINGS, ROWS).rich(120)) == 1


def test_headings_break_before_intervals_and_these_before_columns_are_moved():
    rows = [["north", "11.0 - 19.7", "0.001"]]
    table = Table(["ward", "debiased, 90 %", "adjusted p"], rows)
    assert "11.0 - 19.7" in printed(table, 36, boxed=True)
    assert re.search(r"11.0 -\s.*\n.*19.7", printed(table, 32, boxed=True))
    assert "90 %" in printed(table, 32, boxed=True)


def test_long_names_are_broken_between_words_and_never_lost():
    name = "runs/digits-small_cnn-dual_focal"
    lines = printed(Table(["run", "ECE"], [[name, "1.23"]]), 24, boxed=False).splitlines()[1:]
    parts = [line[:18].strip() for line in lines]
    assert "".join(parts) == name
    assert all(part.endswith(("-", "/", "focal")) for part in parts)
    wide = "\u6771\u4eac" * 20  # two columns each
    lines = printed(Table(["run", "ECE"], [[wide, "1.23"]]), 24, boxed=False).splitlines()[1:]
    assert "".join(line.split()[0] for line in lines) == wide
