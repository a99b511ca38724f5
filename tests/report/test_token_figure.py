"""The figure of next-token calibration shows the numbers of the evaluation."""

import pytest
import torch
from matplotlib.figure import Figure

from dualfocal.metrics import TokenConfidences, TokenEvaluation
from dualfocal.plots import token_figure, token_groups_diagram


@pytest.fixture(scope="module")
def result() -> TokenEvaluation:
    """Tokens whose confidence is right for the first token and too high for the second."""
    generator = torch.Generator().manual_seed(0)
    state = TokenConfidences([5, 500])
    confidence = torch.rand(3000, generator=generator) * 0.5 + 0.25
    predicted = torch.randint(2, (3000,), generator=generator)
    right = torch.rand(3000, generator=generator) < confidence - 0.2 * predicted
    sequence, position = torch.arange(100).repeat_interleave(30), torch.arange(1, 31).repeat(100)
    state.update(confidence, right, sequence=sequence, position=position, predicted=predicted)
    return state.evaluate()


def test_points_are_the_errors_in_percent(result) -> None:
    axis = token_groups_diagram(result.by_frequency, ax=Figure().subplots())
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1-9", "100-999"]
    points = {float(x): float(y) for line in axis.lines for x, y in line.get_xydata() if line.get_marker() in "^v"}
    inference = [group.inference for group in result.by_frequency]
    clipped = [
        min(max(group.evaluation.debiased_ece, *group.inference.debiased_ece[:1]), group.inference.debiased_ece[1])
        for group in result.by_frequency
    ]
    assert points == pytest.approx({i: 100 * value for i, value in enumerate(clipped)})
    filled = {x for line in axis.lines if line.get_markerfacecolor() != "white" for x in line.get_xdata()}
    assert 1.0 in filled
    assert result.by_frequency[0].p_adjusted > 0.05
    assert 0.0 not in {
        x
        for line in axis.lines
        if line.get_marker() == "^" and line.get_markerfacecolor() != "white"
        for x in line.get_xdata()
    }
    assert axis.get_ylim()[1] >= 100 * max(entry.debiased_ece[1] for entry in inference)


def test_figure_has_a_column_for_each_kind_of_groups(result) -> None:
    figure = token_figure(result, title="test")
    assert [axis.get_xlabel() for axis in figure.axes if axis.get_xlabel()] == [
        "confidence",
        "count of the predicted token",
        "position in the sequence",
    ]
    assert "test: 3,000 tokens in 100 sequences" in figure.get_suptitle()
    from dataclasses import replace

    assert len(token_figure(replace(result, by_frequency=())).axes) == 4


def test_no_groups_is_an_error(result) -> None:
    with pytest.raises(ValueError, match="need token_counts"):
        token_groups_diagram([])
