"""Reports to test: predictions, the contents of a page, and fixtures that make each page once."""

import base64
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import draw_logits, write_run

from dualfocal.metrics import CalibrationMonitor
from dualfocal.metrics.monitor.state_file import MonitorState
from dualfocal.predictions import Reading
from dualfocal.report import write_report

HOSTILE = [
    "</script><script>hacked = 1</script>",
    "<img src=x onerror='hacked = 1'>",
    "<!--",
    "a\u2028b",
    "{{scripts}}",
]
LIMITS = {"many": 250_000, "part": 100_000}  # bytes of numbers that a page may carry


def predictions(n: int, num_classes: int, sharpness: float = 1.5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, which are ``sharpness`` times those of a calibrated model, and labels."""
    return draw_logits(n, num_classes, seed=seed, scale=2 * sharpness, overconfidence=sharpness)


def contents_of(file: Path) -> dict[str, Any]:
    """The contents of a page, without the numbers that its scripts compute from."""
    match = re.search(r'<script type="application/json" id="contents">(.*?)</script>', file.read_text(), re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def contents(folder: Path, models: Any, **options: Any) -> dict[str, Any]:
    """The contents of a report on these models, without calibrators unless there is an option."""
    write_report(models, folder / "page.html", **{"calibrators": ()} | options)
    return contents_of(folder / "page.html")


def arrays_of(file: Path, i: int = 0) -> dict[str, Any]:
    """The numbers that the scripts of a page compute from, laid out as its contents describe."""
    spec = contents_of(file)["runs"][i]["data"]
    match = re.search(rf'<script type="text/plain" id="values-{i}">(.*?)</script>', file.read_text())
    assert match is not None
    content, n = base64.b64decode(match[1]), spec["count"]
    names = [("target", "<u4", 1), ("predicted", "<u4", 1)]
    if spec["kind"] == "log_sums":
        names = [("log_sums", "<f4", len(spec["temperatures"])), ("of_target", "<f4", 1), *names]
    else:
        names = [("values", "<f4", spec["numClasses"]), *names]
    if spec["exact"]:
        names = [("units", "<f8", 1), ("nll", "<f8", 1), *names]
    arrays, offset = dict(spec), 0
    for name, kind, width in names:
        array = np.frombuffer(content, kind, n * width, offset)
        offset += array.nbytes
        arrays[name] = torch.from_numpy(array.astype({"<u4": np.int64, "<f4": np.float32, "<f8": np.float64}[kind]))
    assert offset == len(content)
    wide = "values" if "values" in arrays else "log_sums"
    arrays[wide] = arrays[wide].view(n, -1)
    return arrays


def png_size(content: bytes) -> tuple[int, int]:
    """Width and height of a PNG, which has to be one."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def write_monitor(path: Path, monitor: CalibrationMonitor, num_classes: int) -> Path:
    """Write a monitor into a file as ``dualfocal monitor`` does."""
    MonitorState(monitor, num_classes).save(path)
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def pages(folder) -> Callable[[str], Path]:
    """Reports by kind of input; the input lies beside the page."""

    def make(name: str) -> Path:
        page = folder / f"{name}.html"
        if not page.exists():
            np.savez(folder / f"{name}.npz", **arrays(name))
            reading = Reading(binary="positive" if name == "scores" else None)
            with pytest.MonkeyPatch.context() as patch:
                if name in LIMITS:
                    patch.setattr("dualfocal.report.html.deal", lambda samples, room: [LIMITS[name]])
                write_report([folder / f"{name}.npz"], page, calibrators=(), reading=reading)
        return page

    return make


def arrays(name: str) -> dict[str, Any]:
    """Predictions of one kind."""
    if name == "probs":
        # A forest's votes, among twenty trees: they lie on the edges of 5, 10 and 20 bins. Some are 0.
        rng = np.random.default_rng(0)
        votes = rng.multinomial(20, [0.6, 0.25, 0.15], size=600)
        return {"probs": (votes / 20).astype(np.float32), "target": rng.integers(3, size=600)}
    shape = {"logits": (997, 5), "scores": (400, 2), "many": (800, 120), "part": (6000, 4)}[name]
    logits, target = (array.numpy() for array in predictions(*shape, sharpness=1.7))
    if name == "scores":
        return {"logits": logits[:, 1] - logits[:, 0], "target": target}
    return {"logits": logits, "target": target} | ({"class_names": HOSTILE} if name == "logits" else {})


@pytest.fixture(scope="session")
def runs(folder) -> Path:
    """A report on two runs, a and b."""
    for name, seed in (("a", 0), ("b", 1)):
        parts = {"val": predictions(200, 10, seed=2 * seed), "test": predictions(997, 10, seed=2 * seed + 1)}
        write_run(folder / name, parts)
    write_report([folder / "a", folder / "b"], folder / "runs.html", calibrators=("temperature",))
    return folder / "runs.html"
