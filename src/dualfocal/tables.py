"""Text tables, rendered as plain text, Markdown, HTML, CSV or for a rich console."""

import csv
import html
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = ["Table", "printable", "quantity"]

GAP = 2  # between columns without a box
WORDS = re.compile("(?<= )(?!%)")  # where a text may be broken
NAMES = re.compile("(?<=[-/ ])")  # where a name may be broken if there is no other way
NAME_WIDTHS = (30, 30, 12)  # at which names are broken, the more the narrower the console is


def printable(text: str, keep: str = "") -> str:
    r"""Return text with escapes for characters that control a terminal or change the order of text, except ``keep``.

    Names in a file can hold anything; on a terminal they must not move the cursor, hide a line or reverse a word.

    >>> print(printable("cat\x1b[2J\u202edog"))
    cat\x1b[2J\u202edog
    """
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode() if _controls(character) and character not in keep else character
        for character in text
    )


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> quantity(1, "sample"), quantity(2000, "sample"), quantity(2, "class")
    ('1 sample', '2,000 samples', '2 classes')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _controls(character: str) -> bool:
    category = unicodedata.category(character)
    return category.startswith("C") or category in ("Zl", "Zp")  # control, format, surrogate; line separators


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Args:
        headings: column headings.
        rows: cells of each row.
        title: caption of the table.
        left: indices of left-aligned columns; the others are right-aligned.

    >>> print(Table(["loss", "ECE %"], [["cross_entropy", "4.35"], ["dual_focal", "1.18"]]).text())
    loss           ECE %
    cross_entropy   4.35
    dual_focal      1.18
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    left: Sequence[int] = (0,)

    def text(self) -> str:
        """Plain text with aligned columns, without the title."""
        rows = [list(map(printable, row)) for row in (self.headings, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = zip(row, widths, strict=True)
            aligned = [cell.ljust(w) if i in self.left else cell.rjust(w) for i, (cell, w) in enumerate(cells)]
            lines.append("  ".join(aligned).rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """Markdown table, without the title."""
        aligned = ["---" if i in self.left else "---:" for i in range(len(self.headings))]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.headings, aligned, *self.rows))

    def html(self) -> str:
        """HTML table, with the title as its caption."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.headings)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def csv(self) -> str:
        """Comma-separated lines, without the title."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.headings, *self.rows])
        return out.getvalue()

    def rich(self, width: int, *, boxed: bool = True) -> "list[RichTable]":
        """Tables for a rich console: one or, if the columns do not fit, several, which all have the first column.

        Headings and texts, which are in left-aligned columns, are broken between words. Intervals and names such as
        noise-1 are broken only if there is no other way, and numbers never.

        Args:
            width: width of the console.
            boxed: whether the table has a box.
        """
        from rich.table import Table as RichTable
        from rich.text import Text

        tables = []
        for part in self._parts(width, boxed):
            plain = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
            table = RichTable() if boxed else plain
            columns = part._columns()
            widths = _fit(columns, width - _frame(len(columns), boxed))
            lines = []
            for column, size in zip(columns, widths, strict=True):
                justify: Literal["left", "right"] = "left" if column.left else "right"
                table.add_column(Text("\n".join(_lines(column.heading, size))), justify=justify, width=size)
                lines.append([Text("\n".join(_lines(cell, size))) for cell in column.cells])
            for row in zip(*lines, strict=True):
                table.add_row(*row)
            tables.append(table)
        return tables

    def _columns(self) -> "list[_Column]":
        rows = [list(map(printable, row)) for row in (self.headings, *self.rows)]
        return [_Column(i in self.left, *column) for i, column in enumerate(zip(*rows, strict=True))]

    def _parts(self, width: int, boxed: bool) -> "list[Table]":
        """Return the table, or tables with a part of the columns each if they do not fit."""
        columns = self._columns()
        if sum(column.least(2) for column in columns) + _frame(len(columns), boxed) <= width:
            return [self]
        least = [column.least(0) for column in columns]
        least[0] = min(least[0], width // 3)
        groups: list[list[int]] = [[]]
        for i in range(1, len(columns)):
            used = [least[k] for k in (0, *groups[-1], i)]
            if groups[-1] and sum(used) + _frame(len(used), boxed) > width:
                groups.append([])
            groups[-1].append(i)
        return [self._select([0, *group]) for group in groups]

    def _select(self, columns: Sequence[int]) -> "Table":
        rows = [[row[i] for i in columns] for row in self.rows]
        left = [place for place, i in enumerate(columns) if i in self.left]
        return Table([self.headings[i] for i in columns], rows, self.title, left)


# Layout for a console


class _Column:
    """A column of a table.

    Args:
        left: whether it is left-aligned, and holds texts.
        heading: its heading.
        cells: its cells.
    """

    def __init__(self, left: bool, heading: str, *cells: str) -> None:
        self.left, self.heading, self.cells = left, heading, cells

    def natural(self) -> int:
        """Return the width that breaks nothing."""
        return max(map(_size, (self.heading, *self.cells)))

    def least(self, level: int) -> int:
        """Return the least width.

        Args:
            level: 0: texts are broken between words; 1: also intervals, and names at - and /; 2: also long names.
        """
        heading = max(map(_size, WORDS.split(self.heading)))
        if level == 0 and not self.left:
            return max(heading, *map(_size, self.cells), 0)
        breaks = NAMES if self.left and level else WORDS
        longest = max((_size(part) for cell in self.cells for part in breaks.split(cell)), default=0)
        return max(heading, min(longest, NAME_WIDTHS[level]) if self.left else longest)


def _size(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text.rstrip())


def _frame(number: int, boxed: bool) -> int:
    """Return the width of a table of so many empty columns."""
    return 3 * number + 1 if boxed else GAP * (number - 1)


def _fit(columns: "Sequence[_Column]", width: int) -> list[int]:
    """Return the widths of columns whose sum is at most ``width``, if they can be broken to fit."""
    widths = [column.natural() for column in columns]
    for level in range(3):
        least = [column.least(level) for column in columns]
        if sum(least) <= width:
            break
    while sum(widths) > width:
        spare = [now - low for now, low in zip(widths, least, strict=True)]
        if max(spare) == 0:  # a console of a few columns: only names can be narrower
            spare = [now - 1 if column.left else 0 for now, column in zip(widths, columns, strict=True)]
        if max(spare) == 0:
            break
        widths[spare.index(max(spare))] -= 1
    return widths


def _lines(text: str, width: int) -> list[str]:
    """Break a text into lines of at most this width: between words and, only if they are longer, inside them."""
    from rich.cells import chop_cells

    lines = [""]
    words = [[word] if _size(word) <= width else NAMES.split(word) for word in WORDS.split(text)]
    for part in (part for word in words for part in word):
        if _size(lines[-1] + part) > width and lines[-1]:
            lines.append("")
        *full, rest = chop_cells(part, width) if _size(part) > width else [part]
        lines[-1:] = [*full, rest] if full else [lines[-1] + rest]
    return [line.rstrip() for line in lines if line.strip()]
