"""At T = 1 the page shows Python's figures of the FILE, whatever its precision, and names what it shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chromium import opened, read
from report_pages import contents_of

from dualfocal import metrics
from dualfocal.predictions import Reading
from dualfocal.report import html, write_report

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(400, 5))
TARGET = (LOGITS + RNG.gumbel(size=LOGITS.shape)).argmax(1)


def near_ties(values: list[float], place: int, by: float) -> np.ndarray:
    rows = np.tile(np.array(values), (300, 1))
    rows[:, place] += by
    return rows


def two_groups(confidences: np.ndarray) -> dict[str, Any]:
    """Two confidences around the edge 0.6: one always right, the other always wrong. In one bin they would cancel."""
    tiled = np.tile(confidences, 100)
    return {"probs": np.stack([tiled, 1 - tiled], axis=1), "target": np.arange(200) % 2}


def softmax(z: np.ndarray) -> np.ndarray:
    return torch.from_numpy(z).softmax(1).numpy()


def with_tiny() -> np.ndarray:
    probs = softmax(LOGITS)
    probs[np.arange(9), TARGET[:9]] = 1e-60
    return probs / probs.sum(1, keepdims=True)


def huge() -> np.ndarray:
    logits = LOGITS.copy()
    logits[:5] *= 1e300
    return logits


def many() -> dict[str, Any]:
    """Probabilities that do not quite sum to 1, and a true class of probability 0."""
    logits = 3 * RNG.normal(size=(500, 150))
    target = (logits + RNG.gumbel(size=logits.shape)).argmax(1)
    probs = (0.992 * softmax(logits)).astype(np.float32)
    probs[0, target[0]] = 0
    probs[0] /= probs[0].sum()
    return {"probs": probs, "target": target}


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "far from 0": lambda: {"logits": LOGITS - 1e7, "target": TARGET},
    "nearly equal logits": lambda: {"logits": near_ties([1.0] * 5, 3, 1e-12), "target": np.full(300, 3)},
    "nearly equal probabilities": lambda: {
        "probs": near_ties([0.25, 0.375, 0.375], 2, 1e-12),
        "target": np.full(300, 2),
    },
    "a hair above an edge": lambda: two_groups(np.float64([0.55, 0.6 + 5e-9])),
    "tiny": lambda: {"probs": with_tiny(), "target": TARGET},
    "huge": lambda: {"logits": huge(), "target": TARGET},
    "half precision": lambda: two_groups(np.float16([0.6, 0.65])),
    "many classes": many,
}


@pytest.mark.parametrize("name", FILES)
def test_the_page_shows_the_figures_of_the_file(browser, tmp_path, monkeypatch, name):
    if name == "many classes":
        monkeypatch.setattr(html, "deal", lambda samples, room: [200_000])
    arrays = FILES[name]()
    np.savez(tmp_path / "p.npz", **arrays)
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=(), reading=Reading(num_bins=5))
    kind = "probs" if "probs" in arrays else "logits"
    result = metrics.evaluate(arrays[kind], arrays["target"], input=kind, num_bins=5)
    with opened(browser, tmp_path / "p.html") as page:
        actual = read(page)
        for figure in ("ece", "nll", "error", "confidence", "accuracy"):
            assert actual[figure] == pytest.approx(getattr(result, figure), abs=1e-6, rel=1e-6), figure
        page.locator("#temperature").fill("0.5")  # nothing is thrown there either
        assert read(page)["ece"] == read(page)["ece"]  # not NaN
        notes = page.locator("#sample-note").text_content()
        assert ("temperature scales their logarithms" in notes) == (kind == "probs")
        assert ("3.4e38" in notes) == (name == "huge")
        assert len(page.locator("#live-0 [data-figure=nll]").text_content()) < 12
    block = contents_of(tmp_path / "p.html")["runs"][0]["data"]
    assert block["kind"] == ("log_sums" if name == "many classes" else kind)


@pytest.mark.parametrize("num_classes", [2, 3, 150])
def test_a_probability_of_0_is_one_that_was_rounded_away(browser, tmp_path, monkeypatch, num_classes):
    """It counts as half of the smallest other one, as for calibrators; 1e-38 would dominate the NLL."""
    monkeypatch.setattr(html, "deal", lambda samples, room: [60_000])
    logits = (8 if num_classes == 2 else 4) * RNG.normal(size=(120, num_classes))
    target = (logits / 3 + RNG.gumbel(size=logits.shape)).argmax(1)
    probs = softmax(logits).round(2 if num_classes < 150 else 4)
    probs /= probs.sum(1, keepdims=True)
    assert (probs[np.arange(120), target] == 0).any()
    np.savez(tmp_path / "p.npz", probs=probs.astype(np.float32), target=target)
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=())
    given = probs.astype(np.float32).astype(np.float64)
    places = given.T if num_classes == 2 else [given]
    zeros = [min(tiled[tiled > 0].min() / 2, num_classes**-2) for tiled in places]
    logs = np.log(np.where(given == 0, zeros, given)) / 2
    logs -= logs.max(1, keepdims=True)
    nll = np.log(np.exp(logs).sum(1)) - logs[np.arange(120), target]
    assert contents_of(tmp_path / "p.html")["runs"][0]["data"]["kind"] == ("probs" if num_classes < 150 else "log_sums")
    with opened(browser, tmp_path / "p.html") as page:
        page.locator("#temperature").fill("1")  # an octave: T = 2
        assert read(page)["nll"] == pytest.approx(nll.mean(), rel=1e-5)


def test_forecasts_of_class_one_have_that_name(browser, pages, folder):
    page_file = pages("scores")
    with np.load(folder / "scores.npz") as file:
        arrays = dict(file)
    with opened(browser, page_file) as page:
        page.locator("#bins").fill("1")
        read(page)
        page.locator(".histogram rect").last.hover(position={"x": 200, "y": 30})  # beside the lines
        tip = page.locator(".histogram .readout").text_content()
        assert f"400 samples, {arrays['target'].sum()} of class 1" in tip
        assert "wrong" not in tip
        heads = page.locator("#live-head th").all_text_contents()
        assert heads[-3:] == ["error", "probability of class 1", "share of class 1"]
        assert read(page)["accuracy"] == pytest.approx(arrays["target"].mean())
        assert "share of class 1 (%)" in page.locator(".reliability svg").first.text_content()
        key = page.locator(".note.key").text_content()
        assert "probability too high, or class 0" in key
        assert "probability too low, or class 1" in key
        assert "share of class 1 (dotted)" in key
        assert "over-confident" not in key
        assert (
            "mean probability of class 1 \N{MINUS SIGN} share of class 1 [%]"
            in page.locator("#metrics-body").text_content()
        )


def test_more_bins_than_the_slider_had(browser, tmp_path):
    np.savez(tmp_path / "p.npz", logits=LOGITS, target=TARGET)
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=(), reading=Reading(num_bins=100))
    with opened(browser, tmp_path / "p.html") as page:
        assert page.locator("#bins").input_value() == "100"
        assert read(page)["ece"] == pytest.approx(metrics.ece(LOGITS, TARGET, num_bins=100), abs=1e-6)


def test_chance_in_a_bin_has_half_a_sample_more(browser, tmp_path):
    """One wrong sample at 90 % is not significant: it happens once in ten."""
    np.savez(tmp_path / "p.npz", probs=np.float32([[0.9, 0.1]]), target=np.array([1]))
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=())
    with opened(browser, tmp_path / "p.html") as page:
        page.locator(".reliability circle").first.hover()
        tip = page.locator(".reliability .readout").text_content()
        assert "gap 90.0 points, within the 90 % range ±99.4" in tip
        assert "confident by" not in tip


def test_names_that_run_from_right_to_left_stay_by_themselves(browser, tmp_path):
    names = ["\u05d0\u05d1\u05d2 5", "\u202eabc"]
    np.savez(tmp_path / "p.npz", logits=np.array([[9.0, 0.0]] * 20), target=np.arange(20) % 2, class_names=names)
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=())
    with opened(browser, tmp_path / "p.html") as page:
        card = page.locator(".mistakes li").first
        assert card.locator("bdi").all_text_contents() == ["\u05d0\u05d1\u05d2 5", "abc"]
        assert page.locator("#classes-body tbody th bdi").count() == 2
        assert page.locator("#class option").all_text_contents() == ["all", "\u05d0\u05d1\u05d2 5", "abc"]
        page.locator("#class").select_option("0")
        read(page)
        assert page.locator("#live-caption bdi").text_content() == "\u05d0\u05d1\u05d2 5"


def test_many_inputs(browser, tmp_path):
    files: list[Path] = []
    for i in range(9):
        np.savez(tmp_path / f"{i}.npz", logits=LOGITS[:40] * (i + 1), target=TARGET[:40])
        files.append(tmp_path / f"{i}.npz")
    np.savez(files[0], logits=LOGITS[:40, :4], target=TARGET[:40] % 4)
    write_report(files, tmp_path / "p.html", calibrators=())
    with opened(browser, tmp_path / "p.html") as page:
        assert not page.locator("#verdicts li").first.is_visible()
        page.locator("#verdicts summary").click()
        assert page.locator("#verdicts li").count() == 9
        assert page.locator("#verdicts li bdi").first.text_content() == "0.npz"
        note = page.locator("#filter-note")
        assert note.text_content() == "There is no class filter: the inputs have different classes."
        above = "document.querySelector('#reliability').compareDocumentPosition(document.querySelector('#chooser'))"
        assert page.evaluate(above) & 4  # the chooser follows
        page.emulate_media(media="print")
        assert not note.is_visible()  # nor are the controls
