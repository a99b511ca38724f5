"""The numbers a page carries: all of them, or a fair part that is large enough to be worth it."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dualfocal.metrics.rows import Rows, as_rows
from dualfocal.metrics.scan import scan
from dualfocal.report.embedded import BYTES, GRID, deal, embed, shares


def carried(rows: Rows, limit: float, **options: object) -> SimpleNamespace:
    description, text = embed(rows, scan(rows, scores=True), rows.values.float().argmax(1), limit, **options)
    return SimpleNamespace(**description, text=text)


def samples(n: int, num_classes: int, dtype: torch.dtype = torch.float32, **options: object) -> Rows:
    logits = 3 * torch.randn(n, num_classes, generator=torch.Generator().manual_seed(n)).to(dtype)
    return as_rows(logits, torch.arange(n) % num_classes, **{"input": "logits", **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_few_logits_are_all_there(dtype):
    rows = samples(50, 4, dtype)
    actual = carried(rows, 1e6)
    content = base64.b64decode(actual.text)
    assert (actual.kind, actual.count, actual.total, actual.temperatures) == ("logits", 50, 50, [])
    expected, start = rows.values.float(), 0
    if dtype == torch.float64:  # relative to the largest, and with what is known at T = 1 before it
        expected, start = (rows.values - rows.values.amax(1, keepdim=True)).float(), 800
        scanned = scan(rows, scores=True)
        assert np.array_equal(np.frombuffer(content, "<f8", 50), scanned.confidence.numpy())
        assert np.array_equal(np.frombuffer(content, "<f8", 50, 400), scanned.nll.numpy())
    assert actual.exact == (dtype == torch.float64)
    assert np.array_equal(np.frombuffer(content, "<f4", 200, start).reshape(50, 4), expected.numpy())
    assert np.array_equal(np.frombuffer(content, "<u4", 50, start + 800), rows.target.numpy())
    assert np.array_equal(np.frombuffer(content, "<u4", 50, start + 1000), rows.values.double().argmax(1).numpy())


def test_logits_that_float32_cannot_say():
    logits = torch.tensor([[1e300, -1e300, 0.0], [1.0, -torch.inf, 1 + 1e-12]], dtype=torch.float64)
    before = logits.clone()
    rows = as_rows(logits, torch.tensor([1, 0]), input="logits")
    description, text = embed(rows, scan(rows, scores=True), torch.tensor([0, 2]), 1e6)
    assert description["clipped"]
    lowest, content = float(np.finfo(np.float32).min), base64.b64decode(text)
    assert np.frombuffer(content, "<f8", 2, 16)[0] == 2e300
    values = np.frombuffer(content, "<f4", 6, 32).tolist()
    assert values[:3] == [0, lowest, lowest]
    assert values[3] == pytest.approx(-1e-12, rel=1e-3)
    assert values[4:] == [-np.inf, 0]
    assert np.frombuffer(content, "<u4")[-2:].tolist() == [0, 2]
    assert not carried(samples(5, 3, torch.float64), 1e6).clipped
    assert torch.equal(logits, before)


def test_input_of_many_classes_is_not_written_to():
    rows = samples(40, 200, torch.float64)
    before = rows.values.clone()
    assert carried(rows, 20_000).kind == "log_sums"
    assert torch.equal(rows.values, before)


def test_of_many_classes_what_the_slider_needs():
    rows = samples(40, 200)
    actual = carried(rows, 20_000, fitted=1.2345)
    assert (actual.kind, actual.count, actual.exact) == ("log_sums", 40, True)
    assert actual.temperatures == sorted([*GRID, 1.2345])
    assert 1.0 in actual.temperatures
    sums = np.frombuffer(base64.b64decode(actual.text), "<f4", 40 * 42, 640).reshape(40, 42)
    for k, temperature in enumerate(actual.temperatures):
        confidence = (rows.values.double() / temperature).softmax(1).amax(1)
        assert np.exp(-sums[:, k].astype(float)) == pytest.approx(confidence.numpy(), abs=1e-7)
    of_target = np.frombuffer(base64.b64decode(actual.text), "<f4", 40, 640 + 40 * 42 * 4)
    nll = torch.nn.functional.cross_entropy(rows.values.double(), rows.target, reduction="none")
    k = actual.temperatures.index(1.0)
    assert sums[:, k] - of_target == pytest.approx(nll.numpy(), abs=1e-5)


@pytest.mark.parametrize(("n", "num_classes", "limit"), [(10_000, 10, 100_000), (3000, 1000, 300_000), (7, 3, 5)])
def test_a_limit_is_kept_and_used(n, num_classes, limit):
    rows = samples(n, num_classes)
    actual = carried(rows, limit)
    assert actual.total == n > actual.count >= 1
    assert len(actual.text) <= max(limit + 4, (num_classes + 2) * BYTES + 4)
    assert len(actual.text) > 0.95 * limit


def test_a_part_is_random_and_the_same_each_time():
    rows = samples(1000, 3)
    parts = [carried(rows, 2000, seed=seed) for seed in (0, 0, 1)]
    assert parts[0] == parts[1]
    assert parts[0].text != parts[2].text
    target, predicted = np.frombuffer(base64.b64decode(parts[0].text), "<u4")[-2 * parts[0].count :].reshape(2, -1)
    assert set(target) == set(predicted) == {0, 1, 2}


def test_probabilities_of_class_one_stay_probabilities():
    scores = torch.tensor([0.25, 0.5, 1.0])
    rows = as_rows(scores, torch.tensor([0, 1, 1]), input="probs", binary="positive")
    actual = carried(rows, 1e6)
    assert (actual.kind, actual.positive, actual.numClasses, actual.edgeBits) == ("probs", True, 2, 24)
    assert np.frombuffer(base64.b64decode(actual.text), "<f4", 6, 48).tolist() == [0.75, 0.25, 0.5, 0.5, 0.0, 1.0]


def test_room_is_dealt_out():
    few, many, large = samples(100, 5), samples(500, 300), samples(20_000, 10)
    everything = deal([few, many], 1e7)
    assert [carried(r, limit).kind for r, limit in zip((few, many), everything, strict=True)] == [
        "logits",
        "logits",
    ]
    tight = deal([few, many, large], 300_000)
    assert sum(tight) == pytest.approx(300_000)
    actual = [carried(r, limit) for r, limit in zip((few, many, large), tight, strict=True)]
    assert [block.kind for block in actual] == ["logits", "log_sums", "logits"]
    assert [block.count == block.total for block in actual] == [True, True, False]
    assert shares([5, 5], 4) == [2, 2]
