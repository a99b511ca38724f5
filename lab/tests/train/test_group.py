"""What the processes of a group send each other: shares, sums, gathered rows, messages, and metrics from shares."""

import math
from dataclasses import dataclass

import pytest
import torch
import worker
from torch import Tensor, nn

from dualfocal.losses import DualFocalLoss
from dualfocal_lab.train.distributed import Group, processes
from dualfocal_lab.train.validation import summarize

CPU = torch.device("cpu")


def test_a_group_of_one_changes_nothing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    rows, model = torch.randn(3, 2), nn.BatchNorm1d(2)
    with processes("cpu") as group:
        assert group == Group(0, 1, CPU)
        assert group.first
        assert group.share(rows) is rows
        assert group.sum(rows) is rows
        assert group.gather(rows) is rows
        assert group.first_does(lambda: None) == b""
        assert group.first_does(lambda: worker.LONG) == worker.LONG
        assert group.wrap(model, sync_bn=False, all_used=True) is model
    assert not torch.distributed.is_initialized()


def test_shares_are_all_samples_once_and_in_order():
    for size in (2, 3, 8):
        for number in (0, 1, 2, 7, 128):
            index = torch.randperm(number)
            shares = [Group(rank, size, CPU).share(index) for rank in range(size)]
            lengths = [len(share) for share in shares]
            assert torch.equal(torch.cat(shares), index), (number, size)
            assert max(lengths) == lengths[0] == math.ceil(number / size), (number, size)
            assert max(lengths) - min(lengths) <= 1, (number, size)


@dataclass(frozen=True)
class Rehearsal(Group):
    """A process of a group without the others: it records what it would send, and gets prepared answers."""

    sent: list[Tensor]
    answers: list[Tensor]

    def sum(self, tensor: Tensor) -> Tensor:
        self.sent.append(tensor)
        return self.answers[len(self.sent) - 1] if self.answers else tensor


def test_two_processes_agree_on_the_metrics(pair):
    first, second = pair.summaries
    one = summarize(*worker.draw(1001), DualFocalLoss(reduction="sum"), 100, Group(0, 1, CPU))
    assert first == second
    assert first["error"] == one["error"]
    assert first == pytest.approx(one, rel=1e-6)


def test_what_two_processes_send_each_other_arrives_exactly(pair):
    beyond = worker.BEYOND
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    expected = {
        "sum": torch.tensor([2 * beyond, -2 * beyond, -(2**63), 1]),
        "sum_not_contiguous": 3 * torch.arange(6).view(2, 3).t().contiguous(),
        "gather_3_1": torch.cat([rows, rows[:1] + 10]),
        "gather_0_3": rows,
        "gather_0_0": rows[:0],
        "gather_int64": torch.tensor([beyond, beyond + 1, beyond + 1]),
        "message_empty": torch.empty(0, dtype=torch.uint8),
        "message_zero": torch.zeros(1, dtype=torch.uint8),
        "message_long": torch.frombuffer(bytearray(worker.LONG), dtype=torch.uint8),
        "running_mean": torch.ones(3),
        "num_batches": torch.tensor([beyond]),
    }
    for name, tensor in expected.items():
        for received in pair.received(name):
            assert received.dtype == tensor.dtype, name
            assert torch.equal(received, tensor), name
    assert [share.tolist() for share in pair.received("share")] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [share.tolist() for share in pair.received("share_of_1")] == [[0], []]
    assert [tensor.item() for tensor in pair.received("argument_of_sum")] == [1, 2]  # sum() does not change it
