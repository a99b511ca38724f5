"""Pages that are made from the package and from committed results: API, commands, measurements, runs, the paper."""

import ast
import csv
import html
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from links import ROOT, outside_code

import dualfocal
from dualfocal._table import Table
from dualfocal.cli import app
from dualfocal.paper.errata import GROUPS, OUT_OF_SCOPE
from dualfocal.paper.published import Cell, published_tables
from dualfocal.paper.published import Table as PaperTable
from dualfocal.paper.replication import decide_claims
from dualfocal.paper.replication_plan import replication_plan
from dualfocal.runs import find_runs
from dualfocal.runs.listing import list_run, runs_table

NOT_API = {"cli", "integrations", "kernels", "paper"}
UNITS = {"ms": "ms", "s": "s", "mib": "MiB", "gib": "GiB", "percent": "%"}  # at the end of a column's name
LONG = 25  # rows from which on a table has its own scroll bar


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of each page."""
    yield from api_pages()
    yield from command_pages()
    for path in sorted(ROOT.glob("benchmarks/results/*.csv")):
        yield f"benchmarks/results/{path.stem}.md", measurements_page(path)
    yield "results/runs.md", runs_page()
    yield "paper/replication.md", replication_page()
    yield "paper/published.md", published_page()
    yield "paper/errata.md", errata_page()
    yield "LICENSE.md", f"# Licence\n\n```text\n{(ROOT / 'LICENSE').read_text('utf-8')}```\n"


def markdown(table: Table) -> str:
    """Return a table that may be wide or long; cells are Markdown."""
    rows = [[outside_code(cell, lambda text: text.replace("|", "\\|")) for cell in row] for row in table.rows]
    text = Table(table.headings, rows, left=table.left).markdown()
    return f'<div class="long" markdown>\n\n{text}\n\n</div>' if len(rows) >= LONG else text


# API: the names of __all__


def api_pages() -> Iterator[tuple[str, str]]:
    """A page for the package, for each public subpackage, and for each module of `integrations`."""
    rows = [[f"[`{name}`][{home(name)}]", first_sentence(getattr(dualfocal, name))] for name in public_names(dualfocal)]
    table = markdown(Table(["name", ""], rows, left=(0, 1)))
    yield "api/index.md", f"# dualfocal\n\n{dualfocal.__doc__}\n\nThe names that most programs need:\n\n{table}\n"
    parts = {module.name for module in pkgutil.iter_modules(dualfocal.__path__) if not module.name.startswith("_")}
    inner = pkgutil.iter_modules(importlib.import_module("dualfocal.integrations").__path__)
    integrations = [f"integrations.{module.name}" for module in inner if not module.name.startswith("_")]
    for part in [*sorted(parts - NOT_API), *integrations]:
        path = f"dualfocal.{part}"
        members = ", ".join(public_names(importlib.import_module(path)))
        options = f"{{members: [{members}], show_root_heading: false, show_root_toc_entry: false, summary: true}}"
        yield f"api/{part}.md", f"---\ntitle: {part}\n---\n# {path}\n\n::: {path}\n    options: {options}\n"


def public_names(module: Any) -> list[str]:
    """Return `__all__`, or what the module itself defines, without private names and modules."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    names = getattr(module, "__all__", own)
    return [name for name in names if not name.startswith("_") and not inspect.ismodule(getattr(module, name))]


def home(name: str) -> str:
    """Return the dotted name of a name of `dualfocal` in the subpackage that documents it."""
    parts = ("losses", "metrics", "calibrators")
    part = next(part for part in parts if name in importlib.import_module(f"dualfocal.{part}").__all__)
    return f"dualfocal.{part}.{name}"


def first_sentence(value: Any) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()) if callable(value) else ""


# Commands: what --help shows


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command, and for each group of commands."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("dualfocal", [], resilient_parsing=True)
    rows = [
        [f"[`dualfocal {name}`]({name}.md)", command.help.split("\n")[0]] for name, command in group.commands.items()
    ]
    table = markdown(Table(["command", ""], rows, left=(0, 1)))
    text = f"# Commands\n\n{group.help or ''}\n\n{table}\n\n{parameters(group, context)}\n"
    yield "commands/index.md", f"{text}\n`dualfocal COMMAND --help` shows the same as these pages.\n"
    for name, command in group.commands.items():
        inner = getattr(command, "commands", {})
        sections = [command_text(f"dualfocal {name}", command, "#")]
        sections += [command_text(f"dualfocal {name} {other}", inner[other], "##") for other in inner]
        yield f"commands/{name}.md", "\n".join(sections)


def command_text(name: str, command: Any, level: str) -> str:
    """Return a section about a command: usage, description, options."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    description = re.sub(r"^( {4}.*)\n\n(?= {4})", r"\1\n", command.help or "", flags=re.M)  # examples in one block
    return f"{level} {name}\n\n```text\n{usage}\n```\n\n{description}\n\n{parameters(command, context)}\n"


def parameters(command: Any, context: Any) -> str:
    """Return the table of arguments and options."""
    rows = []
    for parameter in command.params:
        record = None if parameter.hidden else parameter.get_help_record(context)
        if record:
            rows.append([f"`{record[0]}`", re.sub(r"([\[\]*_])", r"\\\1", html.escape(record[1].replace("`", "")))])
    return markdown(Table(["argument or option", ""], rows, left=(0, 1))) if rows else ""


# Measurements: the CSV files of benchmarks/results


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


# Runs and the paper


def runs_page() -> str:
    """All runs of results/, and the other folders there."""
    runs = find_runs(ROOT / "results")
    table = runs_table([list_run(run) for run in runs])
    names = [run.path.relative_to(ROOT / "results").as_posix() for run in runs]
    rows = [
        [f'<a id="{name.replace("/", "-").lower()}"></a>`{name}`', *row[1:]]
        for name, row in zip(names, table.rows, strict=True)
    ]
    inside = {part for name in names for part in (name, name.split("/")[0])}
    others = [path.name for path in sorted((ROOT / "results").iterdir()) if path.is_dir() and path.name not in inside]
    lists = []
    for name in others:
        contents = ", ".join(f"`{file.name}`" for file in sorted((ROOT / "results" / name).iterdir()))
        lists.append(f'<a id="{name.lower()}"></a>`results/{name}`: {contents}')
    return (
        "# All runs\n\nThe run folders of the repository's `results/`, read by `dualfocal.runs`. Metrics are those of "
        "the test split, before temperature scaling. [What they mean](README.md).\n\n"
        f"{markdown(Table(table.headings, rows, left=table.left))}\n\n" + "\n\n".join(lists) + "\n"
    )


def replication_page() -> str:
    """Claims, rules and verdicts of the replication, from the finished runs."""
    decided = decide_claims(find_runs(ROOT / "results" / "cifar10"))
    plan = replication_plan()
    state = f"{len(decided.missing)} trainings are outstanding" if decided.missing else "All trainings are finished"
    pending = sum(claim.verdict == "pending" for claim in decided.claims)
    rules = "\n".join(f"- **{name.replace('_', ' ')}**: {rule}" for name, rule in plan["rules"].items())
    claims = Table(
        ["claim", "of the paper", "reproduced if", "verdict"],
        [[claim.id, claim.claim, claim.rule, claim.verdict] for claim in decided.claims],
        left=range(4),
    )
    missing = "\n".join(decided.missing)
    return f"""# Replication report

The claims of the paper about CIFAR-10 and ResNet-50, the rules that decide them, and the verdicts so far. Claims and
rules were fixed when {len(plan["known_in_advance"])} of the runs were known; each verdict is repeated without these.
`dualfocal paper replication` prints the same, from the runs that you name.

!!! warning "{state}"

    {pending} of {len(decided.claims)} claims are pending: a claim is decided when all its runs are finished. The
    numbers below are of the runs that are finished.

## Claims

{markdown(claims)}

## Numbers so far

{markdown(decided.table())}

{decided.explanation()}

## Rules

{rules}

## Trainings that are missing

```text
{missing or "none"}
```
"""


def published_page() -> str:
    """Every number of the paper's tables."""
    parts = ["# Published tables", "Every number of the paper's tables, as printed, as the package has them."]
    for table in published_tables():
        notes = " ".join((table.caption, *table.notes))
        parts += [f"## {table.key}: {table.title}", notes, markdown(paper_table(table))]
    return "\n\n".join(parts) + "\n"


def paper_table(table: PaperTable) -> Table:
    """Return a table of the paper, with a column for each method. Temperatures are in brackets, bold is as printed."""

    def place(cell: Cell) -> tuple[str, ...]:
        return (cell.data, cell.model, cell.metric, cell.variant or cell.row or "", cell.stage or "")

    def text(cell: Cell) -> str:
        number = f"**{cell.printed}**" if cell.bold else cell.printed
        return number + (f" ({cell.temperature:g})" if cell.temperature is not None else "")

    headings = ["data", "model", "metric", table.variant or "row", "temperature scaling"]
    places, methods = dict.fromkeys(map(place, table.cells)), dict.fromkeys(cell.method for cell in table.cells)
    cells = {(place(cell), cell.method): text(cell) for cell in table.cells}
    kept = [i for i in range(len(headings)) if len({row[i] for row in places}) > 1]
    rows = [[*(row[i] for i in kept), *(cells.get((row, method), "") for method in methods)] for row in places]
    titles = [table.headings.get(method, method) for method in methods]
    return Table([*(headings[i] for i in kept), *titles], rows, left=range(len(kept)))


def errata_page() -> str:
    """Inconsistencies of the paper and of its code."""
    parts = [
        "# Errata",
        "Inconsistencies of the paper and its public code, what this package does, and how to get the published "
        "behaviour. `dualfocal paper errata` prints the same.",
    ]
    for kind, group in GROUPS.items():
        parts.append(f"## {kind[0].upper()}{kind[1:]}")
        for erratum in group:
            parts += [f"### {erratum.key}", f"**{erratum.where}.** {erratum.what}", f"*This package:* {erratum.ours}"]
            parts += [f"*As published:* `{erratum.option}`"] if erratum.option else []
    return "\n\n".join([*parts, "## Out of scope", *OUT_OF_SCOPE]) + "\n"
