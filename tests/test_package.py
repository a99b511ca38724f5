"""The package as a whole: what importing it loads, its version, its names."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dualfocal

ROOT = Path(__file__).parents[1]


def test_import_loads_torch_and_numpy_only() -> None:
    """Everything else that torch does not load itself must resolve late, such as torchmetrics."""
    script = (
        "import sys, numpy.random, torch\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import dualfocal.losses\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(after - before - sys.stdlib_module_names))\n"
        "from dualfocal.metrics import *\n"
        "print(ExpectedCalibrationError.__module__, 'ece' in dir(dualfocal.metrics))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["dualfocal", "dualfocal.metrics.torchmetrics True"]


def test_the_version_is_written_once_and_repeated_correctly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dualfocal.__version__"}
    [cited] = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]
    assert cited == newest == dualfocal.__version__


def test_the_workflow_tests_the_declared_versions_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    prefix = "Programming Language :: Python :: 3."
    declared = [text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)]
    [matrix] = re.findall(r"python-version: \[(.*)\]", workflow)
    assert [f'"3.{minor}"' for minor in declared] == matrix.split(", ")
    assert project["requires-python"] == f">=3.{declared[0]}"


def test_every_subpackage_is_imported_when_it_is_used() -> None:
    folders = sorted(path.parent.name for path in (ROOT / "src" / "dualfocal").glob("*/__init__.py"))
    names = [name for name in folders if name != "cli"]
    script = f"import dualfocal\nprint(*(getattr(dualfocal, name).__name__ for name in {names}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"dualfocal.{name}" for name in names]


def test_every_loss_is_a_public_name() -> None:
    for name, cls in dualfocal.LOSSES.items():
        assert cls.__name__ in dualfocal.__all__
        assert cls.__name__ in dualfocal.losses.__all__
        assert f"{name}_loss" in dualfocal.losses.__all__
