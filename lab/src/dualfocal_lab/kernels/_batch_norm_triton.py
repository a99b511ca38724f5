"""Triton kernels of ``batch_norm``: two reduce over the rows of a matrix (M, C), two map its elements.

A reduction writes one partial result per split of the rows, and a small kernel merges them in a fixed order, so that
the results are reproducible bit by bit. Two alternatives were slower on an H200: merging in the last program to finish
(by an atomic counter), and merging in every program of the mapping kernel.
"""

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def _channel(ptr, cols, C):  # type: ignore[no-untyped-def]
    return tl.load(ptr + cols, mask=cols < C, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(tile, cols, M, C, BLOCK_M: tl.constexpr):  # type: ignore[no-untyped-def]
    """Offsets of the elements of a tile, and the mask of those inside the matrix."""
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    return rows[:, None] * C + cols[None, :], (rows < M)[:, None] & (cols < C)[None, :]


@triton.jit
def _affine(x, scale, shift):  # type: ignore[no-untyped-def]
    """Fused multiply-add, so that the backward pass computes exactly the same ReLU mask as the forward pass."""
    return tl.fma(x, tl.broadcast_to(scale[None, :], x.shape), tl.broadcast_to(shift[None, :], x.shape))


@triton.jit  # type: ignore[untyped-decorator]
def statistics_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    partial_ptr,  # (2, splits, C): mean and sum of squared deviations
    M,
    C,
    RAGGED: tl.constexpr,  # whether the last tile has rows beyond M
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Mean and sum of squared deviations of each channel, for each split of the rows."""
    split, splits = tl.program_id(1), tl.num_programs(1)
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    # Welford's update for each position of the tile; all positions have the same number of tiles.
    mean = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    m2 = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    num_tiles = 0.0
    for tile in tl.range(split, tl.cdiv(M, BLOCK_M), splits, num_stages=STAGES):
        at, mask = _tile(tile, cols, M, C, BLOCK_M)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        delta = x - mean
        if RAGGED:
            delta = tl.where(mask, delta, 0.0)
        num_tiles += 1.0
        mean += delta * (1.0 / num_tiles)
        m2 += delta * (x - mean)
    stride = splits * BLOCK_M
    lanes = tl.arange(0, BLOCK_M)
    count = ((M - split * BLOCK_M - lanes + stride - 1) // stride).to(tl.float32)  # tiles in which the row exists
    whole = tl.sum(count[:, None] * mean, 0) / tl.sum(count, 0)
    off = mean - whole[None, :]
    tl.store(partial_ptr + split * C + cols, whole, mask=cols < C)
    tl.store(partial_ptr + (splits + split) * C + cols, tl.sum(m2 + count[:, None] * off * off, 0), mask=cols < C)


@triton.jit  # type: ignore[untyped-decorator]
def finish_statistics_kernel(  # type: ignore[no-untyped-def]
    partial_ptr,
    weight_ptr,
    bias_ptr,
    running_mean_ptr,
    running_var_ptr,
    tracked_ptr,  # number of batches; None: not counted
    saved_ptr,  # (4, C): mean, rstd, scale, shift
    M,
    C,
    splits,
    rows_per_tile,
    momentum,
    eps,
    CHUNK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Merge the splits: mean and variance of all rows, scale and shift, running statistics."""
    block = tl.program_id(0)
    cols = block * BLOCK_C + tl.arange(0, BLOCK_C)
    weight, bias = _channel(weight_ptr, cols, C), _channel(bias_ptr, cols, C)
    running_mean, running_var = _channel(running_mean_ptr, cols, C), _channel(running_var_ptr, cols, C)
    first = _channel(partial_ptr, cols, C)
    sum_off = tl.zeros((CHUNK, BLOCK_C), tl.float32)
    sum_m2 = tl.zeros((CHUNK, BLOCK_C), tl.float32)
    stride = splits * rows_per_tile
    for chunk in range(tl.cdiv(splits, CHUNK)):
        at, mask = _tile(chunk, cols, splits, C, CHUNK)
        which = chunk * CHUNK + tl.arange(0, CHUNK)
        rest = tl.minimum(tl.maximum(M % stride - which * rows_per_tile, 0), rows_per_tile)
        count = (M // stride * rows_per_tile + rest).to(tl.float32)[:, None]
        # Deviations from the mean of the first split, which is close, so that subtracting squares is accurate.
        off = tl.where(mask, tl.load(partial_ptr + at, mask=mask, other=0.0) - first[None, :], 0.0)
        m2 = tl.load(partial_ptr + splits * C + at, mask=mask, other=0.0)
        sum_off += count * off
        sum_m2 += m2 + count * off * off
    total = M.to(tl.float32)
    off_of_all = tl.sum(sum_off, 0) / total
    mean = first + off_of_all
    var = tl.sum(sum_m2, 0) / total - off_of_all * off_of_all
    var = tl.where(var < 0.0, 0.0, var)  # keeps NaN
    rstd = tl.rsqrt(var + eps)
    scale = weight * rstd
    inside = cols < C
    tl.store(saved_ptr + cols, mean, mask=inside)
    tl.store(saved_ptr + C + cols, rstd, mask=inside)
    tl.store(saved_ptr + 2 * C + cols, scale, mask=inside)
    tl.store(saved_ptr + 3 * C + cols, bias - mean * scale, mask=inside)
    unbiased = var * (total / (total - 1.0))
    tl.store(running_mean_ptr + cols, (1.0 - momentum) * running_mean + momentum * mean, mask=inside)
    tl.store(running_var_ptr + cols, (1.0 - momentum) * running_var + momentum * unbiased, mask=inside)
    if tracked_ptr is not None:
        tl.store(tracked_ptr, tl.load(tracked_ptr) + 1, mask=block == 0)


@triton.jit  # type: ignore[untyped-decorator]
def apply_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,  # None: no residual
    saved_ptr,
    out_ptr,
    M,
    C,
    RELU: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute ``relu(x * scale + shift + residual)``."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift = _channel(saved_ptr + 2 * C, cols, C), _channel(saved_ptr + 3 * C, cols, C)
    tiles = tl.cdiv(M, BLOCK_M)
    for tile in tl.range(tl.program_id(1), tiles, tl.num_programs(1), num_stages=STAGES):
        at, mask = _tile(tiles - 1 - tile, cols, M, C, BLOCK_M)
        # The inputs are not read again before the backward pass, so the cache is kept for the output.
        x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        y = _affine(x, scale, shift)
        if residual_ptr is not None:
            y += tl.load(residual_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if RELU:
            y = tl.where(y <= 0.0, 0.0, y)  # keeps NaN, like torch
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def backward_sums_kernel(  # type: ignore[no-untyped-def]
    dy_ptr,
    more_dy_ptr,  # second gradient; None: there is none
    x_ptr,
    out_ptr,  # None: the ReLU mask is computed from x
    g_ptr,  # None: the gradient before the ReLU is not written
    saved_ptr,
    partial_ptr,  # (2, splits, C): sums of g and of g * (x - mean)
    M,
    C,
    RELU: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums of g, the gradient before the ReLU, for each split of the rows; and g itself."""
    split, splits = tl.program_id(1), tl.num_programs(1)
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = _channel(saved_ptr, cols, C)
    scale, shift = _channel(saved_ptr + 2 * C, cols, C), _channel(saved_ptr + 3 * C, cols, C)
    sum_g = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    sum_gx = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for tile in tl.range(split, tl.cdiv(M, BLOCK_M), splits, num_stages=STAGES):
        at, mask = _tile(tile, cols, M, C, BLOCK_M)
        g = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        if more_dy_ptr is not None:
            g += tl.load(more_dy_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if RELU:
            if out_ptr is not None:
                y = tl.load(out_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            else:
                y = _affine(x, scale, shift)
            g = tl.where(y <= 0.0, 0.0, g)
        if g_ptr is not None:
            g = g.to(g_ptr.dtype.element_ty)
            tl.store(g_ptr + at, g, mask=mask)
            g = g.to(tl.float32)  # sum the rounded values that the next kernel reads
        sum_g += g
        sum_gx += g * (x - mean[None, :])
    tl.store(partial_ptr + split * C + cols, tl.sum(sum_g, 0), mask=cols < C)
    tl.store(partial_ptr + (splits + split) * C + cols, tl.sum(sum_gx, 0), mask=cols < C)


@triton.jit  # type: ignore[untyped-decorator]
def finish_sums_kernel(  # type: ignore[no-untyped-def]
    partial_ptr,
    saved_ptr,
    d_weight_ptr,
    d_bias_ptr,
    slope_ptr,  # (2, C): b and c of dx = scale * g + b * x + c
    M,
    C,
    splits,
    CHUNK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Merge the splits: gradients of weight and bias, and the coefficients of dx."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, rstd = _channel(saved_ptr, cols, C), _channel(saved_ptr + C, cols, C)
    scale = _channel(saved_ptr + 2 * C, cols, C)
    sum_g = tl.zeros((CHUNK, BLOCK_C), tl.float32)
    sum_gx = tl.zeros((CHUNK, BLOCK_C), tl.float32)
    for chunk in range(tl.cdiv(splits, CHUNK)):
        at, mask = _tile(chunk, cols, splits, C, CHUNK)
        sum_g += tl.load(partial_ptr + at, mask=mask, other=0.0)
        sum_gx += tl.load(partial_ptr + splits * C + at, mask=mask, other=0.0)
    d_bias = tl.sum(sum_g, 0)
    d_weight = tl.sum(sum_gx, 0) * rstd
    # dx = scale * (g - d_bias / M - (x - mean) * rstd * d_weight / M)
    total = M.to(tl.float32)
    b = -scale * rstd * (d_weight / total)
    inside = cols < C
    tl.store(d_bias_ptr + cols, d_bias, mask=inside)
    tl.store(d_weight_ptr + cols, d_weight, mask=inside)
    tl.store(slope_ptr + cols, b, mask=inside)
    tl.store(slope_ptr + C + cols, -scale * (d_bias / total) - b * mean, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def backward_apply_kernel(  # type: ignore[no-untyped-def]
    g_ptr,
    x_ptr,
    saved_ptr,
    slope_ptr,
    dx_ptr,
    M,
    C,
    RELU: tl.constexpr,  # whether to apply the ReLU mask, computed from x, to g
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute ``dx = scale * g + b * x + c``."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift = _channel(saved_ptr + 2 * C, cols, C), _channel(saved_ptr + 3 * C, cols, C)
    b, c = _channel(slope_ptr, cols, C), _channel(slope_ptr + C, cols, C)
    tiles = tl.cdiv(M, BLOCK_M)
    for tile in tl.range(tl.program_id(1), tiles, tl.num_programs(1), num_stages=STAGES):
        at, mask = _tile(tiles - 1 - tile, cols, M, C, BLOCK_M)
        g = tl.load(g_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        x = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if RELU:
            g = tl.where(_affine(x, scale, shift) <= 0.0, 0.0, g)
        dx = scale[None, :] * g + (b[None, :] * x + c[None, :])
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
