"""Axis functions: what is drawn is what was computed."""

import math

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from samples import draw_logits

from dualfocal.metrics import corp
from dualfocal.plots import LOOKS, corp_diagram, corp_figure
from dualfocal_lab.plots import (
    MetricBar,
    ece_over_training,
    max_logit_histogram,
    metric_bars,
    metric_figure,
    rival_boxplot,
)
from dualfocal_lab.plots.distributions import maximum_logits, rival_probabilities, shared_histograms
from dualfocal_lab.plots.metric_bars import t_interval
from dualfocal_lab.plots.training import exponential_average, per_seed


@pytest.fixture
def axis() -> Axes:
    return Figure().subplots()


def predictions(n: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Over-confident logits, and labels."""
    return draw_logits(n, 5, overconfidence=2.0)


# CORP


def test_corp_diagram_draws_the_fit_the_band_and_the_scores(axis):
    curve = corp(*predictions(), draws=100)
    assert corp_diagram(curve, ax=axis) is axis
    [fit] = [line for line in axis.lines if line.get_label() == "accuracy by isotonic fit"]
    np.testing.assert_array_equal(fit.get_data(), [curve.confidence, curve.recalibrated])
    [band] = axis.collections
    corners = band.get_paths()[0].vertices
    for at, low, high in zip(curve.band_at, curve.low, curve.high, strict=True):
        there = corners[np.isclose(corners[:, 0], at), 1]
        assert (there.min(), there.max()) == pytest.approx((low, high))
    text = axis.texts[0].get_text()
    for name, value in (("MCB", curve.mcb), ("DSC", curve.dsc), ("UNC", curve.unc), ("Brier", curve.score)):
        assert f"{name} {value:.4f}" in text
    assert f"noise floor {curve.mcb_floor.mean:.4f}" in text


def test_a_fit_of_one_point_can_be_seen(axis):
    corp_diagram(torch.tensor([[2.0, 0.0]]).repeat(30, 1), torch.arange(30) % 2, draws=100, ax=axis)
    assert axis.lines[-1].get_marker() == "o"


def test_corp_figure_have_shares_below():
    figure = corp_figure({"a": corp(*predictions(), draws=100), "b": corp(*predictions(200), draws=100)})
    tops = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in tops] == ["a, N = 300", "b, N = 200"]
    strips = [axis for axis in figure.axes if not axis.get_title()]
    for strip in strips:
        assert sum(bar.get_height() for bar in strip.patches) == pytest.approx(100)
    with pytest.raises(ValueError, match="at least one"):
        corp_figure({})


# Bars


def test_t_interval_of_three_seeds():
    # t(0.95; 2 degrees of freedom) = 2.919986, from a table.
    values = [0.01, 0.02, 0.06]
    error = math.sqrt(sum((v - 0.03) ** 2 for v in values) / 2) / math.sqrt(3)
    assert t_interval(values) == pytest.approx((0.03 - 2.919986 * error, 0.03 + 2.919986 * error))
    assert t_interval([0.03]) is None


def test_t_interval_covers_the_mean_at_its_level():
    rng = np.random.default_rng(0)
    ends = np.array([t_interval(rng.normal(0.05, 0.01, 3).tolist()) for _ in range(2000)])
    assert ((ends[:, 0] < 0.05) & (ends[:, 1] > 0.05)).mean() == pytest.approx(0.9, abs=0.025)


def test_metric_bars_in_percent_with_seeds_interval_and_floor(axis):
    bars = {"one": MetricBar((0.02,), floor=0.01), "three": MetricBar((0.01, 0.02, 0.06), (0.005, 0.055), 0.015)}
    assert metric_bars(bars, ax=axis) is axis
    assert [bar.get_width() for bar in axis.patches][::2] == pytest.approx([2, 3])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["one", "three"]
    [dots] = [line for line in axis.lines if line.get_marker() == "o"]  # of a single run the bar says it all
    np.testing.assert_allclose(dots.get_xdata(), [1, 2, 6])
    [whisker] = [line for line in axis.lines if line.get_marker() == "|"]
    np.testing.assert_allclose(whisker.get_xdata(), [0.5, 5.5])
    np.testing.assert_array_equal(whisker.get_ydata(), [0, 0])  # the lower of the two bars
    ticks = {tuple(line.get_xdata()) for line in axis.lines if line.get_marker() == "None"}
    assert {round(x, 9) for x, _ in ticks} == {1.0, 1.5}


def test_intervals_are_always_in_the_legend():
    bar = MetricBar((0.01, 0.02), (0.0, 0.03))
    with pytest.raises(ValueError, match="interval is empty"):
        metric_figure({"ECE": {"a": bar}})
    figure = metric_figure({"ECE": {"a": bar}, "AdaECE": {"a": bar}}, interval="this and that")
    assert [axis.get_xlabel() for axis in figure.axes] == ["ECE [%]", "AdaECE [%]"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["mean over seeds", "single seed", "this and that"]
    single = metric_figure({"ECE": {"a": MetricBar((0.01,), floor=0.01)}})
    words = [text.get_text() for text in single.legends[0].get_texts()]
    assert words == ["one run", "noise floor"]
    with pytest.raises(ValueError, match="at least one"):
        metric_figure({})
    with pytest.raises(ValueError, match="at least one"):
        MetricBar(())


# Over training


def test_exponential_average_is_the_loop():
    values = np.random.default_rng(0).random(30)
    expected = [values[0]]
    for value in values[1:]:
        expected.append(0.5 * expected[-1] + 0.5 * value)
    np.testing.assert_allclose(exponential_average(values), expected, atol=1e-15)
    # What was seen k epochs ago counts 2^-(k + 1): a single peak fades by half each epoch.
    np.testing.assert_array_equal(exponential_average([0, 0, 8, 0, 0, 0]), [0, 0, 4, 2, 1, 0.5])


def test_curves_are_smoothed_then_averaged_over_seeds(axis):
    seeds = ((0.4, 0.2, 0.0), (0.2, 0.2, 0.2))
    drawn = ece_over_training({"a": seeds, "b": seeds[1]}, floors=[0.01, 0.03], part="validation", ax=axis)
    assert drawn is axis
    first, second = axis.lines
    np.testing.assert_array_equal(first.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(first.get_ydata(), [30, 25, 17.5])  # (40, 30, 15) and (20, 20, 20)
    np.testing.assert_allclose(second.get_ydata(), [20, 20, 20])
    [band] = axis.collections  # of two seeds; of one there is none
    corners = band.get_paths()[0].vertices
    third = corners[corners[:, 0] == 3, 1]
    assert (third.min(), third.max()) == pytest.approx((15, 20))
    [floor] = axis.patches
    assert (floor.get_y(), floor.get_y() + floor.get_height()) == pytest.approx((1, 3))
    assert axis.get_ylabel() == "validation ECE [%]"


@pytest.mark.parametrize("seeds", [(), ((),), ((0.1,), (0.1, 0.2))])
def test_curves_that_are_none(seeds):
    with pytest.raises(ValueError, match="seed"):
        per_seed(seeds)


# Distributions


def test_maximum_logits_are_before_softmax():
    logits, _ = predictions()
    np.testing.assert_array_equal(maximum_logits(logits), [max(row) for row in logits.tolist()])


def test_rival_is_the_largest_strictly_below_the_true_class():
    logits, target = predictions(200)
    logits[0] = 0.0  # all are equal: there is none below
    p = logits.double().softmax(1)
    expected = []
    for row, label in zip(p.tolist(), target.tolist(), strict=True):
        expected.append(max((q for q in row if q < row[label]), default=0.0))
    np.testing.assert_allclose(rival_probabilities(logits, target), expected, atol=1e-15)
    assert rival_probabilities(logits, target)[0] == 0


def test_histograms_share_edges_and_have_area_1(axis):
    values = {"wide": np.random.default_rng(0).normal(10, 4, 500), "narrow": np.random.default_rng(1).normal(5, 1, 300)}
    edges, densities = shared_histograms(values, 30)
    assert (edges[0], edges[-1]) == (min(map(np.min, values.values())), max(map(np.max, values.values())))
    for name, density in densities.items():
        assert (density * np.diff(edges)).sum() == pytest.approx(1)
        inside = (values[name] >= edges[7]) & (values[name] < edges[8])
        assert density[7] == pytest.approx(inside.mean() / (edges[8] - edges[7]))
    assert max_logit_histogram({name: data[:, None] for name, data in values.items()}, bins=30, ax=axis) is axis
    outlines = [patch.get_data() for patch in axis.patches if not patch.get_fill()]
    heights = {name: np.array(curve.values) - curve.baseline for name, curve in zip(values, outlines, strict=True)}
    scale = heights["narrow"].max() / densities["narrow"].max()
    for name, height in heights.items():
        np.testing.assert_allclose(height, scale * densities[name], atol=1e-12)
    medians = [line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1]
    np.testing.assert_allclose(medians, [np.median(curve) for curve in values.values()])
    with pytest.raises(ValueError, match="method"):
        shared_histograms({"a": np.array([])})


def test_box_plot_is_drawn_at_the_quartiles_without_outliers(axis):
    values = {"a": np.append(np.linspace(0.01, 0.2, 101), 0.45), "b": np.linspace(0.1, 0.3, 11)}
    logits = {name: np.log(np.stack([1 - rival, rival], axis=1)) for name, rival in values.items()}
    target = {name: np.zeros(len(rival), dtype=int) for name, rival in values.items()}
    assert rival_boxplot({name: (logits[name], target[name]) for name in values}, ax=axis) is axis
    medians = [line.get_xdata()[0] for line in axis.lines if line.get_linewidth() == 1.8]
    for patch, median, curve in zip(axis.patches, medians, values.values(), strict=True):
        x = patch.get_path().vertices[:, 0]
        assert (x.min(), median, x.max()) == pytest.approx(tuple(np.quantile(curve, [0.25, 0.5, 0.75])))
    assert max(line.get_xdata().max() for line in axis.lines) < 0.4  # 0.45 is an outlier, and not there
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b"]


def test_looks_that_are_given_are_drawn(axis):
    looks = {"mine": LOOKS["dual_focal"]}
    ece_over_training({"mine": [0.1, 0.2]}, looks=looks, ax=axis)
    assert to_hex(axis.lines[0].get_color()).upper() == LOOKS["dual_focal"].colour
