"""The confidence kernels, compared with plain torch in float64; without a GPU in the interpreter of triton."""

from typing import Any

import pytest
import torch
from case_loops import for_each
from torch import Tensor

pytest.importorskip("triton")

from dualfocal.kernels import confidence
from dualfocal.kernels.confidence import BAD_LOGITS, BAD_TARGET, RowNumbers, add_to_bins, scan_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ONE = 1 << 32
CLASSES = {"few": (2, 3, 10, 16), "tile": (2, 33, 100, 1000), "row": (3, 16, 33, 96, 1000)}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which interprets the kernels, of inf - inf


@pytest.fixture(params=CLASSES)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kernel, whatever the number of classes; long rows are read 16 classes at a time."""
    monkeypatch.setattr(confidence, "MOST_FEW", 16 if request.param == "few" else 0)
    if request.param == "row":
        monkeypatch.setattr(confidence, "LONGEST_TILE", 0)
        monkeypatch.setattr(confidence, "ROW_BLOCK", 16)
    return str(request.param)


def sample(
    num_rows: int, num_classes: int, dtype: torch.dtype = torch.float32, ties: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_rows + num_classes)
    logits = 3 * torch.randn(num_rows, num_classes, generator=generator)
    logits = (logits.round() if ties else logits).to(dtype)
    target = torch.randint(num_classes, (num_rows,), generator=generator)
    target[::2] = first_maximum(logits)[::2]
    return logits.to(DEVICE), target.to(DEVICE)


def several_programs(kernel: str) -> int:
    """Rows for more than one program; of long rows each has its own, which the interpreter takes a while for."""
    return 30 if kernel == "row" and DEVICE == "cpu" else 300


def first_maximum(logits: Tensor) -> Tensor:
    return (logits == logits.amax(1, keepdim=True)).int().argmax(1)


def assert_same(logits: Tensor, target: Tensor) -> None:
    """All numbers of all rows equal those of torch in float64."""
    numbers = scan_rows(logits, target, scores=True)
    z = logits.double()
    log_p = z.log_softmax(1)
    one_hot = torch.nn.functional.one_hot(target, logits.shape[1])
    top = log_p.exp().amax(1)
    others = (z - z.amax(1, keepdim=True)).exp().scatter(1, first_maximum(logits)[:, None], 0.0).sum(1)
    torch.testing.assert_close(numbers.confidence.double() / ONE, top, rtol=0, atol=2e-7)
    torch.testing.assert_close(numbers.uncertainty, 1 + others, rtol=1e-6, atol=0)
    torch.testing.assert_close(numbers.nll, -log_p.gather(1, target[:, None])[:, 0], rtol=1e-6, atol=5e-7)
    torch.testing.assert_close(numbers.brier, (log_p.exp() - one_hot).square().sum(1), rtol=1e-5, atol=5e-7)
    assert torch.equal(numbers.right, first_maximum(logits) == target)
    without = scan_rows(logits, target, scores=False)
    assert torch.equal(without.confidence, numbers.confidence)
    assert len(without.nll) == len(without.brier) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_torch_in_float64(dtype, kernel) -> None:
    for num_classes in CLASSES[kernel]:
        assert_same(*sample(9, num_classes, dtype))


def test_as_many_rows_as_several_programs_have(kernel) -> None:
    assert_same(*sample(several_programs(kernel), 16))


def test_the_first_of_tied_classes_is_predicted(kernel) -> None:
    logits, _ = sample(16, 16, ties=True)
    logits[:8].clamp_(max=2.0)
    logits[8] = 0.0
    for label in range(0, 16, 5 if kernel == "row" else 1):
        assert_same(logits, torch.full((16,), label, device=DEVICE))


def test_tied_classes_in_other_blocks(monkeypatch) -> None:
    monkeypatch.setattr(confidence, "LONGEST_TILE", 0)
    monkeypatch.setattr(confidence, "ROW_BLOCK", 16)
    for num_classes in (40, 48):
        for first, second in ((0, 1), (3, 15), (3, 17), (17, 30), (17, 37), (33, 39)):
            logits = torch.zeros(2, num_classes, device=DEVICE)
            logits[:, first] = logits[:, second] = 4.0
            assert_same(logits, torch.tensor([first, second], device=DEVICE))


def test_extreme_logits(kernel) -> None:
    num_classes = CLASSES[kernel][2]
    logits, target = sample(8, num_classes)
    logits[0, num_classes // 2 :] = -torch.inf
    logits[1, :-1] = -torch.inf
    logits[2, :-1] = 0.0
    logits[2, -1] = 25.0
    logits[3] = 0.0
    logits[3, -1] = 200.0  # far above what the first classes let expect
    logits[4, : num_classes // 2] = -torch.inf
    logits[5] *= 1e4
    logits[6] += 1e5
    logits[7] = -1e30
    target[:] = first_maximum(logits)
    assert_same(logits, target)
    assert_same(logits[2:4], torch.zeros(2, dtype=torch.int64, device=DEVICE))


def test_a_masked_target_has_an_infinite_nll(kernel) -> None:
    logits, target = sample(2, 16)
    logits[0, target[0]] = -torch.inf
    numbers = scan_rows(logits, target, scores=True)
    assert numbers.nll[0] == torch.inf
    assert numbers.nll[1].isfinite()
    assert numbers.uncertainty.isfinite().all()


def test_confidences_that_round_to_1_differ_in_uncertainty(kernel) -> None:
    logits = torch.full((3, 16), -torch.inf, device=DEVICE)
    logits[:, 3] = torch.tensor([25.0, 26.0, 27.0])
    logits[:, 12] = 0.0
    numbers = scan_rows(logits, torch.full((3,), 3, device=DEVICE), scores=True)
    expected = torch.tensor([25.0, 26.0, 27.0], dtype=torch.float64).neg().exp().to(DEVICE)
    assert numbers.confidence.tolist() == [ONE] * 3
    torch.testing.assert_close(numbers.uncertainty - 1, expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(numbers.nll, expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(numbers.brier, 2 * expected**2, rtol=1e-4, atol=1e-7)


def test_invalid_rows_have_a_nan_uncertainty(kernel) -> None:
    num_classes = CLASSES[kernel][2]
    for bad in (torch.nan, torch.inf):
        for column in (0, num_classes // 2, num_classes - 1):
            logits, target = sample(5, num_classes)
            logits[1, column] = bad
            logits[3] = bad if column else -torch.inf
            numbers = scan_rows(logits, target, scores=True)
            assert numbers.uncertainty.isnan().tolist() == [False, True, False, True, False]


def test_rows_apart_in_memory(kernel) -> None:
    wide, target = sample(6, 40)
    assert_same(wide[:, 3:19], target % 16)
    assert_same(wide[::2, :16], target[::2] % 16)
    assert_same(wide.T.contiguous().T[:, :16], target % 16)  # classes apart: copied


def test_more_than_2_to_31_logits() -> None:
    if DEVICE == "cpu" or torch.cuda.mem_get_info()[0] < 2**33:
        pytest.skip("needs a GPU with 8 GiB")
    logits = torch.zeros(2**31 // 1024 + 3, 1024, dtype=torch.bfloat16, device=DEVICE)
    logits[-1, 7] = 4.0
    numbers = scan_rows(logits, torch.full((len(logits),), 7, device=DEVICE), scores=False)
    assert numbers.right.nonzero().tolist() == [[len(logits) - 1]]


def bins_of(numbers: RowNumbers, bounds: Tensor) -> list[Tensor]:
    index = torch.bucketize(numbers.confidence, bounds[1:-1])
    empty = torch.zeros(len(bounds) - 1, dtype=torch.int64, device=DEVICE)
    parts = (torch.ones_like(index), numbers.confidence, numbers.right.long())
    return [empty.index_add(0, index, part) for part in parts]


def empty_bins(num_bins: int) -> dict[str, Any]:
    bounds = (torch.arange(num_bins + 1, dtype=torch.float64) / num_bins * ONE).round().long().to(DEVICE)
    zeros = torch.zeros(4, num_bins, dtype=torch.int64, device=DEVICE)
    parts = {"counts": zeros[0], "totals": zeros[1], "hits": zeros[2], "invalid": zeros[3, 0]}
    return {"bounds": bounds, "brier": False, **parts}


@pytest.mark.parametrize("num_bins", [1, 15, 40])
def test_bins_hold_the_confidences_of_the_rows_that_are_not_ignored(num_bins, kernel) -> None:
    num_rows = several_programs(kernel)
    logits, target = sample(num_rows, 16)
    logits *= torch.linspace(0, 2, num_rows, device=DEVICE)[:, None]
    target[::3] = -7
    logits[0] = torch.nan  # ignored
    kept = target != -7
    bins = empty_bins(num_bins)
    expected = bins_of(scan_rows(logits[kept], target[kept], scores=False), bins["bounds"])
    for part in (slice(0, 1), slice(1, 17), slice(17, num_rows)):  # any split gives the same bits
        add_to_bins(logits[part], target[part], **bins, ignore_index=-7)
    assert [bins[name].tolist() for name in ("counts", "totals", "hits")] == [part.tolist() for part in expected]
    assert bins["invalid"] == 0


def test_the_sum_of_brier_terms(kernel) -> None:
    num_rows = several_programs(kernel)
    logits, target = sample(num_rows, 16)
    bins = empty_bins(1) | {"bounds": torch.tensor([-1, 4 * ONE], device=DEVICE), "hits": None, "brier": True}
    add_to_bins(logits, target, **bins, ignore_index=-100)
    expected = (scan_rows(logits, target, scores=True).brier * ONE).round().long()
    assert bins["counts"].tolist() == [num_rows]
    assert abs(int(bins["totals"] - expected.sum())) <= num_rows


@for_each("bad, problem", [("nan", BAD_LOGITS), ("target", BAD_TARGET), ("both", BAD_TARGET)])
def test_invalid_rows_are_reported_and_left_out(bad, problem, kernel) -> None:
    logits, target = sample(5, 16)
    good = [0, 1, 2, 3, 4]
    if bad in ("nan", "both"):
        logits[2, 9] = torch.nan
        good.remove(2)
    if bad in ("target", "both"):
        good.remove(3)
    for wrong in (16, -1, 2**40):
        if bad in ("target", "both"):
            target[3] = wrong
        bins = empty_bins(15)
        add_to_bins(logits, target, **bins, ignore_index=-100)
        assert int(bins["invalid"]) == problem
        expected = bins_of(scan_rows(logits[good], target[good], scores=False), bins["bounds"])
        assert [bins[name].tolist() for name in ("counts", "totals", "hits")] == [part.tolist() for part in expected]


def test_nothing_but_ignored_rows(kernel) -> None:
    logits, target = sample(5, 16)
    bins = empty_bins(15)
    add_to_bins(logits, torch.full_like(target, -100), **bins, ignore_index=-100)
    add_to_bins(logits[:0], target[:0], **bins, ignore_index=-100)
    assert not any(bins[name].any() for name in ("counts", "totals", "hits", "invalid"))
