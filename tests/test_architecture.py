"""The rules of the package's layout: who may import whom, and what a command may load before it runs."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dualfocal"
BASE = {"losses", "kernels", "metrics", "calibrators", "predictions", "theory", "models", "data"}
# Subpackage -> what it must not import.
FORBIDDEN = {
    **{name: {"runs", "train", "study", "paper", "report"} for name in BASE},
    "kernels": {"losses", "runs", "train"},
    "runs": {"train", "study", "paper", "report"},
    "train": {"study", "paper", "report"},
}


@cache
def all_imports() -> list[tuple[str, str]]:
    """Each file of the package, and the dotted names of the package that it imports."""
    result = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            result += [(path.relative_to(SOURCE).as_posix(), name) for name in names if name.startswith("dualfocal.")]
    return result


def imports() -> list[tuple[str, str, str]]:
    """File, its subpackage, and the dotted name that it imports from another subpackage of dualfocal."""
    with_home = [(file, file.split("/")[0].removesuffix(".py"), name) for file, name in all_imports()]
    return [
        (file, home, name)
        for file, home, name in with_home
        if (SOURCE / name.split(".")[1]).is_dir() and name.split(".")[1] != home
    ]


def test_private_modules_are_imported_only_within_their_folder() -> None:
    wrong = []
    for file, name in all_imports():
        steps = name.split(".")[1:]
        folder = next(("/".join(steps[:index]) for index, step in enumerate(steps) if step.startswith("_")), "")
        if folder and not file.startswith(f"{folder}/"):
            wrong.append((file, name))
    assert wrong == []


def test_no_cycles_between_subpackages() -> None:
    graph: dict[str, set[str]] = {}
    for _, home, name in imports():
        graph.setdefault(home, set()).add(name.split(".")[1])
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"cycle: {' -> '.join(error.args[1])}")


def test_imports_go_one_way() -> None:
    wrong = [(file, name) for file, home, name in imports() if name.split(".")[1] in FORBIDDEN.get(home, ())]
    assert wrong == []


def test_only_main_imports_the_command_line() -> None:
    assert {file for file, _, name in imports() if name.split(".")[1] == "cli"} == {"__main__.py"}


def test_help_does_not_wait_for_torch() -> None:
    code = """
import contextlib, sys
from dualfocal.cli import main
for arguments in (["--help"], ["--version"], ["evaluate", "--help"], ["train", "--help"], ["paper", "--help"]):
    with contextlib.suppress(SystemExit):
        main(arguments)
    print(arguments, [name for name in ("torch", "numpy", "scipy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reports = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(reports) == 5
    assert [line for line in reports if not line.endswith("] []")] == []


def test_help_names_what_the_registries_hold() -> None:
    from dualfocal.calibrators import CALIBRATORS, MULTILABEL_CALIBRATORS
    from dualfocal.cli import _common as cli
    from dualfocal.data.sources import OFFICIAL
    from dualfocal.losses import LOSSES
    from dualfocal.models import MODELS
    from dualfocal.paper.figures import FIGURES
    from dualfocal.paper.reproduce import FIELDS
    from dualfocal.study import PAPER_LOSSES
    from dualfocal.study.gammas import CRITERIA
    from dualfocal.theory import FIGURE_1
    from dualfocal.train.presets import PRESETS

    assert tuple(CALIBRATORS) == cli.CALIBRATORS
    assert tuple(MULTILABEL_CALIBRATORS) == cli.MULTILABEL_CALIBRATORS
    assert tuple(LOSSES) == cli.LOSSES
    assert cli.PAPER_LOSSES == PAPER_LOSSES
    assert tuple(PRESETS) == cli.PRESETS
    assert tuple(cli.Criterion) == CRITERIA
    assert tuple(FIGURES) == cli.FIGURES
    assert tuple(FIELDS) == cli.FIELDS
    assert cli.FIGURE_1 == FIGURE_1
    assert tuple(OFFICIAL) == cli.DATA_SETS
    assert tuple(MODELS) == cli.MODELS
