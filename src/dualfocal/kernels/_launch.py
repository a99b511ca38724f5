"""Launch Triton kernels in a third of the host time that Triton's own call takes, which small inputs would feel."""

import functools
from typing import Any

import torch

H200_SMS = 132  # assumed without a CUDA device


class Launcher:
    """A Triton kernel with its compiled versions.

    Triton compiles a kernel anew for other dtypes, constants and kinds of integers, and looks all of this up in each
    call. Here the key has the same distinctions, in less Python.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        programs: int,
        device: int,
        arguments: tuple[Any, ...],
        num_warps: int,
        maxnreg: int | None = None,
        **constants: Any,
    ) -> None:
        """Launch on the current stream of a device.

        Args:
            programs: number of programs.
            device: index of the CUDA device; -1 for the interpreter.
            arguments: tensors, numbers and None, in the order of the kernel's parameters.
            num_warps: warps of a program.
            maxnreg: registers of a thread (None: as many as the compiler wants). Fewer let more programs run at once.
            constants: the kernel's constexpr parameters, in its order, after all arguments.
        """
        key = (device, num_warps, maxnreg, *constants.values(), *_kinds(arguments))
        compiled = self.compiled.get(key)
        if compiled is not None and device == torch.cuda.current_device():
            compiled[programs, 1, 1](*arguments, *constants.values())
            return
        with torch.cuda.device(device):
            # The interpreter compiles nothing, and returns None.
            options = {"num_warps": num_warps, "maxnreg": maxnreg}
            self.compiled[key] = self.kernel[(programs,)](*arguments, **constants, **options)


def _kinds(arguments: tuple[Any, ...]) -> list[Any]:
    """Return what Triton specialises arguments on."""
    kinds: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if kind is int:
            kinds.append(4 * (argument == 1) + 2 * (argument % 16 == 0) + (-(2**31) <= argument < 2**31))
        elif argument is None or kind is float:
            kinds.append(kind)
        else:
            kinds += argument.dtype, argument.data_ptr() % 16 == 0
    return kinds


@functools.cache
def num_sms(device: int) -> int:
    """Return the number of multiprocessors of a CUDA device; -1: of that on which the kernels were tuned."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device >= 0 else H200_SMS


def next_power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()


def blocks(n: int, size: int) -> int:
    """Return the number of blocks of a size that cover n."""
    return -(-n // size)
