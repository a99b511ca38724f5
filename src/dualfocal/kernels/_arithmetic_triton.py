"""Arithmetic that the Triton kernels share."""

import os

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

LOG2_E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def exp(z, ref):  # type: ignore[no-untyped-def]
    """exp(z - ref), up to a factor near 1 that depends on ref only.

    Two instructions, where tl.exp(z - ref) takes six: it multiplies in a step of its own, and keeps denormal numbers.
    """
    if INTERPRETED:  # which has no assembler, and rounds the product
        e = tl.exp(z - ref)
    else:
        power = tl.fma(z, LOG2_E, -ref * LOG2_E)
        e = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [power], tl.float32, True, 1)
    return e


@triton.jit
def log1p(x):  # type: ignore[no-untyped-def]
    """Accurate for small x: the rounding errors of 1 + x and of its logarithm cancel."""
    one_and_x = 1.0 + x
    rounded = one_and_x - 1.0
    return tl.where(rounded == 0.0, x, tl.log(one_and_x) * (x / tl.where(rounded == 0.0, 1.0, rounded)))
