"""Text tables, rendered as plain text, Markdown, HTML, CSV or for a rich console."""

import csv
import html
import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable


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

    def rich(self, *, boxed: bool = True) -> "RichTable":
        """Table for a rich console, with or without a box. Long cells are wrapped, never truncated."""
        from rich.table import Table as RichTable
        from rich.text import Text

        plain = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table = RichTable() if boxed else plain
        for i, heading in enumerate(self.headings):
            table.add_column(Text(printable(heading)), justify="left" if i in self.left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        return table
