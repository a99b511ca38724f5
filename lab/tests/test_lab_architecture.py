"""The rules of the lab: what it may import from the library, and what a command may load before it runs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import dualfocal
import dualfocal_lab

SOURCE = Path(dualfocal_lab.__file__).parent
# Subpackage -> what it must not import.
FORBIDDEN = {
    **{name: {"runs", "train", "study", "paper", "cli"} for name in ("theory", "models", "data", "kernels")},
    "runs": {"train", "study", "paper", "cli"},
    "train": {"study", "paper", "cli"},
    "study": {"paper", "cli"},
}


def imported(package: str) -> Iterator[tuple[str, str, str]]:
    """Yield each file of the lab, with each module and name of a package that it imports."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
                for alias in node.names:
                    yield path.relative_to(SOURCE).as_posix(), str(node.module), alias.name


def test_the_lab_uses_public_names_of_the_library() -> None:
    for file, module, name in imported("dualfocal"):
        parts = module.split(".")
        assert not any(part.startswith("_") for part in parts), f"{file}: {module}"
        assert name in import_module(module).__all__, f"{file}: {module}.{name}"


def test_imports_go_one_way() -> None:
    for file, module, _ in imported("dualfocal_lab"):
        room = module.partition(".")[2].partition(".")[0]
        assert room not in FORBIDDEN.get(file.split("/")[0], ()), f"{file}: {module}"


def test_the_lab_has_the_version_of_the_library() -> None:
    assert dualfocal_lab.__version__ == dualfocal.__version__


def test_help_does_not_wait_for_torch() -> None:
    code = """
import contextlib, sys
from dualfocal.cli import main
for arguments in (["--help"], ["train", "--help"], ["study", "--help"], ["data", "--help"], ["paper", "--help"]):
    with contextlib.suppress(SystemExit):
        main(arguments)
    print(arguments, [name for name in ("torch", "numpy", "scipy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reports = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(reports) == 5
    assert [line for line in reports if not line.endswith("] []")] == []


def test_help_names_what_the_registries_hold() -> None:
    from dualfocal.losses import LOSSES
    from dualfocal_lab.cli import _common as cli
    from dualfocal_lab.data.sources import OFFICIAL
    from dualfocal_lab.models import MODELS
    from dualfocal_lab.paper.figures import FIGURES
    from dualfocal_lab.paper.reproduce import FIELDS
    from dualfocal_lab.study import PAPER_LOSSES
    from dualfocal_lab.study.gammas import CRITERIA
    from dualfocal_lab.theory import FIGURE_1
    from dualfocal_lab.train.presets import PRESETS

    assert tuple(LOSSES) == cli.LOSSES
    assert cli.PAPER_LOSSES == PAPER_LOSSES
    assert tuple(PRESETS) == cli.PRESETS
    assert tuple(cli.Criterion) == CRITERIA
    assert tuple(FIGURES) == cli.FIGURES
    assert tuple(FIELDS) == cli.FIELDS
    assert cli.FIGURE_1 == FIGURE_1
    assert tuple(OFFICIAL) == cli.DATA_SETS
    assert tuple(MODELS) == cli.MODELS
