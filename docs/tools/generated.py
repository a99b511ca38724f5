"""Pages that are made from the package and from committed results: API, commands, measurements, runs, the paper."""

import html
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import typer
from links import ROOT
from measurements import markdown, measurements_page

import dualfocal
from dualfocal.cli import full_app
from dualfocal.tables import Table
from dualfocal_lab import RESULTS
from dualfocal_lab.paper.published import Cell, published_tables
from dualfocal_lab.paper.published import Table as PaperTable
from dualfocal_lab.runs import find_runs
from dualfocal_lab.runs.listing import list_run, runs_table

NOT_API = {"checks", "cli", "files", "integrations", "kernels", "objects", "paper"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the Markdown of each page."""
    yield from api_pages()
    yield from command_pages()
    for path in sorted(ROOT.glob("benchmarks/results/*.csv")):
        yield f"benchmarks/results/{path.stem}.md", measurements_page(path)
    yield "lab/results/runs.md", runs_page()
    yield "paper/published.md", published_page()
    yield "LICENSE.md", f"# Licence\n\n```text\n{(ROOT / 'LICENSE').read_text('utf-8')}```\n"


# API: the names of __all__


def api_pages() -> Iterator[tuple[str, str]]:
    """A page for the package, for each public subpackage, and for each module of `integrations`."""
    rows = [[f"[`{name}`][{home(name)}]", first_sentence(getattr(dualfocal, name))] for name in public_names(dualfocal)]
    table = markdown(Table(["name", ""], rows, left=(0, 1)))
    yield "api/index.md", f"# dualfocal\n\n{dualfocal.__doc__}\n\nThe names that most programs need:\n\n{table}\n"
    paths = [*public_modules("dualfocal"), *public_modules("dualfocal.integrations"), *public_modules("dualfocal_lab")]
    for path in paths:
        part = path.removeprefix("dualfocal.")
        members = ", ".join(public_names(importlib.import_module(path)))
        options = f"{{members: [{members}], show_root_heading: false, show_root_toc_entry: false, summary: true}}"
        yield f"api/{part}.md", f"---\ntitle: {part}\n---\n# {path}\n\n::: {path}\n    options: {options}\n"


def public_modules(package: str) -> list[str]:
    """Return the dotted names of the documented modules of a package."""
    inner = sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__))
    return [f"{package}.{name}" for name in inner if not name.startswith("_") and name not in NOT_API]


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
    group: Any = typer.main.get_command(full_app())
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


# Runs and the paper


def runs_page() -> str:
    """All runs of lab/results/, and the other folders there."""
    runs = find_runs(RESULTS)
    table = runs_table([list_run(run) for run in runs])
    names = [run.path.relative_to(RESULTS).as_posix() for run in runs]
    rows = [
        [f'<a id="{name.replace("/", "-").lower()}"></a>`{name}`', *row[1:]]
        for name, row in zip(names, table.rows, strict=True)
    ]
    inside = {part for name in names for part in (name, name.split("/")[0])}
    others = [path.name for path in sorted(RESULTS.iterdir()) if path.is_dir() and path.name not in inside]
    lists = []
    for name in others:
        contents = ", ".join(f"`{file.name}`" for file in sorted((RESULTS / name).iterdir()))
        lists.append(f'<a id="{name.lower()}"></a>`lab/results/{name}`: {contents}')
    return (
        "# All runs\n\nThe run folders of `lab/results/`, read by `dualfocal_lab.runs`. Metrics are those of the "
        "test split, before temperature scaling. [What they mean](README.md).\n\n"
        f"{markdown(Table(table.headings, rows, left=table.left))}\n\n" + "\n\n".join(lists) + "\n"
    )


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
