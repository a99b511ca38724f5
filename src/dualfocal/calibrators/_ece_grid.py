"""Temperature with the lowest ECE on a grid, as in the paper: exact, and about ten times as fast as a loop."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.calibrators._tiles import ShiftedLogits, exponent_floor
from dualfocal.metrics.cells import bin_index, equal_edges
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan

ONE = 1 << 32  # confidences are rounded to 1 / ONE: sums of whole numbers are exact, and so is a tie of two errors
GRID = 100  # temperatures 0.1, 0.2, ..., 10.0
BLOCK_CPU, BLOCK_DEVICE = 1 << 12, 1 << 17  # rows that are binned together at all temperatures
NEAR = 4e-6  # error bound of a confidence computed in float32
INTERPOLATE_FROM, NODES, INTERPOLATED = 26, 16, 6e-9  # from T = 2.6; number of nodes; error per exponential

FloatArray = NDArray[np.float64]


def search_grid(samples: Samples, num_bins: int) -> tuple[float, float, float]:
    """First minimum of the ECE over T = 0.1, 0.2, ..., 10.0, with the NLL before and after scaling by that T.

    Single-precision logits are first searched in float32. The effect of rounding on the ECE is bounded; if several
    temperatures remain possible minima within that bound, they are compared again in float64.
    """
    correct = torch.from_numpy(scan(samples).right).to(samples.values.device)
    wide = wide_dtype(samples.values)
    tenths = list(range(1, GRID + 1))
    most_rows = BLOCK_CPU if samples.values.is_cpu else BLOCK_DEVICE
    data = ShiftedLogits(samples, most_rows=most_rows)
    if data.dtype != wide:
        errors, doubt = _grid_errors(data, correct, tenths, num_bins, near=NEAR + INTERPOLATED * samples.num_classes)
        possible = errors - doubt <= (errors + doubt).min()
        tenths = [i for i, is_possible in zip(tenths, possible.tolist(), strict=True) if is_possible]
    if len(tenths) > 1:
        exact = data if data.dtype == wide else ShiftedLogits(samples, wide, most_rows=most_rows)
        errors, _ = _grid_errors(exact, correct, tenths, num_bins)
        tenths = [tenths[int(errors.argmin())]]  # the first one in case of ties
    temperature = tenths[0] / 10
    before, after = (-float(data.log_likelihood(beta).mean()) for beta in (1.0, 1 / temperature))
    return temperature, before, after


def _grid_errors(
    data: ShiftedLogits, correct: Tensor, tenths: list[int], num_bins: int, *, near: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """ECE at each T (in tenths), and its error bound if the confidences are wrong by up to ``near``.

    Dividing by T does not change the predicted class, so only the confidence 1 / sum exp(d / T) is needed. With
    ``near = 0`` the sums are exact; otherwise those at high T are interpolated if rows are long.
    """
    n, device = len(data), data.target_logit.device
    edges = equal_edges(num_bins)
    direct = [i for i in tenths if near == 0 or data.dim == 0 or i < INTERPOLATE_FROM]
    nodes, matrix = _interpolation(tenths[len(direct) :])
    block = data.step * max(1, BLOCK_CPU // data.step)
    totals = torch.empty(len(direct) + len(nodes), min(block, n), dtype=data.dtype, device=device)
    gaps = torch.zeros(len(tenths), num_bins, dtype=torch.int64, device=device)  # sums of confidence - correct
    close = torch.zeros(len(tenths), dtype=torch.int64, device=device)  # samples that may belong to the next bin
    for part, d in data.tiles():
        local = slice(part.start % block, part.start % block + part.stop - part.start)
        _sum_exponentials(data, d, direct, nodes, totals[:, local])
        if local.stop < block and part.stop < n:
            continue
        sums = totals[:, : local.stop].to(wide_dtype(totals))
        if len(nodes):
            sums = torch.cat([sums[: len(direct)], matrix.to(sums) @ sums[len(direct) :]])
        units = sums.reciprocal().mul_(ONE).round_()
        index = torch.from_numpy(bin_index((units.view(-1) / ONE).cpu().numpy(), edges)).to(device).view_as(units)
        index += num_bins * torch.arange(len(tenths), device=device)[:, None]
        if near > 0:
            place = units * (num_bins / ONE)
            edge = place.round().clamp_(1, num_bins - 1)  # there is no bin beyond the first and the last edge
            close += (place.sub_(edge).abs_() <= near * num_bins).sum(1)
        units -= ONE * correct[part.stop - local.stop : part.stop].to(units.dtype)
        sums = torch.zeros(gaps.numel(), dtype=units.dtype, device=device).index_add_(0, index.view(-1), units.view(-1))
        gaps += sums.view_as(gaps).long()
    errors = gaps.abs().sum(1).cpu().numpy() / (ONE * n)
    return errors, near + 2 * close.cpu().numpy() / n


def _sum_exponentials(data: ShiftedLogits, d: Tensor, direct: list[int], nodes: list[float], totals: Tensor) -> None:
    """Write sum exp(d / T) for T = direct / 10, then sum exp(beta d) for the nodes, to the rows of ``totals``.

    exp(d / T) is the square of exp(d / (2 T)), which saves half of the exponentials.
    """
    row = {i: r for r, i in enumerate(direct)}
    # Clamping avoids slow arithmetic on denormal numbers, here in exp and below in repeated squares.
    least = exponent_floor(data.dtype)
    d.clamp_(min=least * GRID / 10)
    for i in (i for i in direct if 2 * i not in row):
        weight = torch.mul(d, 10 / i, out=data.scratch(d)).exp_()
        torch.sum(weight, data.dim, out=totals[row[i]])
        first = i
        while i % 2 == 0 and i // 2 in row:
            weight = weight if i == first else weight.clamp_(min=math.exp(least))
            i //= 2
            torch.sum(weight.square_(), data.dim, out=totals[row[i]])
    for r, beta in enumerate(nodes, len(direct)):
        torch.sum(torch.mul(d, beta, out=data.scratch(d)).exp_(), data.dim, out=totals[r])


def _interpolation(tenths: list[int]) -> tuple[list[float], Tensor]:
    """Chebyshev nodes of beta = 1 / T, and the matrix from values at the nodes to values at each T (in tenths).

    The interpolation error of exp(beta d) is at most INTERPOLATED for every d <= 0: exp(beta d) with a
    larger |d| varies more, but is smaller.
    """
    if not tenths:
        return [], torch.empty(0, 0)
    low, high = 10 / GRID, 10 / INTERPOLATE_FROM
    angles = math.pi * (np.arange(NODES) + 0.5) / NODES
    target_angles = np.arccos(np.clip((2 * 10 / np.array(tenths) - low - high) / (high - low), -1, 1))
    orders = np.arange(1, NODES)
    matrix = (1 + 2 * np.cos(np.outer(target_angles, orders)) @ np.cos(np.outer(orders, angles))) / NODES
    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(angles)
    return nodes.tolist(), torch.from_numpy(matrix)
