"""Several processes as one: who does what, and how they tell each other. Without torchrun there is one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dualfocal.runs import RunError


@dataclass(frozen=True)
class Group:
    """The processes that train together, as one of them sees it."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes the run folder."""
        return self.rank == 0

    def share(self, index: Tensor) -> Tensor:
        """This process's part of a batch, or of a data set: in one piece, in order; it may be empty."""
        return index if self.size == 1 else index.tensor_split(self.size)[self.rank]

    def wrap(self, model: nn.Module, *, sync_bn: bool, all_used: bool) -> nn.Module:
        """The model, so that its gradients are the mean over the processes.

        Args:
            model: to be trained.
            sync_bn: whether batch norm is to be over all processes.
            all_used: whether each weight gets a gradient; otherwise each step looks which do.
        """
        if self.size == 1:
            return model
        if sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            find_unused_parameters=not all_used,
        )
        # The last attribute is freed last. If the reducer were the last owner of the process group, it would wait for
        # gloo's threads while holding the GIL, which those threads may be waiting for: a deadlock.
        vars(wrapped)["freed_last"] = wrapped.process_group
        return wrapped

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, which all get."""
        if self.size > 1:
            tensor = tensor.to(self.device, copy=True).contiguous()
            dist.all_reduce(tensor)
        return tensor

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in the order of :meth:`share`, which all get."""
        if self.size == 1:
            return rows
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(rows)
        lengths = self.sum(lengths)
        padded = rows.new_zeros((int(lengths.max()), *rows.shape[1:]), device=self.device)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths.tolist(), strict=True)])

    def first_does(self, work: Callable[[], bytes | None]) -> bytes:
        """Have the first process do something while the others wait, and tell all what it gives, or b"".

        Bytes, not objects: nothing is unpickled. Where it fails, all of them fail.
        """
        if self.size == 1:
            return work() or b""
        told, failure = b"", None
        try:
            if self.first:
                told = b"+" + (work() or b"")
        except Exception as error:
            failure = error
            told = b"-" + (str(error) or type(error).__name__).encode()
        told = self._broadcast(told)
        if failure is not None:
            raise failure
        if told.startswith(b"-"):
            raise RunError(told[1:].decode())
        return told[1:]

    def _broadcast(self, message: bytes) -> bytes:
        """The first process's message, which is not empty."""
        length = torch.tensor([len(message)], device=self.device)
        dist.broadcast(length, 0)
        tensor = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if message:
            tensor.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        dist.broadcast(tensor, 0)
        return tensor.cpu().numpy().tobytes()

    def same_buffers(self, model: nn.Module) -> None:
        """Give all processes the first one's buffers, such as the running means of batch norm."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


@contextmanager
def processes(device: str | torch.device | None) -> Iterator[Group]:
    """Join the processes that torchrun has started; or be the only one.

    Args:
        device: ``"cuda"``, ``"cpu"``, ...; None: a GPU if there is one. With several processes each takes the GPU of
            its local rank.

    Raises:
        ValueError: no such device; or torchrun's variables are no numbers.
    """
    rank, size = rank_and_size()
    chosen = choose_device(device, _number("LOCAL_RANK", 0) if size > 1 else None)
    if size == 1:
        with torch.cuda.device(chosen) if chosen.type == "cuda" else nullcontext():
            yield Group(0, 1, chosen)
        return
    mine = not dist.is_initialized()
    if mine:
        on_cuda = chosen.type == "cuda"
        if on_cuda:
            torch.cuda.set_device(chosen)
        dist.init_process_group("nccl" if on_cuda else "gloo", device_id=chosen if on_cuda else None)
    try:
        yield Group(rank, size, chosen)
    finally:
        if mine:
            dist.destroy_process_group()


def rank_and_size() -> tuple[int, int]:
    """Which process this is, of how many, as torchrun says it; a rank among one process is that of something else.

    Raises:
        ValueError: a variable of torchrun's is set to something else than a number.
    """
    size = _number("WORLD_SIZE", 1)
    return (_number("RANK", 0), size) if size > 1 else (0, 1)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ValueError(f"the variable {variable}, as set by torchrun, must be a whole number, got {text!r}")
    return int(text)


def choose_device(asked: str | torch.device | None, local_rank: int | None = None) -> torch.device:
    """The device that is asked for; None: a GPU if there is one.

    Raises:
        ValueError: there is none.
    """
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu") if asked is None else torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda, cuda:1, ..., got {asked!r}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        place = device.index if device.index is not None else local_rank or 0
        if not torch.cuda.is_available() or place >= count:
            raise ValueError(f"there is no device {str(device)!r} for this process: {count} CUDA devices are visible")
        return torch.device("cuda", place)
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"there is no device {str(device)!r} here") from error
    return device
