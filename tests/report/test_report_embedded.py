"""The numbers that a page carries for its scripts: all of them, or a random part that fits."""

import numpy as np
import pytest
import torch
from report_pages import arrays_of, contents_of, predictions

from dualfocal.predictions import Reading
from dualfocal.report import write_report


def carried(folder, values: torch.Tensor, target: torch.Tensor, **options) -> dict:
    write_report({"m": (values, target)}, folder / "p.html", **{"calibrators": (), "input": "logits"} | options)
    return arrays_of(folder / "p.html")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_few_logits_are_all_there(tmp_path, dtype):
    logits, target = predictions(50, 4)
    logits = logits.to(dtype)
    actual = carried(tmp_path, logits, target)
    assert (actual["kind"], actual["count"], actual["total"]) == ("logits", 50, 50)
    assert actual["exact"] == (dtype == torch.float64)
    if actual["exact"]:  # relative to the largest, with the numbers at T = 1
        nll = torch.nn.functional.cross_entropy(logits, target, reduction="none")
        assert torch.allclose(actual["nll"], nll, rtol=1e-12)
        logits = logits - logits.amax(1, keepdim=True)
    assert torch.equal(actual["values"], logits.float())
    assert torch.equal(actual["target"], target)
    assert torch.equal(actual["predicted"], logits.argmax(1))


def test_logits_that_float32_cannot_hold(tmp_path):
    logits = torch.tensor([[1e300, -1e300, 0.0], [1.0, -torch.inf, 1 + 1e-12]], dtype=torch.float64)
    before = logits.clone()
    actual = carried(tmp_path, logits, torch.tensor([1, 0]))
    lowest = float(np.finfo(np.float32).min)
    assert actual["clipped"]
    assert float(actual["nll"][0]) == 2e300
    assert actual["values"][0].tolist() == [0, lowest, lowest]
    assert actual["values"][1].tolist() == [pytest.approx(-1e-12, rel=1e-3), -np.inf, 0]
    assert actual["predicted"].tolist() == [0, 2]
    assert torch.equal(logits, before)


def test_many_classes_are_carried_as_sums_by_temperature(pages, folder):
    actual = arrays_of(pages("many"))
    with np.load(folder / "many.npz") as file:
        logits, target = torch.from_numpy(file["logits"]).double(), torch.from_numpy(file["target"])
    assert (actual["kind"], actual["count"]) == ("log_sums", 800)
    assert 1.0 in actual["temperatures"]
    for k, temperature in enumerate(actual["temperatures"]):
        confidence = (logits / temperature).softmax(1).amax(1)
        assert torch.allclose((-actual["log_sums"][:, k].double()).exp(), confidence, atol=1e-6)
    nll = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    k = actual["temperatures"].index(1.0)
    assert torch.allclose((actual["log_sums"][:, k] - actual["of_target"]).double(), nll, atol=1e-4)


def test_a_part_is_random_and_fills_its_limit(pages, folder):
    actual, text = arrays_of(pages("part")), pages("part").read_text()
    assert 1 < actual["count"] < actual["total"] == 6000
    values = text.partition('id="values-0">')[2].partition("<")[0]
    assert 95_000 < len(values) <= 100_004
    with np.load(folder / "part.npz") as file:
        logits = torch.from_numpy(file["logits"])
    assert not torch.equal(actual["values"], logits[: actual["count"]])
    assert set(map(tuple, actual["values"].tolist())) <= set(map(tuple, logits.tolist()))


def test_probabilities_of_class_1_stay_probabilities(tmp_path):
    reading = Reading(binary="positive")
    actual = carried(tmp_path, torch.tensor([0.25, 0.5, 1.0]), torch.tensor([0, 1, 1]), input="probs", reading=reading)
    assert (actual["kind"], actual["positive"], actual["numClasses"]) == ("probs", True, 2)
    assert actual["values"].tolist() == [[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]]


def test_models_share_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("dualfocal.report.html.MOST_BYTES", 1_400_000)
    models = {"few": predictions(100, 5), "large": predictions(60_000, 10)}
    assert write_report(models, tmp_path / "p.html", calibrators=()) <= 1_400_000
    few, large = (run["data"] for run in contents_of(tmp_path / "p.html")["runs"])
    assert few["count"] == few["total"] == 100
    assert large["count"] < large["total"] == 60_000
