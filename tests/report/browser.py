"""A real browser, and what Python says of the numbers a page carries."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualfocal import metrics
from dualfocal.calibrators import log_probs
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics.bins import ONE, BinStats, to_units
from dualfocal.metrics.calibration import adaptive_error

HOSTILE = [
    "</script><script>hacked = 1</script>",
    "<img src=x onerror='hacked = 1'>",
    "<!--",
    "a\u2028b",
    "{{scripts}}",
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Debian's chromium, or the one $CHROMIUM names; without one the test is skipped, in CI it fails."""
    actual = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if actual is None:
        reason = "no chromium in PATH, nor in $CHROMIUM: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return actual


@contextmanager
def running() -> Iterator[Any]:
    """The browser."""
    executable = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, headless=True, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, *, width: int = 1100, dark: bool = False) -> Iterator[Any]:
    """The page, opened from disk with the network off; nothing may be asked for, logged or thrown."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    trouble: list[str] = []
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"thrown: {error}"))
    page.on("request", lambda request: trouble.append(f"asked for: {request.url}"))
    page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
    page.goto(file.as_uri())
    allowed = f"asked for: {file.as_uri()}"
    yield page
    # Pictures within the page count as requests to their own data.
    assert [text for text in trouble if text != allowed and not text.startswith("asked for: data:image/png;")] == []
    context.close()


def contents_of(file: Path) -> dict[str, Any]:
    """What the page shows, but for the numbers it computes from."""
    actual = re.search(r'<script type="application/json" id="contents">(.*?)</script>', file.read_text(), re.DOTALL)
    assert actual is not None
    return json.loads(actual[1])


def arrays_of(file: Path, i: int = 0) -> dict[str, Any]:
    """The numbers the page computes from, as its description says they lie there."""
    spec = contents_of(file)["runs"][i]["data"]
    actual = re.search(rf'<script type="text/plain" id="values-{i}">(.*?)</script>', file.read_text())
    assert actual is not None
    content, n = base64.b64decode(actual[1]), spec["count"]
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


def expected(
    data: dict[str, Any], *, num_bins: int, mass: bool, temperature: float, of_class: int | None
) -> dict[str, float]:
    """What dualfocal.metrics says of these numbers at one setting of the controls."""
    keep = torch.ones(data["count"], dtype=torch.bool) if of_class is None else data["predicted"] == of_class
    target = data["target"][keep]
    if data["exact"] and temperature == 1:
        return _of_sums(data, keep, data["units"] / ONE, data["nll"], num_bins, mass)
    if data["kind"] == "log_sums":
        column = int(np.argmin(np.abs(np.log(np.array(data["temperatures"]) / temperature))))
        log_sum = data["log_sums"][:, column].double()
        nll = log_sum - data["of_target"].double() / data["temperatures"][column]
        return _of_sums(data, keep, (-log_sum).exp(), nll, num_bins, mass)
    values, options = data["values"][keep], {"binary": "positive" if data["positive"] else None}
    if data["kind"] == "probs" and temperature == 1:
        options["input"] = "probs"
    else:
        if data["kind"] == "probs":
            values = log_probs(values.double(), tuple(data["zeros"]))
        values = values.double() / temperature
    ece = metrics.adaptive_ece if mass else metrics.ece
    return {
        "count": len(target),
        "ece": ece(values, target, num_bins=num_bins, **options),
        "nll": metrics.nll(values, target, **options),
        "error": metrics.error_rate(values, target, **options),
    }


def _of_sums(
    data: dict[str, Any], keep: torch.Tensor, confidence: torch.Tensor, nll: torch.Tensor, num_bins: int, mass: bool
) -> dict[str, float]:
    right = (data["predicted"] == data["target"])[keep]
    correct = data["target"][keep] == 1 if data["positive"] else right
    bins = BinStats.from_confidence(confidence[keep], correct, num_bins=num_bins)
    ranked = SortedConfidences.from_units(to_units(confidence[keep]), correct)
    return {
        "count": int(keep.sum()),
        "ece": adaptive_error(ranked, num_bins, None)[0] if mass else float(bins.ece()),
        "nll": float(nll[keep].mean()),
        "error": 1 - float(right.double().mean()),
    }


def read(page: Any, i: int = 0) -> dict[str, float]:
    """The figures that the page has computed, to the last bit."""
    page.evaluate("() => new Promise(requestAnimationFrame)")
    cells = page.locator(f"#live-{i} [data-figure]")
    actual = cells.evaluate_all("cells => cells.map(cell => [cell.dataset.figure, Number(cell.dataset.value)])")
    return dict(actual)


def choose(page: Any, *, num_bins: int, mass: bool, octave: float, of_class: int | None) -> None:
    page.locator("#bins").fill(str(num_bins))
    page.locator("#equal-mass" if mass else "#equal-width").check()
    page.locator("#temperature").fill(str(octave))
    page.locator("#class").select_option("" if of_class is None else str(of_class))
