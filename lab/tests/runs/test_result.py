"""`RunResult` reads every result file exactly, and names what a damaged one lacks."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_results import make_result

from dualfocal.metrics import evaluate
from dualfocal_lab.runs import RunError, RunResult
from dualfocal_lab.runs.result import Scaled

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("**/result.json"))


@pytest.fixture(scope="module")
def result() -> RunResult:
    rng = torch.Generator().manual_seed(0)
    logits, target = torch.randn(200, 3, generator=rng), torch.randint(3, (200,), generator=rng)
    parts = {part: evaluate(logits, target, inference=True) for part in ("val", "test")}
    scaled = {part: evaluate(logits / 2, target, inference=True) for part in ("val", "test")}
    return make_result(parts, {"temperature": Scaled(2.0, scaled)}, notes=["a note"])


def test_result_files_are_read_and_written_to_the_letter() -> None:
    assert len(RESULTS) >= 10
    for path in RESULTS:
        content = json.loads(path.read_text())
        content.pop("crc32", None)
        assert json.dumps(RunResult.from_dict(content).to_dict()) == json.dumps(content), path


def test_numbers_by_part_and_temperature(result: RunResult) -> None:
    test, scaled = result.parts["test"], result.calibrated["temperature"].parts["test"]
    assert result.evaluation() is test
    assert result.evaluation("test", "temperature") is scaled
    assert result.temperature() == 2.0
    assert test.inference is not None
    assert scaled.inference is not None
    assert result.floor("ece") == test.inference.floors["ece"].mean
    assert result.floor("mce", scaled_by="temperature") == scaled.inference.floors["mce"].mean


def test_infinite_scores_stay_infinite() -> None:
    logits = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    never = make_result({"test": evaluate(logits, torch.tensor([1, 1]))})
    content = never.to_dict()
    assert content["test"]["nll"] is None
    assert RunResult.from_dict(content).evaluation().nll == math.inf
    assert RunResult.from_dict(content).to_dict() == content


def test_a_part_or_a_temperature_that_is_missing_is_named(result: RunResult) -> None:
    content = result.to_dict()
    only_test = RunResult.from_dict({name: content[name] for name in content if name not in ("val", "calibrated")}, "r")
    assert only_test.main_part == "test"
    with pytest.raises(RunError, match=r"^r: has no metrics of a val part$"):
        only_test.evaluation("val")
    with pytest.raises(RunError, match=r"^r: has no temperature_ece"):
        only_test.temperature("temperature_ece")
    with pytest.raises(RunError, match=r"^r: has no floor of nll"):
        only_test.floor("nll")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content.pop("device"), "it lacks 'device'"),
        (lambda content: content["test"].pop("mce"), "it lacks 'mce'"),
        (lambda content: content["calibrated"]["temperature"].pop("temperature"), "it lacks 'temperature'"),
        (lambda content: content.update(seconds="long"), "seconds must be a number, got 'long'"),
        (lambda content: content.update(sessions=None), "sessions must be a list, got None"),
        (lambda content: content["test"].update(ece="much"), "'much'"),
        (lambda content: content["test"].update(bins=3), ""),
    ],
)
def test_damage_is_named(result: RunResult, damage: Callable[[dict[str, Any]], object], words: str) -> None:
    content = json.loads(json.dumps(result.to_dict()))
    damage(content)
    with pytest.raises(RunError, match=f"^a/result.json: is damaged: .*{words}"):
        RunResult.from_dict(content, "a/result.json")


def test_the_table_has_a_column_for_each_temperature(result: RunResult) -> None:
    table = result.table("test")
    assert table.headings == ["", "uncalibrated", "T = 2, by NLL"]
    assert table.title == "test part, weights of epoch 2, 1.5 s of training"
    rows = {row[0]: row[1:] for row in table.rows}
    both = result.evaluation(), result.evaluation(scaled_by="temperature")
    assert rows["NLL [nats]"] == [f"{evaluation.nll:.4f}" for evaluation in both]
    assert rows["  floor [%]"][0] == f"{100 * result.floor('ece'):.2f}"
