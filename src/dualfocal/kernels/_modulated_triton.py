"""Triton kernels of ``modulated``: the loss of each row of a matrix (M, C), and the gradient of the logits.

Arithmetic is float32. Equations and names are those of :mod:`dualfocal.losses._closed_form`. ``ref`` is the number that
is subtracted from all logits of a row before they are exponentiated; ``rest`` is the sum of the exponentials without
the target.
"""

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from dualfocal.kernels._arithmetic_triton import exp, log1p

TINY = tl.constexpr(1.1754943508222875e-38)
NLL_LIMIT = tl.constexpr(1e30)
TOO_LARGE = tl.constexpr(1e15)  # a sum of exponentials above this is computed again
TOO_SMALL = tl.constexpr(1e-20)  # an exponential below this is not divided by
WEIGHTS_AT_A_TIME = tl.constexpr(1024)

# How gamma is given.
NUMBER = tl.constexpr(0)
SCALAR = tl.constexpr(1)  # a tensor with one value
PER_ROW = tl.constexpr(2)
BINS_OF_P = tl.constexpr(3)  # one value per bin of p_t
BINS_OF_MARGIN = tl.constexpr(4)  # one value per bin of p_t - p_j


@triton.jit  # type: ignore[untyped-decorator]
def _gamma(gamma, gamma_ptr, edges_ptr, num_edges, rows, inside, p_t, p_j, GAMMA: tl.constexpr):  # type: ignore[no-untyped-def]
    """Signed gamma of each row."""
    if GAMMA == NUMBER:
        g = tl.zeros_like(p_t) + gamma
    elif GAMMA == SCALAR:
        g = tl.zeros_like(p_t) + tl.load(gamma_ptr).to(tl.float32)
    elif GAMMA == PER_ROW:
        g = tl.load(gamma_ptr + rows, mask=inside, other=0.0).to(tl.float32)
    else:
        score = p_t - p_j if GAMMA == BINS_OF_MARGIN else p_t
        which = tl.zeros_like(p_t).to(tl.int32)
        for i in range(num_edges):
            which += (score >= tl.load(edges_ptr + i).to(tl.float32)).to(tl.int32)
        g = tl.load(gamma_ptr + which, mask=inside, other=0.0).to(tl.float32)
    return g


@triton.jit
def _row_terms(z_t, z_j, ref, rest):  # type: ignore[no-untyped-def]
    """Total of the exponentials, p_t, 1 - p_t, p_j and -log p_t."""
    e_t = exp(z_t, ref)
    total = rest + e_t
    p_j = tl.where(z_j == float("-inf"), 0.0, exp(z_j, ref) / total)
    divisor = tl.where(e_t < TOO_SMALL, 1.0, e_t)
    nll = tl.where(e_t < TOO_SMALL, tl.log(total) + (ref - z_t), log1p(rest / divisor))
    return total, e_t / total, rest / total, p_j, nll


@triton.jit
def _loss_and_gradient(g, total, p_t, q, p_j, nll):  # type: ignore[no-untyped-def]
    """Loss, and its gradient: a factor of exp(z - ref), and the values at j and at t."""
    base = tl.where(g < 0.0, 1.0 + p_t - p_j, q + p_j) + TINY
    factor = tl.exp2(tl.abs(g) * tl.log2(base))
    a = g * factor * (tl.minimum(nll, NLL_LIMIT) / base)
    c = a * (p_t - p_j) + factor
    return factor * nll, c / total, (c + a) * p_j, -(c * q + a * p_j)


@triton.jit
def _target(target_ptr, weight_ptr, rows, inside, ignore_index, C):  # type: ignore[no-untyped-def]
    """Class of each row, its weight (0 for an ignored row), and whether it is a class at all."""
    target = tl.load(target_ptr + rows, mask=inside, other=0).to(tl.int64)
    kept = inside & (target != ignore_index)
    valid = kept & (target >= 0) & (target < C)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + target, mask=valid, other=1.0).to(tl.float32)
    else:
        weight = tl.zeros_like(target).to(tl.float32) + 1.0
    return target, tl.where(kept, weight, 0.0), valid


@triton.jit  # type: ignore[untyped-decorator]
def _sum_weights(target_ptr, weight_ptr, start, stop, step, ignore_index, M, C, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum of the weights of all rows, or of blocks of them."""
    total = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(start, stop, step):
        rows = first + tl.arange(0, BLOCK)
        total += _target(target_ptr, weight_ptr, rows, rows < M, ignore_index, C)[1]
    return tl.sum(total, 0)


@triton.jit  # type: ignore[untyped-decorator]
def total_weight_kernel(target_ptr, weight_ptr, partial_ptr, ignore_index, M, C, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum of the weights of all rows, one partial sum per program."""
    program, step = tl.program_id(0), tl.num_programs(0) * BLOCK
    total = _sum_weights(target_ptr, weight_ptr, program * BLOCK, M, step, ignore_index, M, C, BLOCK)
    tl.store(partial_ptr + program, total)


@triton.jit
def _one_over(total):  # type: ignore[no-untyped-def]
    """1 / total, or 0: the mean over nothing is 0."""
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@triton.jit  # type: ignore[untyped-decorator]
def _mean_factor(partial_ptr, num_partials, target_ptr, weight_ptr, ignore_index, M, C, PARTIALS: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 over the sum of the weights of all rows."""
    if partial_ptr is not None:
        which = tl.arange(0, PARTIALS)
        total = tl.sum(tl.load(partial_ptr + which, mask=which < num_partials, other=0.0), 0)
    else:
        total = _sum_weights(target_ptr, weight_ptr, 0, M, WEIGHTS_AT_A_TIME, ignore_index, M, C, WEIGHTS_AT_A_TIME)
    return _one_over(total)


@triton.jit  # type: ignore[untyped-decorator]
def tile_kernel(  # type: ignore[no-untyped-def]
    z_ptr,
    target_ptr,
    weight_ptr,  # None: all 1
    gamma_ptr,  # None: GAMMA is NUMBER
    edges_ptr,  # None: no bins
    partial_ptr,  # sums of weights to divide by; None: no mean, or every program sums the weights itself
    upstream_ptr,  # factor of the gradient of each row; None: 1
    loss_ptr,  # (M,), or one number if ALONE; None: not wanted
    grad_ptr,  # (M, C); None: not wanted
    M,
    class_groups,  # number of classes over VECTOR
    stride_groups,  # row stride over VECTOR
    gamma,
    num_edges,
    num_partials,
    ignore_index,
    GAMMA: tl.constexpr,
    DUAL: tl.constexpr,  # whether there is a rival
    MEAN: tl.constexpr,
    PARTIALS: tl.constexpr,
    ALONE: tl.constexpr,  # one program has all rows, and sums the losses
    VECTOR: tl.constexpr,  # divisor of classes and row stride: lets the compiler load and store so many at once
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Losses and gradients of whole rows that fit into the registers of a program."""
    C = class_groups * VECTOR
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_C)
    inside = rows < M
    target, weight, valid = _target(target_ptr, weight_ptr, rows, inside, ignore_index, C)
    start = rows * stride_groups * VECTOR
    mask = inside[:, None] & (cols < C)[None, :]
    z = tl.load(z_ptr + start[:, None] + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    z_t = tl.load(z_ptr + start + target, mask=valid, other=float("nan")).to(tl.float32)
    top = tl.max(z, 1)
    is_target = cols[None, :] == target[:, None]
    e = exp(z, top[:, None])
    rest = tl.sum(tl.where(is_target, 0.0, e), 1)
    z_j = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    j = tl.full((BLOCK_M,), BLOCK_C, tl.int32)
    if DUAL:
        below = tl.where(z < z_t[:, None], z, float("-inf"))
        z_j = tl.max(below, 1)
        is_rival = (below == z_j[:, None]) & (z_j != float("-inf"))[:, None]
        j = tl.min(tl.where(is_rival, cols[None, :], BLOCK_C), 1)
    total, p_t, q, p_j, nll = _row_terms(z_t, z_j, top, rest)
    g = _gamma(gamma, gamma_ptr, edges_ptr, num_edges, rows, inside, p_t, p_j, GAMMA)
    loss, scale, at_j, at_t = _loss_and_gradient(g, total, p_t, q, p_j, nll)
    counted = weight != 0.0  # others contribute 0, even if their loss is infinite
    if MEAN:
        weight *= _mean_factor(partial_ptr, num_partials, target_ptr, weight_ptr, ignore_index, M, C, PARTIALS)
    if loss_ptr is not None:
        loss = tl.where(counted, loss * weight, 0.0)
        if ALONE:
            tl.store(loss_ptr, tl.sum(loss, 0))
        else:
            tl.store(loss_ptr + rows, loss, mask=inside)
    if grad_ptr is not None:
        if upstream_ptr is not None:
            weight *= tl.load(upstream_ptr + rows, mask=inside, other=0.0).to(tl.float32)
        grad = e * (scale * weight)[:, None]
        if DUAL:
            grad = tl.where(cols[None, :] == j[:, None], (at_j * weight)[:, None], grad)
        grad = tl.where(is_target, (at_t * weight)[:, None], grad)
        grad = tl.where(counted[:, None], grad, 0.0).to(grad_ptr.dtype.element_ty)
        tl.store(grad_ptr + rows[:, None] * C + cols[None, :], grad, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _largest(z_ptr, C, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in tl.range(0, C, BLOCK):
        top = tl.maximum(top, _load(z_ptr, first, C, False, "", BLOCK).to(tl.float32))
    return tl.max(top, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _load(z_ptr, first, end, WHOLE: tl.constexpr, POLICY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    cols = tl.arange(0, BLOCK)
    if WHOLE:
        z = tl.load(z_ptr + first + cols, eviction_policy=POLICY)
    else:
        z = tl.load(z_ptr + first + cols, mask=cols < end - first, other=float("-inf"), eviction_policy=POLICY)
    return z


@triton.jit  # type: ignore[untyped-decorator]
def _add_block(z, first, z_t, ref, rest, z_j, first_j, DUAL: tl.constexpr):  # type: ignore[no-untyped-def]
    z = z.to(tl.float32)
    rest += exp(z, ref)
    if DUAL:
        nearer = (z < z_t) & (z > z_j)
        z_j = tl.where(nearer, z, z_j)
        first_j = tl.where(nearer, first, first_j)
    return rest, z_j, first_j


@triton.jit  # type: ignore[untyped-decorator]
def _load_four(z_ptr, first, end, WHOLE: tl.constexpr, POLICY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Four blocks: all loads are issued before the first is waited for, which hides their latency."""
    a = _load(z_ptr, first, end, WHOLE, POLICY, BLOCK)
    b = _load(z_ptr, first + BLOCK, end, WHOLE, POLICY, BLOCK)
    c = _load(z_ptr, first + 2 * BLOCK, end, WHOLE, POLICY, BLOCK)
    d = _load(z_ptr, first + 3 * BLOCK, end, WHOLE, POLICY, BLOCK)
    return a, b, c, d


@triton.jit  # type: ignore[untyped-decorator]
def _add_four(a, b, c, d, first, z_t, ref, rest, z_j, first_j, DUAL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    rest, z_j, first_j = _add_block(a, first, z_t, ref, rest, z_j, first_j, DUAL)
    rest, z_j, first_j = _add_block(b, first + BLOCK, z_t, ref, rest, z_j, first_j, DUAL)
    rest, z_j, first_j = _add_block(c, first + 2 * BLOCK, z_t, ref, rest, z_j, first_j, DUAL)
    return _add_block(d, first + 3 * BLOCK, z_t, ref, rest, z_j, first_j, DUAL)


@triton.jit
def _merge(rest_a, z_a, j_a, rest_b, z_b, j_b):  # type: ignore[no-untyped-def]
    a_is_rival = (z_a > z_b) | ((z_a == z_b) & (j_a < j_b))
    return rest_a + rest_b, tl.where(a_is_rival, z_a, z_b), tl.where(a_is_rival, j_a, j_b)


@triton.jit  # type: ignore[untyped-decorator]
def _first_sweep(  # type: ignore[no-untyped-def]
    z_ptr, last, t, z_t, ref, C, DUAL: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """Sum of the exponentials of a row without the target; the rival's logit and its index, C if there is none.

    Column i of the results belongs to the classes i, i + BLOCK, i + 2 BLOCK, ... That of the target is summed once more
    without it, so that no loop has to look for it. The last blocks, from class ``last`` on, are returned, too.
    """
    cols, column = tl.arange(0, BLOCK), t % BLOCK
    others = tl.arange(0, BLOCKS) * BLOCK + column
    z_column = tl.load(z_ptr + others, mask=(others < C) & (others != t), other=float("-inf")).to(tl.float32)
    rest = tl.zeros((BLOCK,), tl.float32)
    z_j = tl.full((BLOCK,), float("-inf"), tl.float32)
    first_j = tl.zeros((BLOCK,), tl.int32) + C
    for first in tl.range(0, last, 4 * BLOCK):
        e, f, g, h = _load_four(z_ptr, first, C, True, "evict_last", BLOCK)
        rest, z_j, first_j = _add_four(e, f, g, h, first, z_t, ref, rest, z_j, first_j, DUAL, BLOCK)
    a, b, c, d = _load_four(z_ptr, last, C, False, "evict_first", BLOCK)
    rest, z_j, first_j = _add_four(a, b, c, d, last, z_t, ref, rest, z_j, first_j, DUAL, BLOCK)
    rest = tl.where(cols == column, 0.0, rest)
    j = tl.where(z_j == float("-inf"), C, first_j + cols)
    rest, z_j, j = tl.reduce((rest, z_j, j), 0, _merge)
    return rest + tl.sum(exp(z_column, ref), 0), z_j, j, a, b, c, d


@triton.jit  # type: ignore[untyped-decorator]
def _write_block(out_ptr, z, first, ref, scale, C, WHOLE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    cols = tl.arange(0, BLOCK)
    grad = (exp(z.to(tl.float32), ref) * scale).to(out_ptr.dtype.element_ty)
    if WHOLE:
        tl.store(out_ptr + first + cols, grad, cache_modifier=".cs")
    else:
        tl.store(out_ptr + first + cols, grad, mask=cols < C - first, cache_modifier=".cs")


@triton.jit  # type: ignore[untyped-decorator]
def _write_four(out_ptr, a, b, c, d, first, ref, scale, C, WHOLE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    _write_block(out_ptr, d, first + 3 * BLOCK, ref, scale, C, WHOLE, BLOCK)
    _write_block(out_ptr, c, first + 2 * BLOCK, ref, scale, C, WHOLE, BLOCK)
    _write_block(out_ptr, b, first + BLOCK, ref, scale, C, WHOLE, BLOCK)
    _write_block(out_ptr, a, first, ref, scale, C, WHOLE, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _second_sweep(z_ptr, a, b, c, d, last, out_ptr, ref, scale, C, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write exp(z - ref) * scale, from the end of the row: what was read last is still in the L2 cache."""
    _write_four(out_ptr, a, b, c, d, last, ref, scale, C, False, BLOCK)
    for back in tl.range(0, last, 4 * BLOCK):
        first = last - 4 * BLOCK - back
        e, f, g, h = _load_four(z_ptr, first, C, True, "evict_first", BLOCK)
        _write_four(out_ptr, e, f, g, h, first, ref, scale, C, True, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def row_kernel(  # type: ignore[no-untyped-def]
    z_ptr,
    target_ptr,
    weight_ptr,
    gamma_ptr,
    edges_ptr,
    partial_ptr,
    upstream_ptr,
    loss_ptr,
    grad_ptr,
    M,
    C,
    row_stride,
    gamma,
    num_edges,
    num_partials,
    ignore_index,
    GAMMA: tl.constexpr,
    DUAL: tl.constexpr,
    MEAN: tl.constexpr,
    PARTIALS: tl.constexpr,
    BLOCK: tl.constexpr,  # classes read at a time
    BLOCKS: tl.constexpr,  # number of blocks of a row, or more
):
    """Like ``tile_kernel``, for one long row: a sweep for the loss, and one back for the gradient.

    The last blocks stay in registers, and the logits read last are still in the L2 cache when they are read again.
    """
    cols, row = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64)
    target, weight, valid = _target(target_ptr, weight_ptr, row, row < M, ignore_index, C)
    row_ptr = z_ptr + row * row_stride
    out_ptr = grad_ptr
    if grad_ptr is not None:
        out_ptr = grad_ptr + row * C
    if weight != 0.0:
        # Both factors are loaded while the row is read.
        loss_weight = weight
        if MEAN:
            loss_weight *= _mean_factor(partial_ptr, num_partials, target_ptr, weight_ptr, ignore_index, M, C, PARTIALS)
        grad_weight = loss_weight
        if upstream_ptr is not None:
            grad_weight *= tl.load(upstream_ptr + row).to(tl.float32)
        last = (C - 1) // (4 * BLOCK) * (4 * BLOCK)
        z_t = tl.load(row_ptr + target, mask=valid, other=float("nan")).to(tl.float32)
        t = tl.where(valid, target, 0).to(tl.int32)
        ref = z_t  # mostly near the largest logit; it also keeps 1 - p_t exact
        rest, z_j, j, a, b, c, d = _first_sweep(row_ptr, last, t, z_t, ref, C, DUAL, BLOCK, BLOCKS)
        if (rest < TOO_LARGE) == 0:  # or NaN
            ref = _largest(row_ptr, C, BLOCK)
            rest, z_j, j, a, b, c, d = _first_sweep(row_ptr, last, t, z_t, ref, C, DUAL, BLOCK, BLOCKS)
        total, p_t, q, p_j, nll = _row_terms(z_t, z_j, ref, rest)
        g = _gamma(gamma, gamma_ptr, edges_ptr, num_edges, row, row < M, p_t, p_j, GAMMA)
        loss, scale, at_j, at_t = _loss_and_gradient(g, total, p_t, q, p_j, nll)
        if loss_ptr is not None:
            tl.store(loss_ptr + row, loss * loss_weight)
        if grad_ptr is not None:
            _second_sweep(row_ptr, a, b, c, d, last, out_ptr, ref, scale * grad_weight, C, BLOCK)
            tl.debug_barrier()  # the two exceptions are written last
            if DUAL:
                tl.store(out_ptr + j, (at_j * grad_weight).to(grad_ptr.dtype.element_ty), mask=j < C)
            tl.store(out_ptr + target, (at_t * grad_weight).to(grad_ptr.dtype.element_ty), mask=valid)
    else:
        if loss_ptr is not None:
            tl.store(loss_ptr + row, 0.0)
        if grad_ptr is not None:
            zero = tl.zeros((BLOCK,), grad_ptr.dtype.element_ty)
            for first in tl.range(0, C, BLOCK):
                tl.store(out_ptr + first + cols, zero, mask=first + cols < C)


@triton.jit  # type: ignore[untyped-decorator]
def scale_kernel(grad_ptr, factor_ptr, out_ptr, size, IN_PLACE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply by one number; if that is 1, nothing is read or written in place."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if not IN_PLACE or factor != 1.0:
        for tile in tl.range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            at = tile * BLOCK + tl.arange(0, BLOCK)  # 64 bits if size has
            grad = tl.load(grad_ptr + at, mask=at < size, other=0.0).to(tl.float32)
            tl.store(out_ptr + at, (grad * factor).to(out_ptr.dtype.element_ty), mask=at < size)
