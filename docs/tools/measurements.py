"""Pages of the measurements in benchmarks/results, and wide or long tables."""

import ast
import csv
import re
import textwrap
from pathlib import Path

from links import ROOT, outside_code

from dualfocal.tables import Table

UNITS = {"ms": "ms", "s": "s", "mib": "MiB", "gib": "GiB", "percent": "%"}  # at the end of a column's name
LONG = 25  # rows from which on a table has its own scroll bar


def markdown(table: Table) -> str:
    """Return a table that may be wide or long; cells are Markdown."""
    rows = [[outside_code(cell, lambda text: text.replace("|", "\\|")) for cell in row] for row in table.rows]
    text = Table(table.headings, rows, left=table.left).markdown()
    return f'<div class="long" markdown>\n\n{text}\n\n</div>' if len(rows) >= LONG else text


def measurements_page(path: Path) -> str:
    """Return the page of a CSV file. Columns with one value for all rows are written above the table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    names, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    same = {name: cells[0] for name, cells in columns.items() if len(set(cells)) == 1 and len(rows) > 1}
    shown = {name: cells for name, cells in columns.items() if name not in same}
    left = [i for i, cells in enumerate(shown.values()) if not all(map(is_number, cells))]
    table = Table([column_title(name) for name in shown], [*zip(*shown.values(), strict=True)], left=left)
    facts = ", ".join(f"{column_title(name)} {cell}" for name, cell in same.items() if cell)
    command, script = origin(path)
    about = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    summary = " ".join(about.split("\n\n")[0].split())
    uses = [
        f"[{page.stem}](../../{page.relative_to(ROOT / 'docs').as_posix()})"
        for page in sorted(ROOT.glob("docs/**/*.md"))
        if f"benchmarks/results/{path.name}" in page.read_text(encoding="utf-8")
    ]
    picture = f"![{summary}]({path.stem}.png)" if path.with_suffix(".png").exists() else ""
    parts = [
        f"# {measurements_title(path.stem)}",
        summary,
        f"Made by `{command}`. [Download as CSV]({path.name}). Used in: {', '.join(uses) or 'no page'}.",
        f"In all rows: {facts}." if facts else "",
        *(line.lstrip("# ") for line in lines if line.startswith("#")),
        markdown(table),
        picture,
        f'??? info "What the script measures"\n\n    ```text\n{textwrap.indent(about, "    ")}\n    ```',
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def origin(path: Path) -> tuple[str, Path]:
    """Return the command that made a CSV file, as `make bench` runs it, and its script."""
    made = re.search(rf"(benchmarks/\w+\.py.*?) --csv \S*/{path.name}$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    if made:
        return f"python {made[1]}", ROOT / made[1].split()[0]
    scripts = sorted(ROOT.glob("benchmarks/[!_]*.py"), key=lambda script: len(script.stem), reverse=True)
    by_name = [script for script in scripts if path.stem.startswith(script.stem)]
    by_text = [script for script in scripts if path.name in script.read_text(encoding="utf-8")]
    if not by_name + by_text:
        raise ValueError(f"{path}: no script of benchmarks/ names it; write its name into the docstring of the script")
    script = (by_name + by_text)[0]
    return f"python benchmarks/{script.name}", script


def measurements_title(name: str) -> str:
    """Return the title of a page from the name of its file.

    >>> measurements_title("loss_gpu_linear"), measurements_title("metrics_cpu")
    ('Loss on a GPU, linear', 'Metrics on the CPU')
    """
    name = name.replace("_gpu_", " on a GPU, ").replace("_gpu", " on a GPU").replace("_cpu", " on the CPU")
    return name[0].upper() + name[1:].replace("_", " ")


def column_title(name: str) -> str:
    """Return a readable column title, with its unit.

    >>> column_title("ours_ms"), column_title("ms_a_step"), column_title("num_classes")
    ('ours [ms]', 'ms a step', 'num classes')
    """
    words = name.split("_")
    unit = UNITS.get(words[-1]) if len(words) > 1 else None
    return f"{' '.join(words[:-1])} [{unit}]" if unit else " ".join(words)


def is_number(cell: str) -> bool:
    """Whether a cell is a number or empty."""
    return re.fullmatch(r"([-+]?[\d.]+(e[-+]?\d+)?)?", cell) is not None
