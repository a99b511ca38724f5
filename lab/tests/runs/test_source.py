"""Predictions of a file or of a run folder."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dualfocal.predictions import PredictionsError, Reading
from dualfocal_lab.runs import Run
from dualfocal_lab.runs.layout import PREDICTIONS, RECIPE

LOGITS = {part: torch.arange(6.0).reshape(2, 3) + k for k, part in enumerate(("val", "test"))}
TARGET = torch.tensor([2, 0])


@pytest.fixture
def folder(tmp_path) -> Path:
    arrays = {f"{part}_logits": values for part, values in LOGITS.items()}
    save_file(arrays | {f"{part}_target": TARGET.clone() for part in LOGITS}, tmp_path / PREDICTIONS)
    return tmp_path


def test_a_run_folder_has_a_default_split_and_its_file_has_none(folder):
    for part, values in LOGITS.items():
        assert torch.equal(Reading().load(folder, run_split=part).values, values)
        assert torch.equal(Reading(split=part).load(folder).values, values)
        assert torch.equal(Run(folder).predictions(part)[0], values)
    with pytest.raises(PredictionsError, match=r"several splits \(test, val\).*--split"):
        Reading().load(folder / PREDICTIONS)


def test_a_default_split_is_for_names_with_splits(tmp_path):
    save_file({"logits": LOGITS["val"], "target": TARGET}, tmp_path / PREDICTIONS)
    data = Reading().load(tmp_path)
    assert torch.equal(data.values, LOGITS["val"])
    assert torch.equal(data.target, TARGET)
    assert data.path == tmp_path / PREDICTIONS


def test_folders_without_predictions(tmp_path):
    for load in (Reading().load, lambda path: Run(path).predictions()):
        with pytest.raises(PredictionsError, match=f"is not a run folder.*{PREDICTIONS}"):
            load(tmp_path)
    (tmp_path / RECIPE).write_text("{}")
    for load in (Reading().load, lambda path: Run(path).predictions()):
        with pytest.raises(PredictionsError, match="this run is not finished"):
            load(tmp_path)
