"""What the picture of phi shows is what the theory computes."""

import io

import numpy as np
import pytest
import torch

from dualfocal.plots.theory import phi_figure
from dualfocal.theory import phi, regions


def points(axis, marker: str):
    return [tuple(map(float, line.get_xydata()[0])) for line in axis.lines if line.get_marker() == marker]


@pytest.mark.parametrize(("gamma", "c"), [(1.0, 0.3), (5.0, 0.1), (0.5, 0.45), (2.0, 0.8), (1.0, 0.0)])
def test_figure_1(gamma, c) -> None:
    figure = phi_figure(gamma, c)
    (axis,) = figure.axes
    curves = {line.get_label(): line.get_xydata() for line in axis.lines}
    dual = curves[f"dual focal loss, $q_j = {c:g}$"]
    np.testing.assert_allclose(dual[:, 1], phi(torch.from_numpy(dual[:, 0].copy()), gamma, c))
    np.testing.assert_allclose(curves["focal loss"][:, 1], phi(torch.from_numpy(dual[:, 0].copy()), gamma))
    found = regions(gamma, c)
    marked = points(axis, "o")
    expected = (found.focal_v_m, found.focal_v_prime, found.v_m, found.v_prime, found.v_uc)
    assert [x for x, _ in marked] == pytest.approx(expected)
    heights = (1.0, (1 + c) ** gamma, 1.0)
    assert [y for _, y in (marked[1], *marked[3:])] == pytest.approx(heights, abs=1e-4)
    assert f"{found.reduction:.3f}" in axis.get_title()
    assert min(axis.get_yticks()) >= 0
    grey = [of.get_extents().intervalx for of in axis.patches if of.get_height() == 1]  # spans, of the axis's height
    wanted = [(0, c), (1 - c, 1)] if c < 0.5 else [(0, 1)]
    assert [tuple(axis.transData.inverted().transform([(x, 0) for x in of])[:, 0]) for of in grey] == [
        pytest.approx(of, abs=1e-9) for of in wanted
    ]
    figure.savefig(io.BytesIO(), format="svg")
