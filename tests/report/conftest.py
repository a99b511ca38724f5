"""A browser, and reports for it to open; each is made once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import HOSTILE, Tab, running

from dualfocal.predictions import Reading
from dualfocal.report import html, write_report
from dualfocal.train import result as train_result
from dualfocal.train import train
from dualfocal.train.presets import preset

LIMITS = {"many": 250_000, "part": 100_000}  # bytes of numbers that a page may carry


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of other tests
def browser() -> Iterator[Tab]:
    with running() as tab:
        yield tab


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
                    patch.setattr(html, "deal", lambda samples, room: [LIMITS[name]])
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
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(shape, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0].numpy()
    sharp = (1.7 * logits).numpy()
    if name == "scores":
        return {"logits": sharp[:, 1] - sharp[:, 0], "target": target}
    return {"logits": sharp, "target": target} | ({"class_names": HOSTILE} if name == "logits" else {})


@pytest.fixture(scope="session")
def runs(folder) -> Path:
    """A report on two short runs, a and b, on noisy digits."""
    with pytest.MonkeyPatch.context() as patch:
        # It has tests of its own, and takes most of the time.
        patch.setattr(train_result, "metrics_of", lambda predictions: ({}, {}))
        for name, seed in (("a", 0), ("b", 1)):
            settings = ["epochs=3", "batch_size=20", f"seed={seed}", "schedule=step", "milestones=2", "data.noise=0.5"]
            train(preset("digits", [*settings, "test_each_epoch=true"]), folder / name, progress=False)
    write_report([folder / "a", folder / "b"], folder / "runs.html", calibrators=("temperature",))
    return folder / "runs.html"
