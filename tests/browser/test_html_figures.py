"""The page computes in a real browser what Python computes from the numbers that it carries."""

import math

import numpy as np
import pytest
import torch
from chromium import choose, expected, opened, read
from report_pages import HOSTILE, arrays_of, contents_of

from dualfocal.metrics import evaluate

SETTINGS = [
    (15, False, 0.0, None),
    (15, True, 0.0, None),
    (10, False, 0.0, 1),
    (20, False, 0.75, None),
    (7, True, -1.125, None),
    (5, False, 2.5, 0),
    (1, True, 1.0, 1),
    (50, True, -2.5, None),
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("logits", "logits"), ("probs", "probs"), ("scores", "logits"), ("many", "log_sums"), ("part", "logits")],
)
def test_figures_of_the_page_are_those_of_python(browser, pages, name, kind):
    file = pages(name)
    data = arrays_of(file)
    assert data["kind"] == kind
    assert (data["count"] < data["total"]) == (name == "part")
    figures = set()
    with opened(browser, file) as page:
        for num_bins, mass, octave, of_class in SETTINGS:
            choose(page, num_bins=num_bins, mass=mass, octave=octave, of_class=of_class)
            actual = read(page)
            python = expected(data, num_bins=num_bins, mass=mass, temperature=2**octave, of_class=of_class)
            page_figures = {figure: actual[figure] for figure in python}
            assert page_figures == pytest.approx(python, abs=1e-6), (num_bins, mass, octave, of_class)
            figures.add((actual["ece"], actual["nll"]))
    assert len(figures) > 6  # they change with the controls


def test_at_first_the_page_shows_the_figures_of_evaluate(browser, pages, folder):
    file = pages("logits")
    with np.load(folder / "logits.npz") as arrays:
        result = evaluate(arrays["logits"], arrays["target"], inference=True)
    with opened(browser, file) as page:
        actual = read(page)
        for name in ("ece", "nll", "error", "confidence", "accuracy"):
            assert actual[name] == pytest.approx(getattr(result, name), abs=1e-6)
        assert actual["chance"] == pytest.approx(result.inference.floors["ece"].mean, rel=0.1)
        assert page.locator("#headline").text_content() == result.verdict(HOSTILE)
        table = page.locator("#metrics-body table").first
        assert f"ECE [%]{100 * result.ece:.2f}" in table.text_content()
        caption = page.locator("#live-caption").text_content()
        assert "15 bins of equal width, T = 1.000, all samples" in caption
        diagram, bars = (page.locator(f".{kind} svg").first.bounding_box() for kind in ("reliability", "histogram"))
        assert diagram["y"] == pytest.approx(bars["y"], abs=1)  # beside each other
        assert diagram["height"] == pytest.approx(bars["height"], abs=2)


def test_the_fitted_temperature_has_the_lowest_likelihood_loss(browser, pages):
    fitted = contents_of(pages("logits"))["runs"][0]["temperature"]
    with opened(browser, pages("logits")) as page:
        before = read(page)
        page.locator("#fitted").check()
        at_best = read(page)
        assert at_best["temperature"] == fitted
        assert page.locator("#temperature").is_disabled()  # it would do nothing
        page.locator("#fitted").uncheck()
        for octave in (math.log2(fitted) - 0.1, math.log2(fitted) + 0.1):
            page.locator("#temperature").fill(str(round(octave * 64) / 64))
            assert read(page)["nll"] > at_best["nll"]
        page.locator("#reset").click()
        assert read(page) == before


def test_quantiles_lie_where_torch_puts_them(browser, pages):
    """A whole place must be whole in both: a hair below it, the bin would lose the sample there."""
    cases = [(n, num_bins) for num_bins in range(1, 51) for n in (1, 7, 58, 100, 116, 450, 997, 1000, 10_000, 26_032)]
    with opened(browser, pages("logits")) as page:
        actual = page.evaluate("cases => cases.map(([n, bins]) => Calibration.places(n, bins))", cases)
    for (n, num_bins), places in zip(cases, actual, strict=True):
        expected = torch.linspace(0, n, num_bins + 1, dtype=torch.float64).clamp_max(n - 1).numpy()
        assert np.allclose(places, expected, rtol=1e-12, atol=0)
        assert np.array_equal(np.floor(places), np.floor(expected))
