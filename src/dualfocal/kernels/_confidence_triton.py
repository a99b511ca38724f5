"""Triton kernels of ``confidence``: what the metrics need from each row of logits, read once.

Every kernel computes, in float32, the largest logit ``top`` of a row, whether the target is the first class with that
logit, and sums of exp(z - top) and of its square over all *other* classes, ``rest`` and ``squares``. So 1 / (1 + rest)
is the confidence, and rows whose confidence rounds to 1 still differ in ``rest``. A row with NaN or without a finite
maximum is invalid: its ``rest`` is NaN, or its ``top`` is infinite.

The results are either stored by row, or added to bins. Bins hold sums of integers, which do not depend on the order of
the additions.
"""

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from dualfocal.kernels._arithmetic_triton import LOG2_E, exp, log1p

ONE = tl.constexpr(4294967296.0)  # a confidence of 1 in units of 2^-32
OVERFLOW = tl.constexpr(30.0)  # exp of twice this, times the largest number of classes, is far from overflow
LARGE = tl.constexpr(1e6)  # logits that are rounded by more than a small number when multiplied
BINS_AT_A_TIME = tl.constexpr(16)
BAD_LOGITS = tl.constexpr(1)
BAD_TARGET = tl.constexpr(2)
RUNTIME = ["M", "ignore_index", "num_bins"]  # no kernel of its own for batches of another size


@triton.jit
def _target(target_ptr, rows, inside, ignore_index, C):  # type: ignore[no-untyped-def]
    """Class of each row, whether the row counts, and whether its class exists."""
    target = tl.load(target_ptr + rows, mask=inside, other=0).to(tl.int64)
    kept = inside & (target != ignore_index)
    return target, kept, kept & (target >= 0) & (target < C)


@triton.jit
def _is_good(top, rest):  # type: ignore[no-untyped-def]
    return (rest == rest) & (tl.abs(top) < float("inf"))


@triton.jit
def _scores(top, z_t, rest, squares, right):  # type: ignore[no-untyped-def]
    """NLL and Brier term, both accurate near 0."""
    total = 1.0 + rest
    p_t = tl.exp2((z_t - top) * LOG2_E) / total
    other = (1.0 + squares) / (total * total) + (1.0 - 2.0 * p_t)
    return log1p(rest) + (top - z_t), tl.where(right, (rest * rest + squares) / (total * total), other)


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    rows, kept, top, z_t, rest, squares, right, confidence_ptr, right_ptr, numbers_ptr, M, SCORES: tl.constexpr
):
    """Store the results of rows; the numbers are uncertainty, NLL and Brier term, (M,) each."""
    total = tl.where(_is_good(top, rest), 1.0 + rest.to(tl.float64), float("nan"))
    units = tl.where(total == total, ONE / total + 0.5, 0.0).to(tl.int64)
    tl.store(confidence_ptr + rows, units, mask=kept)
    tl.store(right_ptr + rows, right, mask=kept)
    tl.store(numbers_ptr + rows, total, mask=kept)
    if SCORES:
        nll, brier = _scores(top, z_t, rest, squares, right)
        size = M.to(tl.int64)
        tl.store(numbers_ptr + size + rows, nll.to(tl.float64), mask=kept)
        tl.store(numbers_ptr + 2 * size + rows, brier.to(tl.float64), mask=kept)


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    kept, valid, top, z_t, rest, squares, right, bounds_ptr, count_ptr, sum_ptr, right_ptr, invalid_ptr, num_bins,
    SCORES: tl.constexpr,
):  # fmt: skip
    """Add rows to bins of the confidence, or of the Brier term if SCORES; bin b is (bounds[b], bounds[b + 1]]."""
    good = _is_good(top, rest)
    counted = valid & good
    if SCORES:
        value = ONE * _scores(top, z_t, rest, squares, right)[1].to(tl.float64)
    else:
        value = ONE / (1.0 + rest.to(tl.float64))
    units = tl.where(counted, value + 0.5, 0.0).to(tl.int64)
    for first in tl.range(0, num_bins, BINS_AT_A_TIME):
        bins = first + tl.arange(0, BINS_AT_A_TIME)
        some = bins < num_bins
        low = tl.load(bounds_ptr + bins, mask=some, other=0)
        high = tl.load(bounds_ptr + bins + 1, mask=some, other=0)
        here = (units[:, None] > low[None, :]) & (units[:, None] <= high[None, :]) & counted[:, None]
        count = tl.sum(here.to(tl.int32), 0)
        some = some & (count > 0)
        tl.atomic_add(count_ptr + bins, count.to(tl.int64), mask=some, sem="relaxed")
        tl.atomic_add(sum_ptr + bins, tl.sum(tl.where(here, units[:, None], 0), 0), mask=some, sem="relaxed")
        if right_ptr is not None:
            hits = tl.sum((here & right[:, None]).to(tl.int32), 0)
            tl.atomic_add(right_ptr + bins, hits.to(tl.int64), mask=some & (hits > 0), sem="relaxed")
    problem = tl.where(kept & ~valid, BAD_TARGET, tl.where(kept & ~good, BAD_LOGITS, 0))
    worst = tl.max(problem, 0)
    tl.atomic_max(invalid_ptr, worst.to(tl.int64), mask=worst > 0, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _emit(  # type: ignore[no-untyped-def]
    rows, kept, valid, top, z_t, rest, squares, right,
    confidence_ptr, right_ptr, numbers_ptr, bounds_ptr, count_ptr, sum_ptr, invalid_ptr, M, num_bins,
    SCORES: tl.constexpr,
):  # fmt: skip
    """Store the results of rows, or add them to bins."""
    if bounds_ptr is None:
        _store(rows, kept, top, z_t, rest, squares, right, confidence_ptr, right_ptr, numbers_ptr, M, SCORES)
    else:
        _add(
            kept, valid, top, z_t, rest, squares, right,
            bounds_ptr, count_ptr, sum_ptr, right_ptr, invalid_ptr, num_bins, SCORES,
        )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME)  # type: ignore[untyped-decorator]
def few_kernel(  # type: ignore[no-untyped-def]
    z_ptr,
    target_ptr,
    confidence_ptr,  # (M,) each; None: results are added to bins
    right_ptr,  # (M,), or one per bin; None: not wanted
    numbers_ptr,
    bounds_ptr,  # None: results are stored by row
    count_ptr,
    sum_ptr,
    invalid_ptr,
    M,
    row_stride,
    ignore_index,
    num_bins,
    SCORES: tl.constexpr,
    C: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Rows of few classes: one thread per row, class after class."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    target, kept, valid = _target(target_ptr, rows, rows < M, ignore_index, C)
    row_ptr = z_ptr + rows * row_stride
    z_t = tl.load(row_ptr + target, mask=valid, other=0.0).to(tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    argmax = tl.zeros((BLOCK_M,), tl.int32)
    rest = tl.zeros((BLOCK_M,), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    for k in tl.static_range(C):
        z = tl.load(row_ptr + k, mask=kept, other=0.0).to(tl.float32)
        above = z > top
        # One exponential either of z - top, or to rescale the sums, which the old maximum joins, to a new maximum.
        e = tl.where(z == float("-inf"), 0.0, tl.exp2(-tl.abs(z - top) * LOG2_E))
        rest = tl.where(above, (rest + 1.0) * e, rest + e)
        if SCORES:
            squares = tl.where(above, (squares + 1.0) * e * e, squares + e * e)
        argmax = tl.where(above, k, argmax)
        top = tl.where(above, z, top)
    _emit(
        rows, kept, valid, top, z_t, rest, squares, argmax == target,
        confidence_ptr, right_ptr, numbers_ptr, bounds_ptr, count_ptr, sum_ptr, invalid_ptr, M, num_bins, SCORES,
    )  # fmt: skip


@triton.jit(do_not_specialize=RUNTIME)  # type: ignore[untyped-decorator]
def tile_kernel(  # type: ignore[no-untyped-def]
    z_ptr,
    target_ptr,
    confidence_ptr,
    right_ptr,
    numbers_ptr,
    bounds_ptr,
    count_ptr,
    sum_ptr,
    invalid_ptr,
    M,
    class_groups,  # number of classes over VECTOR
    stride_groups,  # row stride over VECTOR
    ignore_index,
    num_bins,
    SCORES: tl.constexpr,
    VECTOR: tl.constexpr,  # divisor of classes and row stride: lets the compiler load so many logits at once
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Rows that fit into the registers of a program."""
    C = class_groups * VECTOR
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_C)
    target, kept, valid = _target(target_ptr, rows, rows < M, ignore_index, C)
    start = rows * stride_groups * VECTOR
    mask = kept[:, None] & (cols < C)[None, :]
    z = tl.load(z_ptr + start[:, None] + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    z_t = tl.load(z_ptr + start + target, mask=valid, other=0.0).to(tl.float32)
    top = tl.max(z, 1)
    argmax = tl.min(tl.where(z == top[:, None], cols[None, :], BLOCK_C), 1)
    e = tl.where(cols[None, :] == argmax[:, None], 0.0, tl.exp2((z - top[:, None]) * LOG2_E))
    rest = tl.sum(e, 1)
    squares = rest
    if SCORES:
        squares = tl.sum(e * e, 1)
    _emit(
        rows, kept, valid, top, z_t, rest, squares, argmax == target,
        confidence_ptr, right_ptr, numbers_ptr, bounds_ptr, count_ptr, sum_ptr, invalid_ptr, M, num_bins, SCORES,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _sweep(  # type: ignore[no-untyped-def]
    row_ptr, start, stop, ref, top, total, squares, SCORES: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Add whole blocks of a row to the maxima and sums, of which each thread keeps its own."""
    cols = tl.arange(0, BLOCK)
    for first in tl.range(start, stop, BLOCK, num_stages=STAGES):
        z = tl.load(row_ptr + first + cols).to(tl.float32)
        e = exp(z, ref)
        top = tl.maximum(top, z)
        total += e
        if SCORES:
            squares += e * e
    return top, total, squares


@triton.jit  # type: ignore[untyped-decorator]
def _sums(row_ptr, C, top, SCORES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of a whole row again, with the true maximum."""
    cols = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(0, C, BLOCK):
        z = tl.load(row_ptr + first + cols, mask=first + cols < C, other=float("-inf")).to(tl.float32)
        e = tl.exp2((z - top) * LOG2_E)
        total += e
        if SCORES:
            squares += e * e
    return total, squares


@triton.jit
def _without(sums, is_top, term):  # type: ignore[no-untyped-def]
    """Sum of what all threads have, less one term that one of them has, relative to that term."""
    rest = tl.sum(tl.where(is_top, sums - term, sums), 0) / term
    return tl.where(rest < 0.0, 0.0, rest)


@triton.jit(do_not_specialize=RUNTIME)  # type: ignore[untyped-decorator]
def row_kernel(  # type: ignore[no-untyped-def]
    z_ptr,
    target_ptr,
    confidence_ptr,
    right_ptr,
    numbers_ptr,
    bounds_ptr,
    count_ptr,
    sum_ptr,
    invalid_ptr,
    M,
    C,
    row_stride,
    ignore_index,
    num_bins,
    SCORES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,  # blocks in flight
):
    """One long row: a program reads it block by block.

    The maximum of the first block is subtracted from all logits. If a later one is far larger, or if the maximum is
    huge, the sums are computed again. The sweep pauses at the block of the target, to see whether an earlier class has
    the same logit.
    """
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    target, kept, valid = _target(target_ptr, row, row < M, ignore_index, C)
    if kept:
        row_ptr = z_ptr + row * row_stride
        known = tl.where(valid, target, 0).to(tl.int32)
        z_t = tl.load(row_ptr + known).to(tl.float32)
        tops = tl.load(row_ptr + cols, mask=cols < C, other=float("-inf")).to(tl.float32)
        ref = tl.max(tops, 0)
        total = exp(tops, ref)
        squares = total * total

        whole = C // BLOCK * BLOCK
        pause = tl.minimum(tl.maximum(known // BLOCK * BLOCK, BLOCK), whole)
        tops, total, squares = _sweep(row_ptr, BLOCK, pause, ref, tops, total, squares, SCORES, BLOCK, STAGES)
        at = known // BLOCK * BLOCK + cols
        near = tl.load(row_ptr + at, mask=at < C, other=float("-inf")).to(tl.float32)
        near = tl.where(at < known, near, float("-inf"))
        before = tl.max(tl.where(known < BLOCK, near, tl.maximum(near, tops)), 0)
        tops, total, squares = _sweep(row_ptr, pause, whole, ref, tops, total, squares, SCORES, BLOCK, STAGES)
        if (whole < C) & (whole > 0):
            z = tl.load(row_ptr + whole + cols, mask=whole + cols < C, other=float("-inf")).to(tl.float32)
            e = exp(z, ref)
            tops = tl.maximum(tops, z)
            total += e
            squares += e * e

        top = tl.max(tops, 0)
        term = exp(top, ref)
        if (top - ref > OVERFLOW) | (tl.abs(ref) > LARGE):
            total, squares = _sums(row_ptr, C, top, SCORES, BLOCK)
            term = tl.full((), 1.0, tl.float32)
        is_top = cols == tl.min(tl.where(tops == top, cols, BLOCK), 0)
        zero = tl.zeros((1,), tl.float32)  # makes a vector of a number
        rest = _without(total, is_top, term) + zero
        more = _without(squares, is_top, term * term) + zero if SCORES else zero
        right = valid & (z_t == top) & (before < top)
        yes = zero == 0.0
        _emit(
            row + tl.zeros((1,), tl.int64), yes, valid & yes, top + zero, z_t + zero, rest, more, right & yes,
            confidence_ptr, right_ptr, numbers_ptr, bounds_ptr, count_ptr, sum_ptr, invalid_ptr, M, num_bins, SCORES,
        )  # fmt: skip
