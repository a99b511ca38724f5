"""Reliability diagrams draw the computed numbers, and all of the figure can be seen."""

import io
import itertools

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from report_pages import png_size
from samples import draw_logits

from dualfocal import metrics
from dualfocal.metrics import Evaluation, corp
from dualfocal.plots import corp_diagram, corp_figure, reliability_diagram, reliability_figure, save


def evaluation(n: int = 1000, sharpness: float = 1.0, seed: int = 0, **options: object) -> Evaluation:
    """The evaluation of a model that is calibrated, or over-confident with sharpness > 1."""
    return metrics.evaluate(*draw_logits(n, 5, seed=seed, overconfidence=sharpness), **options)


def diagrams(figure: Figure) -> list[tuple[Axes, Axes]]:
    """The diagram and the strip below it, of each set of predictions."""
    visible = [axis for axis in figure.axes if axis.get_visible()]
    tops = [axis for axis in visible if axis.get_title()]
    strips = [axis for axis in visible if not axis.get_title()]
    return list(zip(tops, strips, strict=True))


def bars(axis: Axes) -> dict[str, np.ndarray]:
    """Left edge, bottom and height of the bars, (n, 3), by what the legend calls them."""
    return {
        container.get_label(): np.array(
            [(bar.get_x(), bar.get_y(), bar.get_height()) for bar in container if not np.isnan(bar.get_height())]
        )
        for container in axis.containers
        if isinstance(container, BarContainer)
    }


def whiskers(axis: Axes) -> np.ndarray:
    """Low and high end, (n, 2), of the range of a calibrated model, bin by bin."""
    [container] = [result for result in axis.containers if isinstance(result, ErrorbarContainer)]
    return np.array([segment[:, 1] for segment in container.lines[2][0].get_segments()])


BEYOND, WITHIN = "gap beyond this range", "gap within this range"


def png(figure: Figure, dpi: int = 50) -> tuple[int, int]:
    """Width and height of the figure as a PNG, which has to be one."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return png_size(file.getvalue())


def assert_drawn(top: Axes, strip: Axes, result: Evaluation) -> None:
    full = result.bins.count > 0
    accuracy, confidence = result.bins.accuracy, result.bins.mean_confidence
    drawn = bars(top)
    np.testing.assert_array_equal(drawn["accuracy"][:, 0], result.bins.edges[:-1])
    np.testing.assert_array_equal(drawn["accuracy"][:, 2], np.where(full, accuracy, 0))
    gaps = np.concatenate([gap for gap in (drawn[BEYOND], drawn[WITHIN]) if len(gap)])
    gaps = gaps[gaps[:, 0].argsort()]
    np.testing.assert_array_equal(gaps[:, 1], accuracy[full])
    np.testing.assert_allclose(gaps[:, 2], (confidence - accuracy)[full], atol=1e-15)
    heights = [bar.get_height() for bar in strip.patches]
    np.testing.assert_allclose(heights, 100 * result.bins.count / result.num_samples)
    np.testing.assert_allclose([bar.get_x() for bar in strip.patches], result.bins.edges[:-1])
    assert f"ECE {100 * result.ece:.1f} %" in top.texts[0].get_text()
    assert top.get_title().endswith(f", N = {result.num_samples:,}")


def test_one_evaluation():
    result = evaluation(2000, 1.5, inference=True)
    figure = reliability_figure({"model": result})
    [(top, strip)] = diagrams(figure)
    assert_drawn(top, strip, result)
    assert top.get_title() == "model, N = 2,000"
    floor = result.inference.floors["ece"].mean
    assert top.texts[0].get_text().endswith(f"\nnoise floor {100 * floor:.1f} %")
    width, height = png(figure, dpi=100)
    assert 400 < width < 800
    assert 400 < height < 800


def test_five_evaluations_each_in_a_diagram_of_its_own():
    evaluations = {f"model {i}": evaluation(300 + i, 1.5, seed=i, num_bins=10 + i) for i in range(5)}
    figure = reliability_figure(evaluations)
    drawn = diagrams(figure)
    assert [top.get_title().split(",")[0] for top, _ in drawn] == list(evaluations)
    for (top, strip), result in zip(drawn, evaluations.values(), strict=True):
        assert_drawn(top, strip, result)
    width, height = png(figure)
    assert width > 1.2 * height  # four beside each other, then one


def test_gaps_beyond_the_range_of_a_calibrated_model_are_marked():
    result = evaluation(3000, 2.5)
    [(top, _)] = diagrams(reliability_figure({"": result}))
    drawn, edges = bars(top), result.bins.edges
    full = np.flatnonzero(result.bins.count)
    ranges = dict(zip(full, whiskers(top), strict=True))
    assert len(drawn[BEYOND]) >= 8
    assert (drawn[BEYOND][:, 2] > 0).all()  # over-confident: from the accuracy up
    assert len(drawn[WITHIN]) >= 1
    for label, beyond in ((BEYOND, True), (WITHIN, False)):
        for left, accuracy, gap in drawn[label]:
            low, high = ranges[np.abs(edges[:-1] - left).argmin()]
            assert low <= accuracy + gap <= high  # the range of a calibrated model is about its confidence
            assert (not low - 1e-9 <= accuracy <= high + 1e-9) == beyond


def test_few_bins_of_calibrated_models_are_beyond():
    beyond = num_bins = 0
    for seed in range(40):
        result = evaluation(2000, seed=seed)
        accuracy = result.bins.accuracy[result.bins.count > 0]
        [(top, _)] = diagrams(reliability_figure({"": result}))
        low, high = whiskers(top).T
        beyond += ((accuracy < low - 1e-12) | (accuracy > high + 1e-12)).sum()
        num_bins += len(accuracy)
    assert num_bins > 400
    assert 0.02 < beyond / num_bins < 0.125  # at most 10 % by construction; the standard error is 1.4 points


def test_range_is_that_of_binomial_outcomes():
    # 400 samples of confidence 0.8: 90 % of the shares lie within 1.645 * sqrt(0.8 * 0.2 / 400) = 0.033.
    probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64).repeat(400, 1)
    result = metrics.evaluate(probs, (torch.arange(400) % 5 == 0).long(), input="probs")
    [(top, _)] = diagrams(reliability_figure({"": result}))
    np.testing.assert_allclose(whiskers(top), [[0.8 - 0.033, 0.8 + 0.033]], atol=0.003)
    np.testing.assert_allclose(bars(top)[WITHIN][:, 1:], [[0.8, 0.0]], atol=1e-9)


def test_the_range_holds_its_level_in_a_simulation():
    rng = np.random.default_rng(0)
    count, confidence = [40, 7, 300], [0.55, 0.9, 0.97]
    p = torch.tensor(confidence, dtype=torch.float64).repeat_interleave(torch.tensor(count))
    result = metrics.evaluate(torch.stack([p, 1 - p], 1), torch.zeros(347, dtype=torch.int64), input="probs")
    [(top, _)] = diagrams(reliability_figure({"": result}))
    for n, p, (a, b) in zip(count, confidence, whiskers(top), strict=True):  # empty bins have none
        shares = (rng.random((20_000, n)) < p).mean(1)
        assert (shares < a - 1e-9).mean() < 0.055
        assert (shares > b + 1e-9).mean() < 0.055
        assert (shares <= a + 1e-9).mean() > 0.045  # and it is not wider than need be
        assert (shares >= b - 1e-9).mean() > 0.045


def test_a_figure_leaves_pyplot_alone():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    png(reliability_figure({"model": evaluation(500, 2.0)}))
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("count", "sharpness"),
    [(1, 2.0), (1, 1.0), (2, 2.0), (5, 2.0)],  # a calibrated model has no gap beyond its range
)
def test_diagrams_fill_the_figure(count, sharpness):
    result = evaluation(500, sharpness)
    figure = reliability_figure({f"{i}": result for i in range(count)})
    figure.draw_without_rendering()
    lines = -(-count // 4)
    for top, strip in diagrams(figure):
        assert top.get_position().height > 0.5 / lines
        assert strip.get_position().height > 0.1 / lines
        assert top.get_position().width > 0.75 / min(count, 4)
        assert [label.get_text() for label in strip.get_xticklabels() if label.get_visible()] == ["0.0", "0.5", "1.0"]


def test_confidences_of_0_and_1():
    logits = torch.tensor([[300.0, -300.0]]).repeat(40, 1)
    result = metrics.evaluate(logits, (torch.arange(40) < 4).long(), inference=True)
    figure = reliability_figure({"sure": result})
    [(top, strip)] = diagrams(figure)
    assert_drawn(top, strip, result)
    np.testing.assert_allclose(bars(top)[BEYOND][:, 1:], [[0.9, 0.1]])
    np.testing.assert_array_equal(whiskers(top), [[1.0, 1.0]])


def test_torchmetrics_bins_are_drawn_with_the_one_of_confidence_1():
    probs = torch.tensor([[1.0, 0.0], [0.6, 0.4]]).repeat(50, 1)
    result = metrics.evaluate(probs, torch.zeros(100, dtype=torch.long), input="probs", convention="torchmetrics")
    figure = reliability_figure({"": result})
    [(top, strip)] = diagrams(figure)
    assert_drawn(top, strip, result)


@pytest.mark.parametrize(("panels", "binned"), [(1, True), (2, True), (5, True), (1, False), (5, False)])
def test_legend_and_remark_fit_into_the_figure(panels: int, binned: bool) -> None:
    remark = "Test split, uncalibrated; seed 0 (one of 3 seeds). Brier score of the predicted class = MCB - DSC."
    evaluations = {f"model {i}": evaluation(100, seed=i) for i in range(panels)}
    if binned:
        figure = reliability_figure(evaluations, remark=remark)
    else:
        one = corp(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3, draws=100)
        figure = corp_figure(dict.fromkeys(evaluations, one), remark=remark)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert box.y0 >= 0


def test_long_names_do_not_run_into_each_other() -> None:
    names = [f"cross_entropy-seed{i}, temperature_ece" for i in range(4)] + ["a/" * 60]
    figure = reliability_figure({name: evaluation(100, seed=i) for i, name in enumerate(names)})
    figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in figure.axes if axis.get_title()]
    assert len(boxes) == 5
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_a_diagram_of_arrays_is_that_of_their_evaluation() -> None:
    probs = torch.rand(400, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    target = torch.arange(400) % 3
    result = metrics.evaluate(probs, target, input="probs", num_bins=10)
    from_evaluation = reliability_diagram(result, ax=Figure().subplots())
    from_arrays = reliability_diagram(probs.numpy(), target.numpy(), input="probs", num_bins=10, ax=Figure().subplots())
    for label, drawn in bars(from_evaluation).items():
        np.testing.assert_array_equal(bars(from_arrays)[label], drawn)
    curve = corp(probs, target, input="probs", draws=100)
    drawn = corp_diagram(probs, target, input="probs", draws=100, ax=Figure().subplots())
    np.testing.assert_array_equal(drawn.lines[1].get_data(), [curve.confidence, curve.recalibrated])


def test_diagrams_without_axes_make_a_pyplot_figure_in_our_style(tmp_path) -> None:
    import matplotlib.pyplot as plt

    logits, target = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    before, settings = plt.get_fignums(), dict(plt.rcParams)
    drawn = [
        reliability_diagram(logits, target),
        corp_diagram(logits, target, draws=100),
    ]
    made = [number for number in plt.get_fignums() if number not in before]
    try:
        assert [axis.figure.number for axis in drawn] == made
        assert len(made) == len(drawn)
        assert [bool(axis.figure.legends) for axis in drawn] == [True, True]
        assert drawn[0].yaxis.label.get_fontsize() == 9
        save(drawn[0], str(tmp_path / "diagram.png"), dpi=40)
        assert (tmp_path / "diagram.png").read_bytes().startswith(b"\x89PNG")
        assert dict(plt.rcParams) == settings
    finally:
        for number in made:
            plt.close(number)


def test_what_is_drawn_must_be_clear() -> None:
    logits, target = torch.randn(50, 3), torch.arange(50) % 3
    axis = Figure().subplots()
    for diagram, result in ((reliability_diagram, evaluation(50)), (corp_diagram, corp(logits, target, draws=100))):
        with pytest.raises(TypeError, match="ax="):
            diagram(result, axis)
        with pytest.raises(TypeError, match="target"):
            diagram(logits, ax=axis)


def test_the_legend_shows_both_hatches_if_no_gap_is_beyond_the_range() -> None:
    logits = torch.tensor([[2.0, 0.0]] * 10)  # confidence .88, and 9 of 10 are right
    figure = reliability_figure({"calibrated": metrics.evaluate(logits, torch.tensor([0] * 9 + [1]))})
    assert BEYOND not in {label for label, drawn in bars(figure.axes[0]).items() if len(drawn)}
    [legend] = figure.legends
    hatches = {
        t.get_text(): h.get_hatch()
        for t, h in zip(legend.get_texts(), legend.legend_handles, strict=True)
        if isinstance(h, Patch)
    }
    assert (hatches[BEYOND], hatches[WITHIN]) == ("////", "....")


def test_axes_of_class_1_show_probability_and_frequency() -> None:
    probs, target = torch.linspace(0, 1, 200, dtype=torch.float64), torch.arange(200) % 2
    options = {"input": "probs", "binary": "positive"}
    result = metrics.evaluate(probs, target, inference=True, **options)
    first, second, third = Figure().subplots(1, 3)
    for axis in (reliability_diagram(result, ax=first), corp_diagram(probs, target, draws=100, ax=second, **options)):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("probability", "frequency")
    [(top, strip)] = diagrams(reliability_figure({"scores": result}))
    assert (strip.get_xlabel(), top.get_ylabel()) == ("probability", "frequency")
    assert "frequency" in bars(top)
    axis = reliability_diagram(evaluation(50), ax=third)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("confidence", "accuracy")


# Bins with equally many samples


def rare_event(n: int = 3000, seed: int = 0, decimals: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated probabilities of an event, most of them below 5 %, rounded so that some are equal."""
    rng = np.random.default_rng(seed)
    probs = rng.beta(1, 30, n).round(decimals)
    return probs, (rng.random(n) < probs).astype(np.int64)


def quantile_diagram(probs: np.ndarray, target: np.ndarray, **options: object) -> Axes:
    options = {"input": "probs", "binary": "positive", "strategy": "quantile", "ax": Figure().subplots()} | options
    return reliability_diagram(probs, target, **options)


@pytest.mark.parametrize("decimals", [2, 3, 16])
def test_quantile_bins_hold_equally_many_samples_and_equal_ones_together(decimals: int) -> None:
    probs, target = rare_event(decimals=decimals)
    edges = np.sort(probs)[np.minimum(np.arange(11) * 300, 2999)]
    axis = quantile_diagram(probs, target, num_bins=10)
    drawn, beyond, within = (result for result in axis.containers if isinstance(result, BarContainer))
    error = 0.0
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        assert (drawn[i].get_x(), drawn[i].get_width()) == pytest.approx((low, high - low), abs=1e-9)
        inside = (probs > (low if i else -1)) & (probs <= high)
        heights = [bars[i].get_height() for bars in (drawn, beyond, within)]
        if not inside.any():
            np.testing.assert_array_equal(heights, [0, np.nan, np.nan])
            continue
        gap = probs[inside].mean() - target[inside].mean()
        error += inside.mean() * abs(gap)
        np.testing.assert_allclose([heights[0], np.nansum(heights[1:])], [target[inside].mean(), gap], atol=1e-9)
    result = metrics.evaluate(probs, target, input="probs", binary="positive", num_bins=10)
    assert error == pytest.approx(result.adaptive_ece)
    assert axis.texts[0].get_text() == f"adaptive ECE {100 * error:.1f} %"


def test_whole_weights_give_the_quantile_bins_of_copies() -> None:
    probs, target = rare_event(400)
    weight = np.arange(400) % 4
    weighted = bars(quantile_diagram(probs, target, sample_weight=weight))["frequency"]
    copies = bars(quantile_diagram(probs.repeat(weight), target.repeat(weight)))["frequency"]
    np.testing.assert_allclose(weighted, copies, atol=1e-9)


def test_quantile_bins_of_the_confidence_alone() -> None:
    probs, right = rare_event(400)
    axis = quantile_diagram(probs, right, input="confidence", binary=None)
    expected = bars(quantile_diagram(probs, right))["frequency"]
    np.testing.assert_array_equal(bars(axis)["accuracy"], expected)


def test_few_quantile_bins_of_calibrated_models_are_beyond_the_range() -> None:
    beyond = number = 0
    for seed in range(40):
        axis = quantile_diagram(*rare_event(2000, seed, decimals=16))
        frequency, (low, high) = bars(axis)["frequency"][:, 2], whiskers(axis).T
        beyond += ((frequency < low - 1e-12) | (frequency > high + 1e-12)).sum()
        number += len(frequency)
    assert number == 600
    assert 0.02 < beyond / number < 0.125  # at most 10 % by construction, fewer for few events


def test_the_range_of_a_wide_quantile_bin_is_about_its_mean() -> None:
    probs, target = rare_event()
    axis = quantile_diagram(probs, target, num_bins=2)
    upper = probs[probs > np.median(probs)]
    [container] = [result for result in axis.containers if isinstance(result, ErrorbarContainer)]
    (x, low), (_, high) = container.lines[2][0].get_segments()[1]
    noise = 1.645 * np.sqrt((upper * (1 - upper)).mean() / len(upper))
    np.testing.assert_allclose([x, low, high], upper.mean() + np.array([0, -noise, noise]), atol=0.1 * noise)


def test_axes_of_small_probabilities_end_below_1() -> None:
    probs, target = rare_event()
    curve = corp(probs, target, input="probs", binary="positive", draws=100)
    [(top, strip)] = diagrams(corp_figure({"rare": curve}))
    for axis in (quantile_diagram(probs, target), corp_diagram(curve, ax=Figure().subplots()), top, strip):
        assert 0.1 < axis.get_xlim()[1] <= 0.4
        assert axis.get_xticks()[-1] == axis.get_xlim()[1]
    end = top.get_xlim()[1]
    np.testing.assert_allclose([bar.get_x() for bar in strip.patches][-1], end)
    heights = [bar.get_height() for bar in strip.patches]
    assert sum(heights) == pytest.approx(100)
    assert heights[-1] == pytest.approx(100 * (probs > end).mean())
    axis = quantile_diagram(probs, target)
    assert max(whiskers(axis).max(), bars(axis)["frequency"][:, 2].max()) <= axis.get_xlim()[1]
    assert quantile_diagram(1 - probs, 1 - target).get_xlim() == (0, 1)
    assert (
        reliability_diagram(probs, target, input="probs", binary="positive", ax=Figure().subplots()).get_xlim()[1] == 1
    )


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: reliability_diagram(evaluation(50), strategy="quantile"), "an Evaluation does not keep"),
        (lambda: quantile_diagram(*rare_event(50), strategy="kmeans"), "strategy.*'kmeans'"),
        (lambda: reliability_figure([evaluation(50)]), "dict.*list"),
        (lambda: reliability_figure(evaluation(50)), "dict.*Evaluation"),
        (lambda: reliability_figure({"a": torch.zeros(2, 2)}), "'a'.*Tensor"),
        (lambda: save(None, "x.png"), "NoneType"),
    ],
)
def test_wrong_arguments_are_named(draw, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()
