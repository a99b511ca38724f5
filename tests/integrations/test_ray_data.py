"""Sums of a Ray data set have the numbers of all rows, whatever the blocks."""

from collections.abc import Iterator

import numpy as np
import pytest
from samples import softmax

from dualfocal.metrics import CalibrationSums, evaluate

ray = pytest.importorskip("ray", reason="make test-integrations installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray has warnings of its own

from dualfocal.integrations.ray_data import evaluate_dataset, sums_of_dataset  # noqa: E402

N, CLASSES = 600, 4
SAME = ("error", "nll", "brier", "ece", "mce", "classwise_ece")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def predictions() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((N, CLASSES)).astype(np.float32)
    target = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    target[::50] = -100
    return logits, target


@pytest.mark.parametrize("blocks", [1, 7])
def test_the_number_of_blocks_does_not_matter(predictions, blocks) -> None:
    logits, target = predictions
    dataset = ray.data.from_numpy(logits).rename_columns({"data": "scores"})
    dataset = dataset.zip(ray.data.from_numpy(target).rename_columns({"data": "label"})).repartition(blocks)
    actual = sums_of_dataset(dataset, logits="scores", target="label").evaluate(inference=False)
    expected = CalibrationSums.from_predictions(logits, target).evaluate(inference=False)
    for name in (*SAME, "adaptive_ece", "aurc"):
        assert getattr(actual, name) == pytest.approx(getattr(expected, name), abs=1e-12), name


@pytest.mark.parametrize("as_lists", [True, False])
def test_lists_and_one_column_per_class(predictions, as_lists) -> None:
    logits, target = predictions
    probs = softmax(logits)
    names = [f"p{c}" for c in range(CLASSES)]
    rows = [
        {"label": int(label), **({"p": p.tolist()} if as_lists else dict(zip(names, p.tolist(), strict=True)))}
        for p, label in zip(probs, target, strict=True)
    ]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    result = evaluate_dataset(dataset, probs="p" if as_lists else names, target="label")
    expected = evaluate(probs, target, input="probs", inference=True)
    assert result.num_samples == expected.num_samples
    for name in SAME:
        assert getattr(result, name) == pytest.approx(getattr(expected, name), abs=1e-9), name
    assert result.verdict().split(". ")[0] == expected.verdict().split(". ")[0]


@pytest.mark.parametrize("binary", ["top_label", "positive"])
def test_one_score_per_row(predictions, binary) -> None:
    logits, target = predictions
    score, label = logits[:, 1], (target == 1).astype(int)
    rows = [{"score": float(z), "label": int(y)} for z, y in zip(score, label, strict=True)]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    sums = sums_of_dataset(dataset, logits="score", target="label", binary=binary)
    expected = evaluate(score, label, input="logits", binary=binary, inference=False)
    for name in SAME:
        assert getattr(sums.evaluate(inference=False), name) == pytest.approx(getattr(expected, name), abs=1e-9), name


def test_blocks_without_samples(predictions) -> None:
    rows = [{"z": [0.0, 1.5], "y": y} for y in [-100] * 20 + [1] * 5]
    dataset = ray.data.from_items(rows, override_num_blocks=5)
    assert sums_of_dataset(dataset, logits="z", target="y").num_samples == 5
    with pytest.raises(ValueError, match="no samples"):
        sums_of_dataset(ray.data.from_items(rows[:20], override_num_blocks=2), logits="z", target="y")


def test_arguments() -> None:
    dataset = ray.data.from_items([{"z": [0.0, 1.5], "y": 1}])
    with pytest.raises(ValueError, match="either logits= or probs="):
        sums_of_dataset(dataset, target="y")
    with pytest.raises(Exception, match="no column 'label'"):
        sums_of_dataset(dataset, logits="z", target="label")
