"""Metrics by the kernels for CUDA: without a GPU in the interpreter of triton, which tests make `scan` take."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from case_loops import for_each
from samples import draw_logits
from torch import Tensor

pytest.importorskip("triton")

from torchmetrics import MetricCollection

from dualfocal import metrics as M

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAKE = {
    "ece": (M.ExpectedCalibrationError, M.ece),
    "mce": (M.MaximumCalibrationError, M.mce),
    "brier": (M.BrierScore, M.brier_score),
}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which interprets the kernels, of inf - inf


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.metrics.scan.FUSED_DEVICE", DEVICE)


def sample(n: int = 600, num_classes: int = 10, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits, target = draw_logits(n, num_classes)
    return logits.to(DEVICE, dtype), target.to(DEVICE)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Raise an error if something waits for the GPU."""
    if DEVICE == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@for_each(num_classes=[2, 10, 70, 5000], dtype=[torch.float32, torch.bfloat16])
def test_scan_equals_float64(num_classes, dtype, fused) -> None:
    n = 20 if num_classes == 5000 else 600
    logits, target = sample(n, num_classes, dtype)
    wide = logits.double()  # is not for the kernels
    assert M.error_rate(logits, target) == M.error_rate(wide, target)
    for function in (M.nll, M.brier_score, M.ece, M.aurc, M.adaptive_ece):
        assert function(logits, target) == pytest.approx(function(wide, target), rel=1e-6, abs=1e-6)
        for row in range(0, n, n // 3):
            one = slice(row, row + 1)
            value, expected = (function(values[one], target[one]) for values in (logits, wide))
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    got, expected = M.ExpectedCalibrationError().to(DEVICE), M.ExpectedCalibrationError().to(DEVICE)
    got.update(logits, target)
    expected.update(wide, target)
    assert torch.equal(got.bins.count, expected.bins.count)
    assert torch.equal(got.bins.correct, expected.bins.correct)


def test_scan_takes_the_kernels_only_where_they_apply(fused, monkeypatch) -> None:
    from dualfocal.kernels import confidence

    calls = []
    plain = confidence.scan_rows
    monkeypatch.setattr(confidence, "scan_rows", lambda *args, **options: calls.append(1) or plain(*args, **options))
    logits, target = sample(50, 2)
    M.ece(logits, target)
    assert len(calls) == 1
    M.ece(logits.double(), target)
    M.ece(logits.softmax(1), target, input="probs")
    M.ece(logits, target, binary="positive")
    M.ece(logits, target, convention="published")
    M.classwise_ece(logits, target)
    assert len(calls) == 1


@for_each(bad=[torch.nan, torch.inf])
def test_scan_names_the_invalid_row(bad, fused) -> None:
    logits, target = sample(50)
    logits[17, 3] = bad
    with pytest.raises(ValueError, match="row 17 holds"):
        M.nll(logits, target)


@for_each(name=MAKE, num_classes=[10, 70])
def test_streams_equal_the_function_for_any_split(name, num_classes, fused) -> None:
    make, function = MAKE[name]
    logits, target = sample(300, num_classes)
    target[::7] = -100
    values = []
    for cuts in ([300], [1, 40, 300], [0, 7, 150, 299, 300]):
        metric = make().to(DEVICE)
        for start, stop in zip([0, *cuts], cuts, strict=False):
            metric.update(logits[start:stop], target[start:stop])
        values.append(metric.compute().item())
    assert len(set(values)) == 1
    assert values[0] == pytest.approx(function(logits.double(), target), abs=1e-6)
    assert metric(logits[:20], target[:20]).item() == pytest.approx(
        function(logits[:20].double(), target[:20]), abs=1e-6
    )


@for_each(name=MAKE)
def test_updates_do_not_wait(name, fused) -> None:
    logits, target = sample(64)
    target[3] = -100
    metric = MAKE[name][0]().to(DEVICE)
    metric.update(logits, target)
    with without_waiting():
        for _ in range(3):
            metric.update(logits, target)
    once = MAKE[name][0](ignore_index=-100).to(DEVICE)
    once.update(logits, target)
    assert metric.compute().item() == once.compute().item()
    assert int(metric.count.sum()) == 4 * 63


@for_each(name=MAKE)
def test_a_bad_first_batch_is_an_error_at_once_and_leaves_the_state(name, fused) -> None:
    logits, target = sample(64)
    nan, wrong = logits.clone(), target.clone()
    nan[5, 2], wrong[9] = torch.nan, 10
    for values, labels, error, message in (
        (nan, target, ValueError, "row 5 holds NaN"),
        (logits, wrong, IndexError, "target 10 is out of range"),
        (logits.softmax(1), target, ValueError, "must not be probabilities"),
    ):
        metric = MAKE[name][0]().to(DEVICE)
        with pytest.raises(error, match=message):
            metric.update(values, labels)
        assert not any(metric.metric_state[state].any() for state in ("count", "invalid"))


@for_each(name=MAKE)
def test_a_bad_later_batch_is_an_error_in_compute(name, fused) -> None:
    logits, target = sample(64)
    nan, wrong = logits.clone(), target.clone()
    nan[5, 2], wrong[9] = torch.nan, 10
    for values, labels, error, message in (
        (nan, target, ValueError, "NaN .* a batch after the first"),
        (logits, wrong, IndexError, "out of range in a batch after the first"),
    ):
        metric = MAKE[name][0]().to(DEVICE)
        metric.update(logits, target)
        metric.update(values, labels)
        metric.update(logits, target)
        with pytest.raises(error, match=message):
            metric.compute()
        metric.reset()
        metric.update(logits, target)
        assert metric.compute().isfinite()


def test_ignored_probabilities_are_no_excuse(fused) -> None:
    """The check of the first batch looks at the samples that count."""
    logits, target = sample(300)
    probs = torch.where(target[:, None] == 3, 7.0, logits.softmax(1))
    with pytest.raises(ValueError, match="must not be probabilities"):
        M.ExpectedCalibrationError(ignore_index=3).to(DEVICE).update(probs, target)
    metric = M.ExpectedCalibrationError().to(DEVICE)
    ignored = torch.where(torch.arange(300, device=DEVICE) < 290, -100, target)  # all of the first rows
    metric.update(logits, ignored)
    assert int(metric.count.sum()) == 10


def test_bins_of_a_stream_do_not_change_later(fused) -> None:
    logits, target = sample(64)
    metric = M.ExpectedCalibrationError().to(DEVICE)
    metric.update(logits, target)
    bins = metric.bins
    metric.update(logits, target)
    assert int(bins.count.sum()) == 64
    assert metric.bins == bins + bins


def test_a_collection_shares_the_states(fused) -> None:
    logits, target = sample(128)
    collection = MetricCollection({name: make() for name, (make, _) in MAKE.items()}).to(DEVICE)
    for part in (slice(0, 50), slice(50, 51), slice(51, 128)):
        collection.update(logits[part], target[part])
    expected = {name: function(logits.double(), target) for name, (_, function) in MAKE.items()}
    assert {name: value.item() for name, value in collection.compute().items()} == pytest.approx(expected, abs=1e-6)
    assert sorted(sorted(group) for group in collection.compute_groups.values()) == [["brier"], ["ece", "mce"]]


@for_each(
    "dtype, shape, bias", [(torch.float32, (40,), True), (torch.bfloat16, (40,), False), (torch.float32, (8, 5), True)]
)
def test_linear_head_equals_its_logits(dtype, shape, bias, fused, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*shape, 6, generator=generator).to(DEVICE, dtype)
    head = torch.nn.Linear(6, 30, bias=bias, device=DEVICE, dtype=dtype)
    target = torch.randint(30, shape, generator=generator).to(DEVICE)
    target.view(-1)[::5] = -100
    monkeypatch.setattr("dualfocal.metrics.linear.CHUNK_BYTES", 7 * 30 * dtype.itemsize)  # seven rows at a time
    got = M.linear_calibration(hidden, head.weight, target, head.bias, num_bins=10)
    logits = head(hidden).detach().double().view(-1, 30)
    expected = M.evaluate(logits, target.view(-1), num_bins=10)
    assert got.num_samples == expected.num_samples == 32
    assert got.error == expected.error
    for name in ("nll", "brier", "ece"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name), abs=1e-6)
    assert torch.equal(got.bins.count, expected.bins.count)
    assert got.bins.count.device.type == DEVICE


def test_linear_head_on_any_device_checks_its_arguments() -> None:
    hidden, weight, target = torch.randn(6, 4), torch.randn(3, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match=r"got \(6, 4\), \(3, 4\) and \(5,\)"):
        M.linear_calibration(hidden, weight, target[:5])
    with pytest.raises(IndexError, match="target 3 is out of range"):
        M.linear_calibration(hidden, weight, target + 1)
    with pytest.raises(ValueError, match="every target is ignore_index"):
        M.linear_calibration(hidden, weight, torch.full((6,), -100))
    with pytest.raises(ValueError, match=r"class indices, got 3 rows and torch\.float32"):
        M.linear_calibration(hidden, weight, target.float())
    hidden[4, 0] = torch.nan
    with pytest.raises(ValueError, match="row 4 holds NaN"):
        M.linear_calibration(hidden, weight, target)
