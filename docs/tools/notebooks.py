"""Notebooks as pages: executed, with their output and pictures."""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from links import ROOT
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

CACHE = ROOT / ".cache" / "notebooks"
SECONDS = 900  # limit of a cell


def pages(path: Path, place: str) -> Iterator[tuple[str, str | bytes]]:
    """Yield the page of a notebook, as Markdown at `place`, and its pictures."""
    folder = place.removesuffix(".md") + "_files"
    resources = {"output_files_dir": Path(folder).name, "unique_key": path.stem}
    text, resources = MarkdownExporter().from_notebook_node(executed(path), resources)
    title, _, rest = text.lstrip().partition("\n")
    note = (
        f"[Download this notebook]({path.name}) to run it yourself. Its output below was made when this page was built."
    )
    yield place, f"{title}\n\n{note}\n{rest}"
    for name, content in resources["outputs"].items():
        yield f"{Path(place).parent}/{name}", content


def executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with output: run in an empty folder, or read from the cache if nothing has changed."""
    key = hashlib.sha256(b"".join(file.read_bytes() for file in [path, *sorted(ROOT.glob("src/**/*.py"))])).hexdigest()
    saved = CACHE / f"{path.stem}-{key[:16]}.ipynb"
    if saved.exists():
        return nbformat.read(saved, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    CACHE.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, saved)
    return notebook
