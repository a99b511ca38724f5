"""Training with several processes (torchrun), and the choice of the device. Without torchrun there is one process."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dualfocal_lab.runs import RunError


@dataclass(frozen=True)
class Group:
    """The group of processes that train one model, from the point of view of one of them."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes the run folder."""
        return self.rank == 0

    def share(self, index: Tensor) -> Tensor:
        """Return this process's contiguous share of a batch or a split; it may be empty."""
        return index if self.size == 1 else index.tensor_split(self.size)[self.rank]

    def wrap(self, model: nn.Module, *, sync_bn: bool, all_used: bool) -> nn.Module:
        """Wrap the model in DistributedDataParallel if there are several processes.

        Args:
            model: the model to train.
            sync_bn: whether batch norm uses the statistics of all processes.
            all_used: whether every weight gets a gradient in each step; if not, DDP looks for unused weights.
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
        if self.device.type == "cpu":
            wrapped.register_comm_hook(None, _sum_by_rank)
        # The last attribute is freed last. If the reducer were the last owner of the process group, it would wait for
        # gloo's threads while holding the GIL, which those threads may be waiting for: a deadlock.
        vars(wrapped)["freed_last"] = wrapped.process_group
        return wrapped

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes; every process gets the sum."""
        if self.size > 1:
            tensor = tensor.to(self.device, copy=True).contiguous()
            dist.all_reduce(tensor)
        return tensor

    def gather(self, rows: Tensor) -> Tensor:
        """Concatenate the rows of all processes in the order of :meth:`share`; every process gets all rows."""
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
        """Run ``work`` in the first process only; every process gets its result, or ``b""`` for None.

        The result is bytes, so that nothing is unpickled. If ``work`` fails, every process raises.
        """
        if self.size == 1:
            return work() or b""
        message, failure = b"", None
        try:
            if self.first:
                message = b"+" + (work() or b"")
        except Exception as error:
            failure = error
            message = b"-" + (str(error) or type(error).__name__).encode()
        message = self._broadcast(message)
        if failure is not None:
            raise failure
        if message.startswith(b"-"):
            raise RunError(message[1:].decode())
        return message[1:]

    def _broadcast(self, message: bytes) -> bytes:
        """Return the first process's message, which must not be empty."""
        length = torch.tensor([len(message)], device=self.device)
        dist.broadcast(length, 0)
        tensor = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        if message:
            tensor.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        dist.broadcast(tensor, 0)
        return tensor.cpu().numpy().tobytes()

    def same_buffers(self, model: nn.Module) -> None:
        """Copy the first process's buffers, such as the running means of batch norm, to all processes."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


def _sum_by_rank(_: None, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Average the gradients of all processes, adding them in the order of the ranks.

    In an all-reduce, the order depends on the place of a gradient in its bucket, and DDP rearranges its buckets after
    the first step: with three processes or more, a resumed run would have other bits than an uninterrupted one.
    """
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    total = parts[0]
    for part in parts[1:]:
        total += part
    future: Future[Tensor] = Future()
    future.set_result(total.div_(len(parts)))
    return future


@contextmanager
def processes(device: str | torch.device | None) -> Iterator[Group]:
    """Join the process group that torchrun has started; without torchrun, yield a group of one process.

    Args:
        device: ``"cuda"``, ``"cpu"``, ... (None: a GPU if there is one). With several processes, each one uses the GPU
            of its local rank.

    Raises:
        ValueError: the device does not exist, or a variable of torchrun is not a number.
    """
    rank, size = rank_and_size()
    chosen = choose_device(device, _number("LOCAL_RANK", 0) if size > 1 else None)
    if size == 1:
        with torch.cuda.device(chosen) if chosen.type == "cuda" else nullcontext():
            yield Group(0, 1, chosen)
        return
    owns_group = not dist.is_initialized()
    if owns_group:
        on_cuda = chosen.type == "cuda"
        if on_cuda:
            torch.cuda.set_device(chosen)
        dist.init_process_group("nccl" if on_cuda else "gloo", device_id=chosen if on_cuda else None)
    try:
        yield Group(rank, size, chosen)
    finally:
        if owns_group:
            dist.destroy_process_group()


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, from torchrun's variables.

    If there is one process, RANK is ignored: another program may have set it.

    Raises:
        ValueError: a variable of torchrun is not a whole number.
    """
    size = _number("WORLD_SIZE", 1)
    return (_number("RANK", 0), size) if size > 1 else (0, 1)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ValueError(
            f"the environment variable {variable}, which torchrun sets, must be a whole number, got {text!r}"
        )
    return int(text)


def choose_device(requested: str | torch.device | None, local_rank: int | None = None) -> torch.device:
    """Return the requested device (None: a GPU if there is one).

    Raises:
        ValueError: the device does not exist.
    """
    if requested is None:
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda, cuda:1, ..., got {requested!r}") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = device.index if device.index is not None else local_rank or 0
        if not torch.cuda.is_available() or index >= count:
            raise ValueError(
                f"device {str(device)!r} is not available to this process: {count} CUDA devices are visible"
            )
        return torch.device("cuda", index)
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {str(device)!r} is not available on this machine") from error
    return device
