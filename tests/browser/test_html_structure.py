"""The page computes weighted numbers, and ranges that allow for clusters."""

from itertools import product

import numpy as np
import pytest
from chromium import choose, opened, read
from report_pages import contents_of, predictions

from dualfocal import metrics
from dualfocal.report import write_report


def test_the_browser_computes_weighted_numbers(browser, tmp_path):
    logits, target = predictions(600, 4)
    weight = np.random.default_rng(0).exponential(size=600)
    weight[:20] = 0
    file = tmp_path / "page.html"
    write_report({"model": (logits, target)}, file, calibrators=(), sample_weight=weight)
    with opened(browser, file) as page:
        for (num_bins, mass), octave in product([(15, False), (10, True)], [0.0, 1.0]):
            choose(page, num_bins=num_bins, mass=mass, octave=octave, of_class=None)
            actual, values = read(page), logits.double() / 2**octave
            ece = metrics.adaptive_ece if mass else metrics.ece
            assert actual["ece"] == pytest.approx(
                ece(values, target, num_bins=num_bins, sample_weight=weight), rel=1e-9
            )
            assert actual["nll"] == pytest.approx(metrics.nll(values, target, sample_weight=weight), rel=1e-6)
            assert actual["error"] == pytest.approx(metrics.error_rate(values, target, sample_weight=weight))
            assert actual["count"] == 580
        assert "All numbers are weighted" in page.locator("#sample-note").inner_text()


def test_ranges_in_the_browser_allow_for_clusters(browser, tmp_path):
    logits, target = predictions(200, 3, sharpness=1.0)
    logits, target, clusters = logits.repeat(4, 1), target.repeat(4), np.tile(np.arange(200), 4)
    write_report({"m": (logits, target)}, tmp_path / "a.html", calibrators=(), clusters=clusters)
    write_report({"m": (logits, target)}, tmp_path / "b.html", calibrators=())
    floors = []
    for name in ("a", "b"):
        with opened(browser, tmp_path / f"{name}.html") as page:
            floors.append(read(page)["chance"])
            words = "design effect of all samples"
            assert (words in page.locator("#figure-classes .note").first.inner_text()) == (name == "a")
            assert (words in page.locator("#sample-note").inner_text()) == (name == "a")
    effect = contents_of(tmp_path / "a.html")["runs"][0]["data"]["designEffect"]
    assert floors[0] == pytest.approx(floors[1] * effect**0.5, rel=0.02)
