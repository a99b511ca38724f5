"""What the three pictures show is what the theory computes."""

import io

import numpy as np
import pytest
import torch

from dualfocal.losses import dual_focal_loss
from dualfocal.plots.theory import (
    jump_figure,
    minimiser_curves,
    minimiser_figure,
    phi_figure,
    target_loss,
)
from dualfocal.theory import dual_focal_minimiser, phi, regions


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


def test_minimiser_curves_are_of_exact_minimisers() -> None:
    posterior, confidence = minimiser_curves("dual_focal", [2.0], points=40)
    e, q = float(posterior[20]), float(confidence[2.0][20])
    assert q == pytest.approx(max(dual_focal_minimiser([e, 0.6 * (1 - e), 0.4 * (1 - e)], 2.0).q))
    assert np.isnan(confidence[2.0]).sum() == 1  # one change of order, at a posterior near 0.4
    assert posterior[np.isnan(confidence[2.0])] == pytest.approx(0.41, abs=0.03)
    posterior, confidence = minimiser_curves("focal", [2.0], points=10)
    assert bool((confidence[2.0] < posterior).all())


def test_minimiser_figure() -> None:
    figure = minimiser_figure()
    left, right = figure.axes
    assert [axis.get_title() for axis in (left, right)] == ["focal loss", "dual focal loss"]
    styles = [line.get_linestyle() for line in right.lines[1:]]
    assert len(set(styles)) == len(styles) == 3  # they read in grey
    figure.savefig(io.BytesIO(), format="svg")


def test_jumps() -> None:
    figure = jump_figure()
    (axis,) = figure.axes
    ends = points(axis, "o")
    assert [x for x, _ in ends] == pytest.approx([0.3 / 1.3, 0.3 / 1.3, 0.7 / 1.7, 0.7 / 1.7])
    # At the tie itself the class beside is no rival: the filled dot, the lower end.
    at = 0.7 / 1.7
    expected = -np.log(at) * (1 - at + 0.3 * (1 - at)) ** 5, -np.log(at)
    assert [y for _, y in ends[2:]] == pytest.approx(expected, rel=1e-6)
    assert "0.232 to 0.887" in " ".join(text.get_text() for text in axis.texts)
    figure.savefig(io.BytesIO(), format="svg")


def test_the_jump_of_two_classes() -> None:
    low, high = target_loss("dual_focal", np.array([0.499, 0.501]), np.ones(1), 5.0)
    assert (low, high) == pytest.approx((0.022, 0.684), abs=5e-4)


def test_target_loss_is_the_loss() -> None:
    p_k, rivals = np.array([0.1, 0.25, 0.5, 0.9]), np.array([0.3, 0.7])
    p = torch.from_numpy(np.concatenate([p_k[:, None], (1 - p_k[:, None]) * rivals], 1))
    expected = dual_focal_loss(p.log(), torch.zeros(4, dtype=torch.long), 3.0, reduction="none")
    np.testing.assert_allclose(target_loss("dual_focal", p_k, rivals, 3.0), expected)
