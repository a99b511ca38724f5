"""A real browser, and Python's figures for the numbers that a page carries."""

import os
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
from dualfocal.metrics import BinStats
from dualfocal.metrics.ranking import adaptive_bins
from dualfocal.report.embedded import ONE

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
    """Debian's chromium, or the one that $CHROMIUM names; without one the test is skipped, but fails in CI."""
    executable = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if executable is None:
        reason = "no chromium in PATH, nor in $CHROMIUM: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return executable


class Tab:
    """One tab of the browser without network. Opening a file in it is five times faster than a tab for each file."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_context(offline=True).new_page()
        self.events: list[str] = []  # what the page logged, threw or asked for
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda message: self.events.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.events.append(f"thrown: {error}"))
        self.page.on("request", lambda request: self.events.append(f"asked for: {request.url}"))
        self.page.on("dialog", lambda dialog: self.events.append(f"dialog: {dialog.message}"))

    def go(self, file: Path, *, width: int = 1100, dark: bool = False) -> Any:
        """Load the file anew."""
        self.page.goto("about:blank")
        self.events.clear()
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.emulate_media(media="screen", color_scheme="dark" if dark else "light")
        self.page.goto(file.as_uri())
        return self.page


@contextmanager
def running() -> Iterator[Tab]:
    """A tab of the browser."""
    executable = find_chromium()
    playwright_api = pytest.importorskip("playwright.sync_api", reason="make test-integrations installs it")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, headless=True, args=FLAGS)
        yield Tab(browser)
        browser.close()


@contextmanager
def opened(tab: Tab, file: Path, *, width: int = 1100, dark: bool = False) -> Iterator[Any]:
    """The page, opened from disk; it may ask for nothing, log nothing and throw nothing."""
    yield tab.go(file, width=width, dark=dark)
    # Pictures within the page count as requests to their own data.
    allowed = f"asked for: {file.as_uri()}", "asked for: data:image/png;"
    assert [event for event in tab.events if event != allowed[0] and not event.startswith(allowed[1])] == []


def expected(
    data: dict[str, Any], *, num_bins: int, mass: bool, temperature: float, of_class: int | None
) -> dict[str, float]:
    """The figures by dualfocal.metrics of these numbers, at one setting of the controls."""
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
    ranked = adaptive_bins((confidence[keep] * ONE).round().numpy() / ONE, correct.numpy(), num_bins)
    return {
        "count": int(keep.sum()),
        "ece": float(ranked.ece()) if mass else float(bins.ece()),
        "nll": float(nll[keep].mean()),
        "error": 1 - float(right.double().mean()),
    }


def read(page: Any, i: int = 0) -> dict[str, float]:
    """The figures that the page has computed, to the last bit."""
    page.evaluate("() => new Promise(requestAnimationFrame)")
    cells = page.locator(f"#live-{i} [data-figure]")
    return dict(cells.evaluate_all("cells => cells.map(cell => [cell.dataset.figure, Number(cell.dataset.value)])"))


CHOOSE = """values => {
    for (const [id, value] of Object.entries(values)) {
        const control = document.getElementById(id);
        control[control.type === "radio" ? "checked" : "value"] = value;
        control.dispatchEvent(new Event("input"));
    }
}"""


def choose(page: Any, *, num_bins: int, mass: bool, octave: float, of_class: int | None) -> None:
    """Set all controls at once; `test_the_keyboard_reaches_every_control` uses them one by one."""
    scheme = "equal-mass" if mass else "equal-width"
    chosen = "" if of_class is None else str(of_class)
    page.evaluate(CHOOSE, {"bins": num_bins, scheme: True, "temperature": octave, "class": chosen})
