"""Text tables, rendered as plain text, Markdown, HTML, CSV or for a rich console."""

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable


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
        widths = [max(map(len, column)) for column in zip(self.headings, *self.rows, strict=True)]
        lines = []
        for row in (self.headings, *self.rows):
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
            table.add_column(Text(heading), justify="left" if i in self.left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table
