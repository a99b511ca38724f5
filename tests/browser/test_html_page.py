"""The page in a real browser: nothing in the data is run, and everybody can use it."""

import numpy as np
import pytest
from chromium import opened, read
from report_pages import HOSTILE, arrays_of, contents_of

from dualfocal.report import write_report

DASH = "\N{EN DASH}"


def test_hostile_names_are_shown_and_never_run(browser, pages):
    with opened(browser, pages("logits")) as page:
        assert page.locator("#class option").all_text_contents() == ["all", *HOSTILE]
        names = page.locator("#classes-body tbody th").all_text_contents()
        assert sorted(names) == sorted(HOSTILE)
        assert page.evaluate("typeof hacked") == "undefined"
        assert page.locator("img").count() == 0


def test_scripts_that_are_not_ours_do_not_run(browser, pages):
    page = browser.go(pages("probs"))
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hacked = 1'}))")
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.evaluate("fetch('data:text/plain,hello').then(() => 'came', () => 'refused')") == "refused"
    assert sum("Content Security Policy" in event for event in browser.events) >= 2


def test_a_hover_describes_the_bin(browser, pages):
    data = arrays_of(pages("logits"))
    with opened(browser, pages("logits")) as page:
        page.locator("#bins").fill("1")
        read(page)
        page.locator(".reliability circle").first.hover()
        tip = page.locator(".reliability .readout").text_content()
        assert f"{data['count']} samples" in tip
        assert "confidence 0.0 % to 100.0 %" in tip
        page.locator("#panel-0 summary").click()
        assert page.locator("#bins-0 tbody tr").count() == 1


def test_tables_sort_by_mouse_and_keyboard(browser, pages):
    with opened(browser, pages("many")) as page:
        heading = page.locator("#classes-body thead th:nth-child(3)")

        def column() -> list[float]:
            texts = page.locator("#classes-body tbody tr td:nth-child(3)").all_text_contents()
            return [float(text.replace(",", "")) for text in texts]

        other = page.locator("#classes-body thead th:nth-child(8)")
        assert len(column()) == 120
        other.locator("button").click()
        assert other.get_attribute("aria-sort") == "descending"
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == "descending"
        assert other.get_attribute("aria-sort") == "none"
        assert column() == sorted(column(), reverse=True)
        heading.locator("button").press("Enter")
        assert heading.get_attribute("aria-sort") == "ascending"
        assert column() == sorted(column())
        page.locator("#classes-body thead th").first.locator("button").click()
        names = page.locator("#classes-body tbody th").all_text_contents()
        assert names == [str(c) for c in range(120)]  # 2 before 10


def test_a_class_that_is_never_predicted(browser, tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.array([[3.0, 0.0]] * 5), target=np.array([0, 0, 0, 1, 1]))
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=())
    with opened(browser, tmp_path / "p.html") as page:
        page.locator("#class").select_option("1")
        assert read(page)["count"] == 0
        assert page.locator("#panel-0 .reliability").text_content() == "No sample is predicted as this class."
        assert page.locator("#live-0 [data-figure=ece]").text_content() == DASH
        page.locator("#class").select_option("0")
        assert read(page)["count"] == 5
        assert page.locator("#panel-0 .reliability svg").count() == 1


def test_every_figure_can_be_saved_whatever_the_class(browser, tmp_path):
    """A class that is never predicted has no diagram, and so no buttons: they would find no picture to save."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 6))
    logits[:, 5] = -9
    names = np.array([*HOSTILE, "never"])
    np.savez(tmp_path / "a.npz", logits=logits, target=rng.integers(5, size=200), class_names=names)
    write_report([tmp_path / "a.npz"], tmp_path / "page.html", calibrators=())
    page = browser.go(tmp_path / "page.html")
    for name in names:
        page.select_option("#class", label=str(name))
        page.wait_for_function("name => document.querySelector('#live-caption').textContent.endsWith(name)", arg=name)
        for button in page.locator(".downloads button:visible").all():
            button.click()
        assert (page.locator("#panel-0 .saves button").count() > 0) == (name != "never"), name
    assert [event for event in browser.events if event.startswith(("error", "thrown"))] == []


def test_a_subset_of_the_samples_is_announced(browser, pages):
    count = arrays_of(pages("part"))["count"]
    with opened(browser, pages("part")) as page:
        assert f"a random subset, {count:,} of 6,000 samples" in page.locator("#sample-note").text_content()
        assert read(page)["count"] == count
    with opened(browser, pages("many")) as page:
        assert page.locator("#sample-note").text_content() == ""
        assert read(page)["count"] == 800


def test_runs_side_by_side(browser, runs):
    contents = contents_of(runs)
    with opened(browser, runs) as page:
        assert page.locator("#panels figure").count() == 2
        assert page.locator("#metrics-body table").first.locator("tbody tr").count() == 2
        headings = page.locator("#metrics-body table").nth(1).locator("thead th").all_text_contents()
        assert headings == ["metric", "a", "b"]
        assert page.locator("#verdicts li").all_text_contents() == [
            f"{run['name']} {DASH} {run['verdict']}" for run in contents["runs"]
        ]
        assert page.locator("#classes-title").text_content() == f"Classes {DASH} a"
        page.locator("#run").focus()
        page.keyboard.press("ArrowDown")
        assert page.locator("#classes-title").text_content() == f"Classes {DASH} b"
        assert page.locator("#calibrators-body .verdict").text_content() == contents["runs"][1]["advice"]
        assert "'test_logits' (997 x 10, float32)" in page.locator("#origin-body").text_content()
        page.locator("#fitted").check()
        temperatures = [read(page, i)["temperature"] for i in (0, 1)]
        assert temperatures == [run["temperature"] for run in contents["runs"]]
        after = [read(page, i)["nll"] for i in (0, 1)]
        static = page.locator("#metrics-body table:first-of-type tbody td:nth-child(8)").all_text_contents()
        assert static == [f"{nll:.4f}" for nll in after]


CONTRAST = """() => {
    const light = (text) => {
        const [r, g, b] = text.match(/\\d+/g).map((x) => ((x / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = light(getComputedStyle(document.documentElement).backgroundColor);
    const contrasts = ["#headline", ".note", "small", "td", "button", "figcaption"].map((place) => {
        const ink = light(getComputedStyle(document.querySelector(place)).color);
        return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    });
    return [paper, contrasts];
}"""


def test_both_themes(browser, runs):
    """The theme is that of the system until the button is pressed; text is legible in both."""
    for dark in (False, True):
        with opened(browser, runs, dark=dark) as page:
            button = page.locator("#theme")
            for now_dark in (dark, not dark):
                assert button.text_content() == ("Light theme" if now_dark else "Dark theme"), (dark, now_dark)
                paper, contrasts = page.evaluate(CONTRAST)
                assert (paper < 0.2) if now_dark else (paper > 0.8), (dark, now_dark)
                assert min(contrasts) >= 4.5, (dark, now_dark)
                button.press("Enter")


def test_a_phone_never_scrolls_sideways(browser, runs, pages):
    for file in (runs, pages("many")):
        with opened(browser, file, width=360) as page:
            assert_fits_a_phone(page)


def test_a_wide_table_scrolls_by_itself_on_a_phone(browser, pages):
    with opened(browser, pages("logits"), width=360) as page:
        assert_fits_a_phone(page)
        box = page.locator("#classes-body .scroll")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth")
        assert "linear-gradient" in box.evaluate("box => getComputedStyle(box).backgroundImage")
        caption = box.locator("caption span")
        before = caption.bounding_box()
        box.evaluate("box => { box.scrollLeft = 200; }")
        assert caption.bounding_box()["x"] == pytest.approx(before["x"], abs=1)
        assert before["x"] + before["width"] <= 360


def assert_fits_a_phone(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    widths = page.locator(".chart svg").evaluate_all("charts => charts.map(chart => chart.clientWidth)")
    assert widths
    assert all(220 <= width <= 360 for width in widths), widths


def test_print_is_light_and_without_controls(browser, runs):
    with opened(browser, runs, dark=True) as page:
        page.emulate_media(media="print")
        assert not any(controls.is_visible() for controls in page.locator(".controls").all())
        assert not page.locator("#chooser").is_visible()
        assert page.locator("#live-caption").is_visible()
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        assert page.pdf().startswith(b"%PDF")


def test_the_keyboard_reaches_every_control(browser, pages):
    with opened(browser, pages("logits")) as page:
        reached = []
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id"))
        for control in ("theme", "bins", "equal-width", "temperature", "class", "fitted", "reset"):
            assert control in reached
        page.locator("#temperature").focus()
        before = read(page)["ece"]
        for _ in range(32):
            page.keyboard.press("ArrowRight")
        actual = read(page)
        assert actual["temperature"] == pytest.approx(2**0.5)
        assert actual["ece"] < before
        assert page.locator("#temperature-value").text_content() == "T = 1.414"
