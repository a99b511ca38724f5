"""The diagrams that Python computes: what the page shows, reads out and saves is what the predictions say."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import contents_of, opened
from sklearn.metrics import confusion_matrix, roc_auc_score

from dualfocal.metrics import CalibrationMonitor
from dualfocal.metrics.monitor.state_file import MonitorState
from dualfocal.predictions import Reading
from dualfocal.report import write_report
from dualfocal.runs.layout import seal

NAMES = ["cat", "dog", "<b>owl</b>", "fox"]


def predictions(n: int, num_classes: int, sharpness: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, num_classes, generator=generator)
    return sharpness * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    logits, target = predictions(600, 4, 3.0)
    other = logits + 3 * torch.randn(600, 4, generator=torch.Generator().manual_seed(9))
    return {"sharp": (logits, target), "noisy": (other, target)}


@pytest.fixture(scope="module")
def two(models, tmp_path_factory) -> Path:
    """Two models, groups, a monitor."""
    folder = tmp_path_factory.mktemp("diagrams")
    monitor = CalibrationMonitor()
    for day in range(5):
        monitor.update(*predictions(300, 4, 1.0 if day < 3 else 6.0, seed=day), time=f"day {day}")
    (folder / "state.json").write_text(json.dumps(seal(MonitorState(monitor, 4).to_dict())))
    groups = np.array(["north", "south", "west"])[np.arange(600) % 3]
    options = {"class_names": NAMES, "groups": groups, "monitor": folder / "state.json"}
    write_report(models, folder / "two.html", calibrators=("temperature",), **options)
    return folder / "two.html"


@pytest.fixture(scope="module")
def binary(tmp_path_factory) -> Path:
    page = tmp_path_factory.mktemp("diagrams") / "binary.html"
    logits, target = predictions(400, 2, 2.0)
    score = logits[:, 1] - logits[:, 0]
    write_report({"scores": (score, target)}, page, calibrators=(), reading=Reading(binary="positive"))
    return page


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """130 classes: more than fit into a matrix."""
    page = tmp_path_factory.mktemp("diagrams") / "many.html"
    write_report({"m": predictions(1500, 130, 1.5)}, page, calibrators=())
    return page


def saved(page: Any, button: str) -> str:
    with page.expect_download() as download:
        page.locator(button).click()
    return Path(download.value.path()).read_text()


def table_of(page: Any, figure: str) -> list[dict[str, str]]:
    """The CSV file of a figure."""
    return list(csv.DictReader(io.StringIO(saved(page, f"#figure-{figure} button.save:has-text('CSV')"))))


def readouts(page: Any, figure: str, keys: list[str]) -> list[str]:
    """What the read-out says after each key."""
    page.locator(f"#figure-{figure} svg").focus()
    texts = []
    for key in keys:
        page.keyboard.press(key)
        texts.append(page.locator(f"#figure-{figure} .readout").inner_text())
    return texts


def test_confusion_matrix_has_the_counts_of_sklearn(browser, two, models):
    with opened(browser, two) as page:
        for i, (logits, target) in enumerate(models.values()):
            page.locator("#run").select_option(str(i))
            expected = confusion_matrix(target, logits.argmax(1))
            rows = table_of(page, "confusion")
            assert [row["true class"] for row in rows] == NAMES
            assert np.array_equal([[float(row[f"predicted as {name}"]) for name in NAMES] for row in rows], expected)
            shown = page.locator("#figure-confusion svg text").all_text_contents()
            assert sorted(text for text in shown if text.isdigit()) == sorted(str(n) for n in expected.ravel() if n)
        page.locator("#confusion-shares").check()
        share = expected[0, 1] / expected[0].sum()
        assert f"{100 * share:.0f}" in page.locator("#figure-confusion svg text").all_text_contents()
        text = readouts(page, "confusion", ["ArrowRight"])[0]
        assert (
            text
            == f"true class: cat\npredicted as: dog\n{expected[0, 1]} samples, {100 * share:.1f} % of the true class"
        )
        page.locator("#confusion-sorted").check()
        errors = expected.sum(1) - np.diag(expected)
        order = [NAMES[c] for c in sorted(range(4), key=lambda c: -errors[c])]
        assert [row["true class"] for row in table_of(page, "confusion")] == order


def test_the_matrix_of_many_classes_says_what_it_leaves_out(browser, many):
    figure = contents_of(many)["runs"][0]["figures"]["confusion"]
    with opened(browser, many) as page:
        note = page.locator("#figure-confusion .note").inner_text()
        assert f"Of 130 classes, the matrix shows the {len(figure['names'])} of the most confused pairs" in note
        assert f"{figure['shownErrors']:,} of {figure['errors']:,} wrong predictions" in note
        rows = table_of(page, "confusion")
        assert [sum(float(value) for value in list(row.values())[1:]) for row in rows] == figure["samples"]
        assert page.locator("#confusion-figures table tbody tr").count() == 20
        assert "The worst 24 of 130 classes" in page.locator("#figure-classes .note").first.inner_text()
        page.locator("#more-classes").click()
        assert "The worst 48 of 130 classes" in page.locator("#figure-classes .note").first.inner_text()
        for _ in range(4):
            page.locator("#more-classes").click()
        assert "All 130 classes are shown" in page.locator("#figure-classes .note").first.inner_text()
        assert page.locator("#more-classes").count() == 0


def test_selective_errors_of_all_models(browser, two, models):
    with opened(browser, two) as page:
        rows = table_of(page, "coverage")
        cells = page.locator("#selective-body tbody tr")
        for i, (name, (logits, target)) in enumerate(models.items()):
            confidence = logits.double().softmax(1).amax(1)
            wrong = (logits.argmax(1) != target)[confidence.argsort(descending=True)].double()
            curve = {round(float(row["coverage"]), 4): float(row["error"]) for row in rows if row["model"] == name}
            for share in (0.25, 0.8, 0.9, 0.95, 1.0):
                assert curve[share] == pytest.approx(float(wrong[: round(600 * share)].mean()), abs=1e-5)
            assert f"{100 * float(wrong[:540].mean()):.2f}" in cells.nth(i).locator("td").nth(1).inner_text()
        text = readouts(page, "coverage", ["End"])[0]
        assert text.startswith("sharp\n100.0 % of the samples are answered\nerror ")
        assert readouts(page, "coverage", ["ArrowDown"])[0].startswith("noisy\n100.0 %")


def test_histograms_count_every_prediction(browser, two, models):
    with opened(browser, two) as page:
        rows = table_of(page, "histograms")
        for name, (logits, target) in models.items():
            right = int((logits.argmax(1) == target).sum())
            own = [row for row in rows if row["model"] == name]
            assert sum(int(row["right"]) for row in own) == right
            assert sum(int(row["wrong"]) for row in own) == 600 - right
            assert f"{name}: mean confidence of right" in page.locator("#figure-histograms svg").get_attribute(
                "aria-label"
            )


def test_models_share_one_reliability_diagram_that_follows_the_controls(browser, two):
    with opened(browser, two) as page:
        before = table_of(page, "together")
        assert {row["series"] for row in before} == {"sharp", "noisy"}
        for i, name in enumerate(("sharp", "noisy")):
            own = [row for row in before if row["series"] == name]
            assert sum(int(row["samples"]) for row in own) == 600
            ece = (
                sum(int(row["samples"]) * abs(float(row["mean confidence"]) - float(row["accuracy"])) for row in own)
                / 600
            )
            shown = page.locator(f"#live-{i} [data-figure=ece]").get_attribute("data-value")
            assert ece == pytest.approx(float(shown), abs=1e-9)
        page.locator("#bins").fill("4")
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert len(table_of(page, "together")) <= 8


def test_overlay_shows_the_recommended_calibrator(browser, two):
    overlay = contents_of(two)["runs"][0]["figures"]["overlay"]
    assert overlay["method"] == "temperature"
    with opened(browser, two) as page:
        words = page.locator("#figure-overlay svg text").all_text_contents()
        assert f"uncalibrated: ECE {100 * overlay['before']['ece']:.2f} %" in words
        assert f"temperature: ECE {100 * overlay['after']['ece']:.2f} %" in words
        rows = table_of(page, "overlay")
        after = [int(row["samples"]) for row in rows if row["series"] == "temperature"]
        assert after == overlay["after"]["bins"]["count"]


def test_a_page_of_class_1_explains_probabilities(browser, binary):
    assert "class 1" in contents_of(binary)["glossary"]["brier"]["meaning"]
    with opened(browser, binary) as page:
        assert "80 % should be of class 1" in page.locator("#reliability-meaning").text_content()


def test_roc_states_its_area(browser, binary):
    logits, target = predictions(400, 2, 2.0)
    area = roc_auc_score(target, (logits[:, 1] - logits[:, 0]).numpy())
    with opened(browser, binary) as page:
        assert page.locator("#figure-roc svg text").first.text_content().startswith(f"AUROC {100 * area:.1f} % (")
        rows = table_of(page, "roc")
        x, y = ([float(row[f"{kind} positive rate"]) for row in rows] for kind in ("false", "true"))
        assert np.trapezoid(y, x) == pytest.approx(area, abs=0.01)
        assert page.locator("#figure-histograms h3").inner_text() == "Probabilities by true class"
    assert contents_of(binary)["runs"][0]["figures"]["overlay"] is None


def test_groups_and_monitor(browser, two):
    contents = contents_of(two)
    with opened(browser, two) as page:
        for i in (0, 1):
            page.locator("#run").select_option(str(i))
            expected = contents["runs"][i]["groups"]["rows"]
            rows = table_of(page, "groups")
            assert [row["group"] for row in rows] == [row["name"] for row in expected]
            assert [float(row["debiased high"]) for row in rows] == [row["debiasedHigh"] for row in expected]
            assert page.locator("#groups-body tbody tr").count() == 3
            text = readouts(page, "groups", ["ArrowRight"])[0]
            assert text.startswith(f"{expected[0]['name']}: 200 samples, error {100 * expected[0]['error']:.1f} %")
        assert [row["time"] for row in table_of(page, "evidence")] == [f"day {day}" for day in range(5)]
        assert "first alarm at day" in page.locator("#figure-evidence svg").get_attribute("aria-label")
        assert readouts(page, "evidence", ["End"])[0].startswith("day 4\n300 samples\nevidence ")


def test_read_outs_on_hover_and_tap(browser, two):
    with opened(browser, two) as page:
        box = page.locator("#figure-coverage svg").bounding_box()
        page.locator("#figure-coverage svg").hover(position={"x": 0.5 * box["width"], "y": 0.6 * box["height"]})
        tip = page.locator("#figure-coverage .readout")
        share = float(re.search(r"([\d.]+) % of the samples", tip.inner_text())[1])
        assert 30 < share < 70
        page.mouse.move(0, 0)
        assert not tip.is_visible()
        readouts(page, "coverage", ["Home"])
        assert tip.is_visible()
        page.keyboard.press("Escape")
        assert not tip.is_visible()


def test_figures_are_saved_with_the_colours_of_the_theme(browser, two):
    with opened(browser, two, dark=True) as page:
        text = saved(page, "#figure-coverage button.save:has-text('SVG')")
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert "var(" not in text
        assert "rgb(109, 182, 236)" in text  # series 0 of the dark theme
        assert "sharp" in "".join(root.itertext())


def test_of_many_models_the_chosen_one_is_highlighted(browser, tmp_path):
    models = {f"model {i}": predictions(80, 3, 1.0, seed=i) for i in range(9)}
    write_report(models, tmp_path / "nine.html", calibrators=())
    with opened(browser, tmp_path / "nine.html") as page:
        for i in (0, 7):
            page.locator("#run").select_option(str(i))
            for figure, words in (("coverage", f"model {i}"), ("together", f"model {i}: ECE")):
                shown = page.locator(f"#figure-{figure} svg text").all_text_contents()
                assert next(text for text in shown if text.startswith("model")).startswith(words)
                assert "8 other models" in shown
            assert {row["model"] for row in table_of(page, "histograms")} == {f"model {i}"}
            assert len({row["model"] for row in table_of(page, "coverage")}) == 9


@pytest.mark.parametrize("width", [390, 1100])
def test_figures_fit_the_page(browser, two, many, binary, width):
    for file in (two, many, binary):
        with opened(browser, file, width=width) as page:
            for figure in page.locator("figure.framed").all():
                box = figure.locator("svg").first.bounding_box()
                assert box["x"] >= 0, figure.get_attribute("id")
                assert box["x"] + box["width"] <= width, figure.get_attribute("id")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
