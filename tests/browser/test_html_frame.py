"""The frame of the page in a real browser: the decision, downloads, explanations, contents, accessibility."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chromium import opened
from PIL import Image
from report_pages import contents_of

from dualfocal import metrics
from dualfocal.metrics import Evaluation
from dualfocal.metrics.registry import METRICS
from dualfocal.report import write_report

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(800, 6, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return {"sharp": (2 * logits, target), "right": (logits, target), "=flat <b>": (logits / 2, target)}


@pytest.fixture(scope="module")
def three(models, tmp_path_factory) -> Path:
    page = tmp_path_factory.mktemp("frame") / "three.html"
    write_report(models, page, calibrators=["temperature"])
    return page


@pytest.fixture(scope="module")
def one(models, tmp_path_factory) -> Path:
    page = tmp_path_factory.mktemp("frame") / "one.html"
    groups = ["north", "south"] * 400
    write_report({"sharp": models["sharp"]}, page, calibrators=["temperature"], groups=groups)
    return page


def saved(page, button, folder) -> Path:
    """Press a download button by the keyboard; return the file."""
    with page.expect_download() as download:
        button.press("Enter")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_the_better_model_is_named_first(browser, three, models):
    with opened(browser, three) as page:
        headline = page.locator("#headline").text_content()
        assert headline.startswith("right has the lowest NLL of 3 models, significantly lower than that of each other")
        first = page.locator("main section").first
        assert first.get_attribute("id") == "decision"
        cells = page.locator("#decision-body tbody tr").first.locator("td bdi").all_text_contents()
        (logits, target), (other, _) = models["right"], models["sharp"]
        a, b = (metrics.evaluate(z, target) for z in (logits, other))
        assert cells[0] == f"{b.nll - a.nll:+.4f}"
        assert cells[1] == f"{100 * (b.debiased_ece - a.debiased_ece):+.2f}"
        assert cells[2] == "+0.00"
        assert page.locator("#figure-comparison svg").count() == 4
        label = page.locator("#figure-comparison svg").first.get_attribute("aria-label")
        assert label.startswith(f"NLL: sharp: {b.nll - a.nll:.4f} nats (")


def test_one_model_has_verdict_remedy_and_what_remains(browser, one):
    run = contents_of(one)["runs"][0]
    with opened(browser, one) as page:
        assert page.locator("#headline").text_content() == run["verdict"]
        titles = page.locator("#decision-body p strong").all_text_contents()
        assert titles == ["What fixes it: ", "What remains: "]
        assert run["advice"] in page.locator("#decision-body").text_content()
        remains = page.locator("#decision-body p").nth(1).text_content()
        assert remains.startswith("What remains: After temperature, on held-out samples: No miscalibration detectable")
        assert page.locator("#groups").is_visible()
        assert page.locator("#groups-body tbody tr").count() == 2


def test_every_figure_and_table_can_be_saved(browser, three, tmp_path):
    page = browser.go(three)
    figures = page.locator("figure .downloads[role=group]")
    assert figures.count() >= 8
    for i in range(figures.count()):
        kinds = figures.nth(i).locator("button").all_text_contents()
        assert "PNG" in kinds
        assert "SVG" in kinds
    assert page.locator("table").count() <= page.locator("button.save", has_text="CSV").count() + 1  # of the controls
    svg = saved(page, page.locator("#figure-comparison button", has_text="SVG"), tmp_path).read_text()
    assert svg.startswith("<svg")
    assert "var(--" not in svg
    assert "RMS error" in svg
    png = saved(page, page.locator("#figure-comparison button", has_text="PNG"), tmp_path)
    with Image.open(png) as image:
        assert image.width > 800
        assert len(image.convert("RGB").resize((200, 100)).getcolors(20_000)) > 10
    table = saved(page, page.locator("#figure-comparison button", has_text="CSV"), tmp_path).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert rows == [
        {key: str(value) for key, value in row.items()} for row in _escaped(contents_of(three)["decision"]["forest"])
    ]
    assert [event for event in browser.events if "Content Security Policy" in event or "thrown" in event] == []


def _escaped(rows):
    """A name that starts like a formula gets an apostrophe in CSV; JavaScript writes 1.0 as 1."""
    plain = [{**row, "model": f"'{row['model']}" if row["model"].startswith("=") else row["model"]} for row in rows]
    return [
        {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in row.items()}
        for row in plain
    ]


def test_a_table_is_saved_with_full_numbers(browser, one, models, tmp_path):
    page = browser.go(one)
    table = saved(page, page.locator("#metrics button.save").first, tmp_path).read_text(encoding="utf-8")
    rows = {row[0]: row for row in csv.reader(io.StringIO(table))}
    result = metrics.evaluate(*models["sharp"])
    assert float(rows["ECE [%]"][1]) == pytest.approx(100 * result.ece, rel=1e-12)
    assert float(rows["NLL [nats]"][1]) == pytest.approx(result.nll, rel=1e-12)
    assert rows["ECE [%]"][2].startswith("floor ")


def test_the_whole_is_saved_as_json(browser, three, models, tmp_path):
    page = browser.go(three)
    content = json.loads(saved(page, page.locator("#json"), tmp_path).read_text(encoding="utf-8"))
    assert [model["name"] for model in content["models"]] == list(models)
    for model, (logits, target) in zip(content["models"], models.values(), strict=True):
        expected = metrics.evaluate(logits, target, inference=True)
        assert model["evaluation"] == json.loads(json.dumps(expected.to_dict()))
        assert Evaluation.from_dict(model["evaluation"]).ece == expected.ece
    assert content["comparison"]["best"] == "right"


def test_every_metric_is_explained_by_pointer_keyboard_and_tap(browser, one):
    with opened(browser, one) as page:
        for key, metric in METRICS.items():
            assert page.locator(f"#term-{key}").text_content().lower().rstrip(".") == metric.meaning.lower()
            assert page.locator(f"#metrics [data-term={key}]").count() >= 1
        term, tip = page.locator("#metrics [data-term=aurc]").first, page.locator("#tip")
        meaning = page.locator("#term-aurc").text_content()
        term.hover()
        assert tip.text_content() == meaning
        assert tip.is_visible()
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        term.focus()
        assert tip.is_visible()
        page.locator("#theme").focus()
        page.wait_for_timeout(300)
        assert not tip.is_visible()
        term.dispatch_event("click")
        assert tip.is_visible()
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1100


def test_contents_link_to_every_section(browser, one):
    with opened(browser, one) as page:
        links = page.locator("#contents-list a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        visible = page.locator("main > section").evaluate_all(
            "sections => sections.filter(section => !section.hidden).map(section => `#${section.id}`)"
        )
        assert links == visible
        assert links[0] == "#decision"
        assert {"#metrics", "#reliability", "#calibrators", "#classes", "#methods", "#glossary"} <= set(links)
        assert page.locator("main > section:not([hidden]) .meaning").count() == len(visible) - 1  # the result says it
        page.locator("#contents-list a[href='#methods']").press("Enter")
        assert page.evaluate("location.hash") == "#methods"
        assert page.locator("#methods-title").is_visible()


def test_methods_state_what_was_done(browser, three):
    with opened(browser, three) as page:
        text = page.locator("#methods-text").text_content()
        for part in ("3 models", "N = 800", "15 bins", "90 %", "1,000 draws", "Calibrators (temperature)", "seed"):
            assert part in text, part
        assert f"dualfocal {contents_of(three)['version']}, PyTorch {torch.__version__.split('+')[0]}" in text
        page.locator("#copy").press("Enter")
        page.locator("#methods-body [role=status]", has_text="ed").wait_for()  # copied, or selected without permission


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("one", 1280, False), ("three", 1280, True), ("three", 390, False)]
)
def test_axe_finds_no_problem(browser, one, three, name, width, dark):
    page = browser.go({"one": one, "three": three}[name], width=width, dark=dark)
    page.evaluate(AXE)
    result = page.evaluate("tags => axe.run(document, { runOnly: tags, resultTypes: ['violations'] })", STANDARDS)
    problems = {problem["id"]: problem["nodes"][0]["html"][:200] for problem in result["violations"]}
    assert problems == {}
    assert "color-contrast" in {rule["id"] for rule in result["passes"]}
    assert page.evaluate("document.documentElement.scrollWidth") <= width
