"""linear_calibration: the numbers of the logits, which it does not keep."""

import pytest
import torch
from case_loops import for_each

from dualfocal import metrics as M


@for_each(
    "dtype, shape, bias", [(torch.float32, (40,), True), (torch.bfloat16, (40,), False), (torch.float32, (8, 5), True)]
)
def test_a_linear_head_has_the_numbers_of_its_logits(dtype, shape, bias, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*shape, 6, generator=generator).to(dtype)
    head = torch.nn.Linear(6, 30, bias=bias, dtype=dtype)
    target = torch.randint(30, shape, generator=generator)
    target.view(-1)[::5] = -100
    monkeypatch.setattr("dualfocal.metrics.linear.CHUNK_BYTES", 7 * 30 * dtype.itemsize)  # seven rows at a time
    got = M.linear_calibration(hidden, head.weight, target, head.bias, num_bins=10)
    logits = head(hidden).detach().double().view(-1, 30)
    expected = M.evaluate(logits, target.view(-1), num_bins=10)
    assert got.num_samples == expected.num_samples == 32
    for name in ("error", "nll", "brier", "ece"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name), abs=1e-6)
    assert got.bins.count.tolist() == expected.bins.count.tolist()


def test_a_linear_head_checks_its_arguments() -> None:
    hidden, weight, target = torch.randn(6, 4), torch.randn(3, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match=r"got \(6, 4\), \(3, 4\) and \(5,\)"):
        M.linear_calibration(hidden, weight, target[:5])
    with pytest.raises(IndexError, match="target 3 is out of range"):
        M.linear_calibration(hidden, weight, target + 1)
    with pytest.raises(ValueError, match="every target is ignore_index"):
        M.linear_calibration(hidden, weight, torch.full((6,), -100))
    with pytest.raises(ValueError, match=r"class indices, got 3 rows and torch\.float32"):
        M.linear_calibration(hidden, weight, target.float())
    hidden[4, 0] = torch.nan
    with pytest.raises(ValueError, match="row 4 holds NaN"):
        M.linear_calibration(hidden, weight, target)
