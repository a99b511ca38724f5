"""Reliability diagrams: what is drawn is what was computed, and can be seen."""

import io
import struct

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from dualfocal import metrics
from dualfocal.metrics import Evaluation
from dualfocal.report.plots import reliability_figure
from dualfocal.report.plots.style import BLUE, VERMILION


def evaluation(n: int = 1000, sharpness: float = 1.0, seed: int = 0, **options: object) -> Evaluation:
    """Of a model that is calibrated, or over-confident with sharpness > 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 5, generator=generator)
    target = torch.multinomial((logits / sharpness).softmax(1), 1, generator=generator)[:, 0]
    return metrics.evaluate(logits, target, **options)


def diagrams(figure: Figure) -> list[tuple[Axes, Axes]]:
    """The diagram and the strip below it, of each set of predictions."""
    visible = [axis for axis in figure.axes if axis.get_visible()]
    tops = [axis for axis in visible if axis.get_title()]
    strips = [axis for axis in visible if not axis.get_title()]
    return list(zip(tops, strips, strict=True))


def dots(axis: Axes) -> dict[str, np.ndarray]:
    """x and y of the dots, (2, n) in order of x, by colour."""
    found = {
        to_hex(line.get_color()).upper(): np.array(line.get_data()) for line in axis.lines if line.get_marker() == "o"
    }
    return {colour: xy[:, xy[0].argsort()] for colour, xy in found.items()}


def png(figure: Figure, dpi: int = 50) -> tuple[int, int]:
    """Width and height of the figure as a PNG, which has to be one."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    assert file.getvalue()[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", file.getvalue()[16:24])


def assert_drawn(top: Axes, strip: Axes, of: Evaluation) -> None:
    full = of.bins.count > 0
    expected = torch.stack([of.bins.mean_confidence[full], of.bins.accuracy[full]]).numpy()
    drawn = np.concatenate(list(dots(top).values()), axis=1)
    np.testing.assert_array_equal(drawn[:, drawn[0].argsort()], expected)
    heights = [bar.get_height() for bar in strip.patches]
    np.testing.assert_allclose(heights, 100 * of.bins.count.numpy() / of.num_samples)
    np.testing.assert_allclose([bar.get_x() for bar in strip.patches], of.bins.edges[:-1].numpy())
    assert f"ECE {100 * of.ece:.1f} %" in top.texts[0].get_text()
    assert top.get_title().endswith(f", N = {of.num_samples:,}")


def test_one_evaluation():
    of = evaluation(2000, 1.5, inference=True)
    figure = reliability_figure({"model": of})
    [(top, strip)] = diagrams(figure)
    assert_drawn(top, strip, of)
    assert top.get_title() == "model, N = 2,000"
    floor = of.inference.floors["ece"].mean
    assert top.texts[0].get_text().endswith(f"\na calibrated model: {100 * floor:.1f} %")
    width, height = png(figure, dpi=100)
    assert 400 < width < 800
    assert 400 < height < 800


def test_five_evaluations_each_in_a_diagram_of_its_own():
    made = {f"model {i}": evaluation(300 + i, 1.5, seed=i, num_bins=10 + i) for i in range(5)}
    figure = reliability_figure(made)
    drawn = diagrams(figure)
    assert [top.get_title().split(",")[0] for top, _ in drawn] == list(made)
    for (top, strip), of in zip(drawn, made.values(), strict=True):
        assert_drawn(top, strip, of)
    assert len(diagrams(figure)) == 5
    width, height = png(figure)
    assert width > 1.2 * height  # four beside each other, then one


def test_dots_outside_the_range_of_a_calibrated_model_have_another_colour():
    of = evaluation(3000, 2.5)
    [(top, _)] = diagrams(reliability_figure({"": of}))
    coloured = dots(top)
    assert coloured.keys() == {BLUE, VERMILION}
    confidence, accuracy = coloured[VERMILION]
    assert len(confidence) >= 8
    assert (accuracy < confidence).all()
    bars = {round(bar.get_x() + bar.get_width() / 2, 9): bar for bar in top.patches}
    for colour, outside in ((BLUE, False), (VERMILION, True)):
        for x, y in coloured[colour].T:
            bar = bars[round(x, 9)]
            low, high = bar.get_y(), bar.get_y() + bar.get_height()
            assert low <= x <= high  # the range of a calibrated model is about its confidence
            assert (not low - 1e-9 <= y <= high + 1e-9) == outside


def test_few_dots_of_calibrated_models_are_outside():
    counts = []
    for seed in range(20):
        [(top, _)] = diagrams(reliability_figure({"": evaluation(2000, seed=seed)}))
        counts.append([dots(top)[colour].shape[1] for colour in (BLUE, VERMILION)])
    within, outside = np.sum(counts, axis=0)
    assert 0.03 < outside / (within + outside) < 0.17  # 10 % by construction, of 220 dots


def test_range_is_that_of_binomial_outcomes():
    # 400 samples of confidence 0.8: 90 % of the shares lie within 1.645 * sqrt(0.8 * 0.2 / 400) = 0.033.
    probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64).repeat(400, 1)
    of = metrics.evaluate(probs, (torch.arange(400) % 5 == 0).long(), input="probs")
    [(top, _)] = diagrams(reliability_figure({"": of}))
    [bar] = top.patches
    assert bar.get_y() == pytest.approx(0.8 - 0.033, abs=0.004)
    assert bar.get_y() + bar.get_height() == pytest.approx(0.8 + 0.033, abs=0.004)
    np.testing.assert_allclose(dots(top)[BLUE], [[0.8], [0.8]], atol=1e-9)


def test_a_figure_is_the_same_twice_and_leaves_pyplot_alone():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    files = []
    for _ in range(2):
        file = io.BytesIO()
        reliability_figure({"model": evaluation(500, 2.0)}).savefig(file, format="png", dpi=40)
        files.append(file.getvalue())
    assert files[0] == files[1]
    assert plt.get_fignums() == before


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    "sharpness",
    [2.0, 1.0],  # of a calibrated model no dot is outside
)
def test_diagrams_fill_the_figure(count, sharpness):
    of = evaluation(500, sharpness)
    figure = reliability_figure({f"{i}": of for i in range(count)})
    figure.draw_without_rendering()
    lines = -(-count // 4)
    for top, strip in diagrams(figure):
        assert top.get_position().height > 0.5 / lines
        assert strip.get_position().height > 0.1 / lines
        assert top.get_position().width > 0.75 / min(count, 4)


def test_every_strip_has_its_tick_labels():
    figure = reliability_figure({f"{i}": evaluation(500, 2.0) for i in range(5)})
    for _, strip in diagrams(figure):
        assert [label.get_text() for label in strip.get_xticklabels() if label.get_visible()] == ["0.0", "0.5", "1.0"]


def test_confidences_of_0_and_1():
    logits = torch.tensor([[300.0, -300.0]]).repeat(40, 1)
    of = metrics.evaluate(logits, (torch.arange(40) < 4).long(), inference=True)
    figure = reliability_figure({"sure": of})
    [(top, strip)] = diagrams(figure)
    assert_drawn(top, strip, of)
    np.testing.assert_array_equal(dots(top)[VERMILION], [[1.0], [0.9]])
    png(figure)


def test_torchmetrics_bins_are_drawn_with_the_one_of_confidence_1():
    probs = torch.tensor([[1.0, 0.0], [0.6, 0.4]]).repeat(50, 1)
    of = metrics.evaluate(probs, torch.zeros(100, dtype=torch.long), input="probs", convention="torchmetrics")
    figure = reliability_figure({"": of})
    [(top, strip)] = diagrams(figure)
    assert_drawn(top, strip, of)
    png(figure)
