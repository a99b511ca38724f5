"""The rules of the package's layout: who may import whom, and what a command may load before it runs."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "dualfocal"
# In this order: a subpackage imports only those before it.
ROOMS = ("kernels", "losses", "metrics", "calibrators", "predictions", "plots", "report", "integrations", "cli")


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


def test_imports_go_one_way() -> None:
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} == set(ROOMS)
    ordered = [(file, name) for file, home, name in imports() if home in ROOMS]
    wrong = [
        (file, name) for file, name in ordered if ROOMS.index(name.split(".")[1]) > ROOMS.index(file.split("/")[0])
    ]
    assert wrong == []


def test_the_library_does_not_know_the_lab() -> None:
    files = [path for path in SOURCE.rglob("*.py") if re.search(r"dualfocal_lab\b", path.read_text(encoding="utf-8"))]
    assert files == []


def test_only_main_imports_the_command_line() -> None:
    assert {file for file, _, name in imports() if name.split(".")[1] == "cli"} == {"__main__.py"}


def test_help_does_not_wait_for_torch() -> None:
    code = """
import contextlib, sys
from dualfocal.cli import main
for arguments in (["--help"], ["--version"], ["evaluate", "--help"]):
    with contextlib.suppress(SystemExit):
        main(arguments)
    print(arguments, [name for name in ("torch", "numpy", "scipy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reports = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(reports) == 3
    assert [line for line in reports if not line.endswith("] []")] == []


def test_help_names_what_the_registries_hold() -> None:
    from dualfocal.calibrators import CALIBRATORS, MULTILABEL_CALIBRATORS
    from dualfocal.cli import _common as cli

    assert tuple(CALIBRATORS) == cli.CALIBRATORS
    assert tuple(MULTILABEL_CALIBRATORS) == cli.MULTILABEL_CALIBRATORS
