"""The numbers a page carries: all of them, or a fair part that is large enough to be worth it."""

import base64

import numpy as np
import pytest
import torch

from dualfocal.metrics._rows import Rows, as_rows
from dualfocal.report.embedded import BYTES, GRID, deal, embed, shares


def samples(n: int, num_classes: int, dtype: torch.dtype = torch.float32, **options: object) -> Rows:
    logits = 3 * torch.randn(n, num_classes, generator=torch.Generator().manual_seed(n)).to(dtype)
    return as_rows(logits, torch.arange(n) % num_classes, **{"input": "logits", **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_few_logits_are_all_there(dtype):
    rows = samples(50, 4, dtype)
    found = embed(rows, rows.values.float().argmax(1), 1e6)
    content = base64.b64decode(found.text)
    assert (found.kind, found.count, found.total, found.temperatures) == ("logits", 50, 50, ())
    assert np.array_equal(np.frombuffer(content, "<f4", 200).reshape(50, 4), rows.values.float().numpy())
    assert np.array_equal(np.frombuffer(content, "<u4", 50, 800), rows.target.numpy())


def test_of_many_classes_what_the_slider_needs():
    rows = samples(40, 200)
    found = embed(rows, rows.values.argmax(1), 20_000, fitted=1.2345)
    assert (found.kind, found.count) == ("log_sums", 40)
    assert found.temperatures == tuple(sorted([*GRID, 1.2345]))
    assert 1.0 in found.temperatures
    sums = np.frombuffer(base64.b64decode(found.text), "<f4", 40 * 42).reshape(40, 42)
    for k, temperature in enumerate(found.temperatures):
        confidence = (rows.values.double() / temperature).softmax(1).amax(1)
        assert np.exp(-sums[:, k].astype(float)) == pytest.approx(confidence.numpy(), abs=1e-7)
    of_target = np.frombuffer(base64.b64decode(found.text), "<f4", 40, 40 * 42 * 4)
    nll = torch.nn.functional.cross_entropy(rows.values.double(), rows.target, reduction="none")
    k = found.temperatures.index(1.0)
    assert sums[:, k] - of_target == pytest.approx(nll.numpy(), abs=1e-5)


@pytest.mark.parametrize(("n", "num_classes", "limit"), [(10_000, 10, 100_000), (3000, 1000, 300_000), (7, 3, 5)])
def test_a_limit_is_kept_and_used(n, num_classes, limit):
    rows = samples(n, num_classes)
    found = embed(rows, rows.values.argmax(1), limit)
    assert found.total == n > found.count >= 1
    assert len(found.text) <= max(limit + 4, (num_classes + 1) * BYTES + 4)
    assert len(found.text) > 0.95 * limit


def test_a_part_is_random_and_the_same_each_time():
    rows = samples(1000, 3)
    parts = [embed(rows, rows.values.argmax(1), 2000, seed=seed) for seed in (0, 0, 1)]
    assert parts[0] == parts[1]
    assert parts[0].text != parts[2].text
    target = np.frombuffer(base64.b64decode(parts[0].text), "<u4")[-parts[0].count :]
    assert set(target) == {0, 1, 2}


def test_probabilities_of_class_one_stay_probabilities():
    scores = torch.tensor([0.25, 0.5, 1.0])
    rows = as_rows(scores, torch.tensor([0, 1, 1]), input="probs", binary="positive")
    found = embed(rows, rows.values.argmax(1), 1e6)
    assert (found.kind, found.positive, found.num_classes) == ("probs", True, 2)
    assert np.frombuffer(base64.b64decode(found.text), "<f4", 6).tolist() == [0.75, 0.25, 0.5, 0.5, 0.0, 1.0]


def test_room_is_dealt_out():
    few, many, large = samples(100, 5), samples(500, 300), samples(20_000, 10)
    everything = deal([few, many], 1e7)
    assert [embed(r, r.values.argmax(1), limit).kind for r, limit in zip((few, many), everything, strict=True)] == [
        "logits",
        "logits",
    ]
    tight = deal([few, many, large], 300_000)
    assert sum(tight) == pytest.approx(300_000)
    found = [embed(r, r.values.argmax(1), limit) for r, limit in zip((few, many, large), tight, strict=True)]
    assert [of.kind for of in found] == ["logits", "log_sums", "logits"]
    assert [of.count == of.total for of in found] == [True, True, False]
    assert shares([5, 5], 4) == [2, 2]
