"""The torchmetrics classes: a stream, in any batches and processes, has the number of the function of all of it."""

import ast
import pickle
import runpy
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from case_loops import for_each
from torchmetrics import MetricCollection

from dualfocal import metrics as M

matplotlib.use("Agg")

PAIRS = {
    "ExpectedCalibrationError": (lambda **k: M.ExpectedCalibrationError(**k), M.ece),
    "MaximumCalibrationError": (lambda **k: M.MaximumCalibrationError(**k), M.mce),
    "ClasswiseCalibrationError": (lambda **k: M.ClasswiseCalibrationError(5, **k), M.classwise_ece),
    "BrierScore": (lambda **k: M.BrierScore(**k), M.brier_score),
}


def batches(n: int = 500, num_classes: int = 5):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, num_classes, generator=generator)
    target = torch.randint(num_classes, (n,), generator=generator)
    cuts = [0, 1, 3, 128, 129, 400, n]
    return logits, target, [slice(a, b) for a, b in pairwise(cuts)]


def close(expected: float):
    return pytest.approx(expected, rel=0, abs=1e-12)


@for_each(name=PAIRS)
def test_a_stream_has_the_number_of_the_function(name) -> None:
    make, function = PAIRS[name]
    logits, target, parts = batches()
    metric, backwards = make(), make()
    for part in parts:  # forward returns the number of the batch, and adds it
        assert metric(logits[part], target[part]).item() == close(function(logits[part], target[part]))
    for part in reversed(parts):
        backwards.update(logits.numpy()[part], target.numpy()[part])
    for stream in (metric, backwards):
        assert stream.compute().dtype == torch.float64
        assert stream.compute().item() == close(function(logits, target))
    metric.reset()
    metric.update(logits[:50], target[:50])
    assert metric.compute().item() == close(function(logits[:50], target[:50]))
    with pytest.raises(TypeError, match="target must be a tensor, an array, a list or a data frame, got int"):
        metric.update(logits, 3)


@for_each(name=PAIRS)
def test_options(name) -> None:
    make, function = PAIRS[name]
    logits, target, _ = batches()
    probs = logits.softmax(1)
    target[::7] = 3
    metric = make(input="probs", ignore_index=3)
    metric.update(probs, target)
    metric.update(probs[::7], target[::7])  # all ignored: nothing happens
    assert metric.compute().item() == close(function(probs, target, input="probs", ignore_index=3))
    with pytest.raises(ValueError, match="'logits', 'probs', got 'scores'"):
        make(input="scores")


def test_binary_semantics() -> None:
    logits, target, _ = batches()
    scores, target = logits[:, 0], target % 2
    for binary in ("top_label", "positive"):
        for metric, function in (
            (M.ExpectedCalibrationError(binary=binary), M.ece),
            (M.BrierScore(binary=binary, root=True), lambda *a, **k: M.brier_score(*a, **k, root=True)),
        ):
            metric.update(scores, target)
            assert metric.compute().item() == close(function(scores, target, binary=binary))


def test_collection_shares_bins() -> None:
    logits, target, parts = batches()
    collection = MetricCollection(
        {"ece": M.ExpectedCalibrationError(), "mce": M.MaximumCalibrationError(), "rbs": M.BrierScore(root=True)}
    )
    for part in parts:
        collection.update(logits[part], target[part])
    expected = {
        "ece": M.ece(logits, target),
        "mce": M.mce(logits, target),
        "rbs": M.brier_score(logits, target, root=True),
    }
    assert {name: value.item() for name, value in collection.compute().items()} == close(expected)
    assert sorted(sorted(group) for group in collection.compute_groups.values()) == [["ece", "mce"], ["rbs"]]


OTHER_OPTIONS = [{"ignore_index": 0}, {"ignore_index": 4}, {"input": "probs"}]


@for_each(name=PAIRS, options=OTHER_OPTIONS, first=["without the class", "empty"])
def test_collection_keeps_other_options_apart(name, options, first) -> None:
    """Even if the states agree after the first batch, when torchmetrics makes its groups."""
    make, function = PAIRS[name]
    logits, target, _ = batches()
    values = logits.softmax(1)  # logits as good as any, and probabilities
    target[:100] = target[:100].clamp(1, 3)
    plain, options = {"input": "logits"}, {"input": "logits", **options}
    collection = MetricCollection({"plain": make(**plain), "other": make(**options)})
    parts = [slice(0, 100), slice(100, 500)]
    for part in [slice(0, 0), *parts] if first == "empty" else parts:
        collection.update(values[part], target[part])
    got = {name: value.item() for name, value in collection.compute().items()}
    expected = {"plain": function(values, target, **plain), "other": function(values, target, **options)}
    assert got == close(expected)
    assert len(collection.compute_groups) == 2


def test_collection_keeps_kinds_of_binary_apart() -> None:
    scores, target = torch.tensor([1.0, 2.0, -1.0, 0.5]), torch.tensor([1, 0, 1, 0])
    names = ("top_label", "positive")
    collection = MetricCollection({name: M.ExpectedCalibrationError(binary=name) for name in names})
    collection.update(scores[:2], target[:2])  # class 1 is the predicted one: the same bins
    collection.update(scores[2:], target[2:])
    got = {name: value.item() for name, value in collection.compute().items()}
    assert got == close({name: M.ece(scores, target, binary=name) for name in names})
    assert got["top_label"] != got["positive"]


@for_each(name=PAIRS)
def test_copies_and_saved_states(name) -> None:
    make, function = PAIRS[name]
    logits, target, _ = batches()
    metric = make(ignore_index=3)
    metric.update(logits[:200], target[:200])
    metric.persistent(True)
    loaded = make(ignore_index=3)
    loaded.load_state_dict(pickle.loads(pickle.dumps(metric.state_dict())))
    for copy in (metric.clone(), pickle.loads(pickle.dumps(metric)), loaded):
        copy.update(logits[200:], target[200:])
        assert copy.compute().item() == close(function(logits, target, ignore_index=3))
    other = make(ignore_index=3)
    other.update(logits[200:], target[200:])
    metric.merge_state(other)
    assert metric.compute().item() == close(function(logits, target, ignore_index=3))


@for_each(name=PAIRS)
def test_plot(name) -> None:
    logits, target, parts = batches()
    metric = PAIRS[name][0]()
    values = [metric(logits[part], target[part]) for part in parts]
    figure, axes = metric.plot()
    assert axes.lines[0].get_ydata()[0] == metric.compute().item()
    assert axes.get_ylim()[0] <= 0
    assert axes.get_ylim()[1] >= metric.plot_upper_bound
    plt.close(figure)
    figure, axes = plt.subplots()
    metric.plot(values, axes)
    assert list(axes.lines[0].get_ydata()) == [value.item() for value in values]
    plt.close(figure)


def test_states_are_sums_in_float64_of_the_size_of_the_bins() -> None:
    logits, target, _ = batches()
    for make, function in PAIRS.values():
        metric = make()
        for _ in range(3):
            metric.update(logits, target)
            metric = metric.half().set_dtype(torch.float16)
        # The empty list has the options in its name.
        states = [state for state in metric.metric_state.values() if isinstance(state, torch.Tensor)]
        assert {state.dtype for state in states} == {torch.float64}
        assert max(state.numel() for state in states) <= 5 * 15
        assert pickle.loads(pickle.dumps(metric)).compute().item() == close(function(logits, target))


def test_bins_of_the_stream() -> None:
    logits, target, parts = batches()
    metric = M.ExpectedCalibrationError(num_bins=10)
    for part in parts:
        metric.update(logits[part], target[part])
    bins, expected = metric.bins, M.evaluate(logits, target, num_bins=10).bins
    for name in ("count", "confidence", "correct", "squares"):
        assert getattr(bins, name) == close(getattr(expected, name))
    metric.update(logits, target)
    assert bins.count.sum() == 500  # bins do not change later


def test_wrong_number_of_classes() -> None:
    with pytest.raises(ValueError, match=r"num_classes is 4,.* 5 classes"):
        M.ClasswiseCalibrationError(4).update(*batches()[:2])
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        M.ClasswiseCalibrationError(1)


WORKER = """
import datetime, sys, torch, torch.distributed as dist
from dualfocal import metrics as M

generator = torch.Generator().manual_seed(0)
LOGITS, TARGET = 2 * torch.randn(1001, 5, generator=generator), torch.randint(5, (1001,), generator=generator)

def values(mine):
    metrics = [M.ExpectedCalibrationError(), M.MaximumCalibrationError(), M.ClasswiseCalibrationError(5),
               M.BrierScore(), M.ExpectedCalibrationError(ignore_index=2)]
    for start in range(mine.start, mine.stop, 64):
        part = slice(start, min(start + 64, mine.stop))
        for metric in metrics:
            metric.update(LOGITS[part], TARGET[part])
    return [metric.compute().item() for metric in metrics]

def values_of_two(rank, port):
    address, timeout = f"tcp://127.0.0.1:{port}", datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=timeout)
    try:  # unequal shares and numbers of batches, then one process without any
        shares = (slice(0, 300), slice(0, 1001)) if rank == 0 else (slice(300, 1001), slice(0, 0))
        return [values(mine) for mine in shares]
    finally:
        dist.destroy_process_group()

if __name__ == "__main__":
    print(values_of_two(1, sys.argv[1]))
"""


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_two_processes_have_the_numbers_of_one(tmp_path: Path) -> None:
    """The first process is this one."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    worker = runpy.run_path(str(script))
    alone = worker["values"](slice(0, 1001))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-W", "ignore", script, port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        first = worker["values_of_two"](0, port)
        output, _ = other.communicate(timeout=120)
    for shares in (first, ast.literal_eval(output)):
        assert [close(value) for value in alone] == shares[0]
        assert [close(value) for value in alone] == shares[1]


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@for_each(name=PAIRS)
def test_nothing_seen_is_nan(name) -> None:
    metric = PAIRS[name][0]()
    assert metric.compute().isnan()
    metric.update(torch.zeros(3, 5), torch.full((3,), -100))
    assert metric.compute().isnan()


def test_small_integers_do_not_wrap() -> None:
    """-100 is 156 as a uint8."""
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    metric = M.ExpectedCalibrationError()
    metric.update(logits, torch.full((4,), 156, dtype=torch.uint8))
    assert int(metric.count.sum()) == 4
