"""`dualfocal info`: versions, devices and extras."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from dualfocal.cli._common import consoles, print_json, print_table, say
from dualfocal.cli._options import AsJson

PACKAGES = ("dualfocal", "torch", "numpy", "scipy", "triton", "scikit-learn", "torchmetrics")


def info(as_json: AsJson = False) -> None:
    """Show versions, devices and extras, for a bug report.

    dualfocal info
    """
    out, _ = consoles(as_json)
    content = _collect()
    if as_json:
        print_json(content)
        return
    from dualfocal.tables import Table

    rows = [[name, text or "not installed"] for name, text in content["versions"].items()]
    rows += [["machine", f"{content['platform']}, {content['cores']} cores"]]
    rows += [["device", name] for name in content["devices"]]
    rows += [["Triton kernels", "used on CUDA" if content["kernels"] else "not used: no CUDA GPU that they support"]]
    for extra, missing in content["extras"].items():
        rows.append([f"extra {extra}", "installed" if not missing else f'pip install "dualfocal[{extra}]"'])
    print_table(out, Table(["what", "state"], rows, left=(0, 1)))
    say(out, "")


def _collect() -> dict[str, Any]:
    """Return everything that is shown; the extras with the modules that are missing."""
    import torch

    from dualfocal import kernels
    from dualfocal._extras import EXTRAS

    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": ["cpu", *(f"cuda:{gpu}, {torch.cuda.get_device_name(gpu)}" for gpu in gpus)],
        "kernels": bool(gpus) and kernels.available(),
        "extras": {extra: [name for name in names if find_spec(name) is None] for extra, names in EXTRAS.items()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
