"""The figure of phi shows the values that the theory computes."""

import io

import numpy as np
import pytest
import torch
from case_loops import for_each

from dualfocal_lab.plots.theory import phi_figure
from dualfocal_lab.theory import phi, regions


def points(axis, marker: str):
    return [tuple(map(float, line.get_xydata()[0])) for line in axis.lines if line.get_marker() == marker]


@for_each("gamma, c", [(1.0, 0.3), (5.0, 0.1), (0.5, 0.45), (2.0, 0.8), (1.0, 0.0)])
def test_figure_1(gamma, c) -> None:
    figure = phi_figure(gamma, c)
    (axis,) = figure.axes
    curves = {line.get_label(): line.get_xydata() for line in axis.lines}
    dual = curves[f"dual focal loss, $q_j = {c:g}$"]
    np.testing.assert_allclose(dual[:, 1], phi(torch.from_numpy(dual[:, 0].copy()), gamma, c))
    np.testing.assert_allclose(curves["focal loss"][:, 1], phi(torch.from_numpy(dual[:, 0].copy()), gamma))
    expected = regions(gamma, c)
    marked = points(axis, "o")
    positions = (expected.focal_v_m, expected.focal_v_prime, expected.v_m, expected.v_prime, expected.v_uc)
    assert [x for x, _ in marked] == pytest.approx(positions)
    heights = (1.0, (1 + c) ** gamma, 1.0)
    assert [y for _, y in (marked[1], *marked[3:])] == pytest.approx(heights, abs=1e-4)
    assert f"{expected.reduction:.3f}" in axis.get_title()
    assert min(axis.get_yticks()) >= 0
    grey = [patch.get_extents().intervalx for patch in axis.patches if patch.get_height() == 1]  # spans of full height
    expected_spans = [(0, c), (1 - c, 1)] if c < 0.5 else [(0, 1)]
    assert [tuple(axis.transData.inverted().transform([(x, 0) for x in span])[:, 0]) for span in grey] == [
        pytest.approx(span, abs=1e-9) for span in expected_spans
    ]
    figure.savefig(io.BytesIO(), format="svg")
