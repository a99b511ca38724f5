"""What the figures draw: lines, bars, points and texts. And the numbers of the report."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inputs
import numpy as np
from matplotlib.figure import Figure
from values import Recording, Section

from dualfocal import metrics, plots
from dualfocal.report import write_report

FEW = {"inference": True, "draws": 200}


def figures(rec: Recording) -> None:
    """Every figure of `dualfocal.plots`."""
    five, target = inputs.sample(400, 5, 150)
    other = inputs.noisy(five, 151)
    two, outcome = inputs.sample(300, 2, 152)
    evaluations = {name: metrics.evaluate(logits, target, **FEW) for name, logits in (("a", five), ("b", other))}
    rec.put("reliability", plots.reliability_figure(evaluations, title="two models", highlight=["a"]))
    corps = {"a": metrics.corp(five, target, draws=100), "b": metrics.corp(two, outcome, binary="positive", draws=100)}
    rec.put("corp", plots.corp_figure(corps))
    labels = metrics.evaluate(*inputs.labelled(300, 4, 153), task="multilabel", **FEW)
    rec.put("multilabel", plots.multilabel_figure(labels))
    shifted = metrics.evaluate_shift((five, target), {f"noise-{i}": (inputs.noisy(five, i), target) for i in (1, 2)})
    rec.put("shift", plots.shift_figure(shifted))
    found = inputs.tokens(40, 20, 154)
    state = metrics.TokenConfidences()
    confidence, right, position = inputs.tensors(found.confidence, found.right, found.position)
    state.update(confidence, right, sequence=found.sequence, position=position)
    rec.put("tokens", plots.token_figure(state.evaluate(draws=200)))
    monitor = metrics.CalibrationMonitor()
    for day in range(4):
        monitor.update(*inputs.sample(100, 3, 155 + day), time=f"day-{day}")
    rec.put("evidence", plots.evidence_figure(monitor))
    images = {name: (values, mask.astype(np.int64)) for name, (values, mask) in inputs.images(2, 160).items()}
    rec.put("overconfidence", plots.overconfidence_figure(images, ignore_index=255))
    values, mask = images["image0"]
    rec.put("overconfidence/map", plots.overconfidence_map(values, mask, ignore_index=255, sigma=1.0))
    draw(rec, plots.reliability_diagram, five, target, num_bins=10)
    draw(rec, plots.corp_diagram, five, target, draws=100)


def draw(rec: Recording, diagram: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Keep a diagram that is drawn on given axes."""
    figure = Figure()
    diagram(*arguments, ax=figure.subplots(), **options)
    rec.put(f"diagrams/{diagram.__name__}", figure)


def report(rec: Recording) -> None:
    """The JSON in the pages of the report."""
    logits, target, cluster = inputs.clustered(400, 4, 5, 170)
    other = inputs.noisy(logits, 171)
    hospital = np.where(np.arange(400) % 2 == 0, "north", "south")
    page = Path("page.html")
    write_report({"one": (logits, target)}, page, calibrators=["temperature"])
    put_page(rec, "one", page)
    models = {"one": (logits, target), "two": (other, target), "three": (0.5 * logits, target)}
    write_report(models, page, calibrators=[], clusters=cluster, groups=hospital)
    put_page(rec, "several", page)


def put_page(rec: Recording, key: str, page: Path) -> None:
    """Keep the JSON blocks of a page, without the predictions in it."""
    blocks = re.findall(
        r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL
    )
    for i, block in enumerate(blocks):
        rec.put(f"{key}/{i}", json.loads(block))


SECTIONS = {"figures": Section(figures), "report": Section(report)}
