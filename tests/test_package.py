"""The package as a whole: what importing it loads, its version, its names."""

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
        "import dualfocal, dualfocal.data, dualfocal.models\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(after - before - sys.stdlib_module_names))\n"
        "from dualfocal.metrics import *\n"
        "print(ExpectedCalibrationError.__module__, 'ece' in dir(dualfocal.metrics))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["dualfocal", "dualfocal.metrics.streaming True"]


def test_version_is_the_packages() -> None:
    assert dualfocal.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_every_loss_is_a_public_name() -> None:
    for name, cls in dualfocal.LOSSES.items():
        assert cls.__name__ in dualfocal.__all__
        assert cls.__name__ in dualfocal.losses.__all__
        assert f"{name}_loss" in dualfocal.losses.__all__
