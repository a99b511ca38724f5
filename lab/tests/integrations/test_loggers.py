"""The callbacks for MLflow and Weights & Biases in docs/extending.md, offline."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from dualfocal_lab.runs import Run
from dualfocal_lab.train import result as train_result
from dualfocal_lab.train import train
from dualfocal_lab.train.presets import preset

PAGE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the loggers


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",  # the plain files of mlflow-skinny; a database needs all of MLflow
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(train_result, "metrics_of", lambda predictions: ({}, {}))


def trained_with(name: str) -> Run:
    """Train for two epochs with the callback that the page has in a file of this name."""
    [code] = re.findall(rf"^```python\n# {name}\.py\n(.*?)^```", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    [callback] = [value() for value in names.values() if isinstance(value, type)]
    return train(preset("digits", ["epochs=2"]), "run", progress=False, device="cpu", callbacks=[callback])


def test_mlflow_has_the_numbers_of_the_log() -> None:
    mlflow = pytest.importorskip("mlflow")
    run = trained_with("my_mlflow")
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    [logged] = client.search_runs(["0"])
    assert (logged.info.run_name, logged.info.status) == ("run", "FINISHED")
    for name in ("lr", "train_loss", "val_error", "val_ece"):
        history = client.get_metric_history(logged.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == [(line["epoch"], line[name]) for line in run.log]


def test_wandb_has_the_numbers_of_the_log() -> None:
    wandb = pytest.importorskip("wandb")
    run = trained_with("my_wandb")
    assert wandb.run is None  # it is finished
    [file] = Path("wandb").glob("offline-run-*/run-*.wandb")
    expected = {json.dumps(line[name]).encode() for line in run.log for name in ("train_loss", "val_nll", "val_ece")}
    end = time.monotonic() + 30  # a process of wandb writes the file after the run is finished
    while (missing := {number for number in expected if number not in file.read_bytes()}) and time.monotonic() < end:
        time.sleep(0.1)
    assert not missing  # numbers are stored as text
