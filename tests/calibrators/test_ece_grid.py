"""Single precision and interpolation in the grid search stay within their error bounds."""

import numpy as np
import pytest
import torch
from case_loops import for_each

from dualfocal import metrics
from dualfocal.calibrators import TemperatureScaling
from dualfocal.calibrators import _ece_grid as G
from dualfocal.calibrators._tiles import ShiftedLogits
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan


def test_an_exponential_is_interpolated_whatever_its_exponent() -> None:
    tenths = list(range(G.INTERPOLATE_FROM, G.GRID + 1))
    nodes, matrix = G._interpolation(tenths)
    d = -np.concatenate([np.linspace(0, 500, 20_001), np.logspace(-6, 8, 200)])
    error = np.abs(matrix.numpy() @ np.exp(np.outer(nodes, d)) - np.exp(np.outer(10 / np.array(tenths), d)))
    assert error.max() < G.INTERPOLATED
    assert error.max() > G.INTERPOLATED / 10  # the bound is not too loose


@for_each(spread=[0.3, 4.0, 30.0], num_classes=[3, 64, 400])
def test_the_float32_search_stays_within_its_error_bound(num_classes, spread) -> None:
    logits = spread * torch.randn(1500, num_classes)
    rows = as_rows(logits, torch.randint(num_classes, (1500,)), input="logits")
    right, tenths = scan(rows).right, list(range(1, G.GRID + 1))
    near = G.NEAR + G.INTERPOLATED * num_classes
    first, doubt = G._grid_errors(ShiftedLogits(rows), right, tenths, 15, near=near)
    exact, none = G._grid_errors(ShiftedLogits(rows, torch.float64), right, tenths, 15)
    assert none.max() == 0
    assert (np.abs(first - exact) <= doubt).all()
    assert doubt.mean() < 0.01  # otherwise nearly all temperatures would be recomputed
    for i in (1, 7, 26, 100):
        assert exact[i - 1] == pytest.approx(metrics.ece(logits.double() / (i / 10), rows.target), abs=1e-9)


def test_an_ambiguous_minimum_is_decided_in_double_precision(monkeypatch) -> None:
    logits = 4 * torch.randn(2000, 70)
    target = torch.multinomial((logits / 2).softmax(1), 1)[:, 0]
    best = TemperatureScaling("ece").fit(logits, target).temperature.item()
    plain = G._grid_errors

    def blurred(data, correct, tenths, num_bins, *, near=0.0):
        errors, doubt = plain(data, correct, tenths, num_bins, near=near)
        return (errors + 0.01 * np.cos(7 * np.arange(len(errors))), doubt + 0.01) if near else (errors, doubt)

    monkeypatch.setattr(G, "_grid_errors", blurred)
    assert TemperatureScaling("ece").fit(logits, target).temperature.item() == best
