"""The result of a finished run: metrics before and after temperature scaling, versions, and the commit."""

import json
import math
import platform
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import metric_oracles
import numpy as np
import pytest
import torch
from run_results import make_result
from torch import Tensor

import dualfocal
from dualfocal import TemperatureScaling
from dualfocal.metrics import evaluate
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import result as train_result
from dualfocal_lab.train import train
from dualfocal_lab.train.result import commit, metrics_of

FRACTIONS = ("error", "ece", "adaptive_ece", "classwise_ece", "mce", "aurc", "confidence", "accuracy")


def sharp(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits that are twice as large as they should be."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(number, 5, generator=rng)
    return 2 * logits, torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]


@pytest.fixture(scope="module")
def predictions() -> dict[str, tuple[Tensor, Tensor]]:
    return {"val": sharp(400, 0), "test": sharp(300, 1)}


def ece_by_hand(logits: Tensor, target: Tensor) -> float:
    probs = [metric_oracles.softmax(row) for row in logits.double().tolist()]
    return metric_oracles.ece(*metric_oracles.top_label(probs, target.tolist()), metric_oracles.equal_width(15))


# Metrics.


def metrics(predictions: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Return the metrics as result.json has them."""
    content = make_result(*metrics_of(predictions)).to_dict()
    return {name: content[name] for name in ("val", "test", "calibrated") if name in content}


def test_metrics_are_those_of_evaluate(predictions: dict[str, tuple[Tensor, Tensor]]) -> None:
    actual = metrics(predictions)
    assert actual.keys() == {"val", "test", "calibrated"}
    for part, entry in predictions.items():
        assert actual[part] == evaluate(*entry, inference=True).to_dict()
        assert actual[part]["ece"] == pytest.approx(ece_by_hand(*entry), abs=1e-7)


def test_temperatures_are_fitted_on_validation_alone(predictions: dict[str, tuple[Tensor, Tensor]]) -> None:
    actual = metrics(predictions)["calibrated"]
    assert actual.keys() == {"temperature", "temperature_ece"}
    by_nll = TemperatureScaling().fit(*predictions["val"])
    by_ece = TemperatureScaling("ece").fit(*predictions["val"])
    assert actual["temperature"]["temperature"] == by_nll.temperature.item() == pytest.approx(2, abs=0.3)
    assert actual["temperature_ece"]["temperature"] == by_ece.temperature.item()
    for entry, calibrator in ((actual["temperature"], by_nll), (actual["temperature_ece"], by_ece)):
        assert entry.keys() == {"temperature", "val", "test"}
        for part, (logits, target) in predictions.items():
            assert entry[part] == evaluate(calibrator(logits), target, inference=True).to_dict()
            scaled = evaluate(logits / entry["temperature"], target)
            assert entry[part]["nll"] == pytest.approx(scaled.nll, rel=1e-5)
            assert entry[part]["error"] == scaled.error
    other = metrics({**predictions, "test": sharp(100, 9)})["calibrated"]
    assert [entry["temperature"] for entry in other.values()] == [entry["temperature"] for entry in actual.values()]
    assert [entry["val"] for entry in other.values()] == [entry["val"] for entry in actual.values()]


def test_temperature_by_ece_is_the_first_minimum_of_the_published_grid(
    predictions: dict[str, tuple[Tensor, Tensor]],
) -> None:
    logits, target = predictions["val"]
    grid = [k / 10 for k in range(1, 101)]
    errors = [ece_by_hand(logits / t, target) for t in grid]
    actual = metrics(predictions)["calibrated"]["temperature_ece"]
    assert actual["temperature"] in grid
    assert errors[grid.index(actual["temperature"])] == pytest.approx(min(errors), abs=1e-6)
    assert actual["val"]["ece"] == pytest.approx(min(errors), abs=1e-6)
    assert all(error > min(errors) - 1e-7 for error in errors[: grid.index(actual["temperature"])])


def test_metrics_without_a_part(predictions: dict[str, tuple[Tensor, Tensor]]) -> None:
    assert metrics({"test": predictions["test"]}).keys() == {"test"}
    actual = metrics({"val": predictions["val"]})
    assert actual.keys() == {"val", "calibrated"}
    assert actual["calibrated"]["temperature"].keys() == {"temperature", "val"}
    assert metrics({}) == {}


@pytest.mark.parametrize("number", [1, 2])
def test_metrics_of_a_handful_can_be_written(number: int) -> None:
    """A metric that is undefined for so few samples is null, never NaN."""
    actual = metrics({"val": sharp(number, 0), "test": sharp(1, 1)})
    assert json.loads(json.dumps(actual, allow_nan=False)) == actual


def test_metrics_of_predictions_without_a_mistake() -> None:
    target = torch.arange(40) % 4
    logits = 2 * torch.eye(4)[target] + 0.01 * torch.arange(40)[:, None]  # no two rows are equal
    actual = metrics({"val": (logits, target), "test": (logits, target)})
    assert actual["test"]["error"] == 0
    assert 0 < actual["calibrated"]["temperature"]["temperature"] < 1
    json.dumps(actual, allow_nan=False)


# result.json.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("result")
    rng = np.random.default_rng(0)
    target = np.arange(150) % 3
    np.savez(
        folder / "own.npz", x=(rng.normal(size=(3, 8, 8))[target] + rng.normal(size=(150, 8, 8)))[:, None], y=target
    )
    recipe = Recipe(
        data=str(folder / "own.npz"),
        data_options={"layout": "NCHW", "val_size": 30, "test_size": 40},
        model="small_cnn",
        epochs=2,
        milestones=(1,),
        lr=0.01,
    )
    return train(recipe, folder / "run", device="cpu", progress=False)


def test_result_is_strict_json_of_fractions(finished: Run) -> None:
    for name in ("result.json", "recipe.json"):
        json.loads((finished.path / name).read_text(encoding="utf-8"), parse_constant=pytest.fail)
    for line in (finished.path / "log.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)
    result = finished.result.to_dict()
    for entry in (result, *result["calibrated"].values()):
        for part in ("val", "test"):
            assert all(0 <= entry[part][name] <= 1 for name in FRACTIONS)
    assert result["schema"] == 1
    assert result["test"]["num_samples"] == 40
    assert result["val"]["num_samples"] == 30


def test_result_has_the_metrics_of_the_stored_predictions(finished: Run) -> None:
    expected = metrics({part: finished.predictions(part) for part in ("val", "test")})
    assert {name: finished.result.to_dict()[name] for name in expected} == expected


def test_result_says_what_was_trained_on_what(finished: Run) -> None:
    result = finished.result.to_dict()
    assert result["data"] == "own: 80 train, 30 val, 40 test; 3 classes; 1 x 8 x 8 float32"
    assert (result["num_classes"], result["in_channels"]) == (3, 1)
    assert result["num_weights"] == sum(weight.numel() for weight in finished.model().parameters())
    assert result["epochs"] == result["weights_of_epoch"] == 2
    assert result["notes"] == []
    assert result["seconds"] == pytest.approx(math.fsum(line["seconds"] for line in finished.log))
    assert result["versions"] == {
        "dualfocal": dualfocal.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    assert result["device"].endswith("cores")
    assert (result["commit"] or "").rstrip("+") == (commit() or "").rstrip("+")


def test_result_lists_its_sessions(finished: Run) -> None:
    (only,) = finished.result.sessions
    assert only["from_epoch"] == 1
    assert (only["processes"], only["threads"]) == (1, torch.get_num_threads())
    started = datetime.fromisoformat(only["started"])
    assert started.utcoffset() == timedelta(0)
    assert timedelta(0) <= datetime.now(UTC) - started < timedelta(minutes=30)
    for name in ("device", "versions", "commit"):
        assert only[name] == finished.result.to_dict()[name]


# The commit.


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with result.py in it, as if the package ran from there."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "repository" / "src" / "dualfocal" / "train" / "result.py"
    file.parent.mkdir(parents=True)
    shutil.copy(train_result.__file__, file)
    (tmp_path / "repository" / "README.md").write_text("hello\n")
    git(tmp_path / "repository", "init", "--quiet")
    git(tmp_path / "repository", "add", ".")
    git(tmp_path / "repository", "commit", "--quiet", "-m", "all")
    monkeypatch.setattr(train_result, "__file__", str(file))
    return tmp_path / "repository"


def test_commit_of_a_checkout_has_a_plus_if_the_package_has_changes(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert len(head) >= 40
    assert commit() == head
    (checkout / "README.md").write_text("changed\n")
    assert commit() == head  # files outside the package do not count
    added = checkout / "src" / "dualfocal" / "new.py"
    added.write_text("")
    assert commit() == f"{head}+"
    added.unlink()
    assert commit() == head
    (checkout / "src" / "dualfocal" / "train" / "result.py").write_text("# changed\n")
    assert commit() == f"{head}+"


def test_commit_of_an_installation_inside_another_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a virtual environment in a user's project, whose commit is not ours."""
    file = checkout / ".venv" / "dualfocal" / "train" / "result.py"
    file.parent.mkdir(parents=True)
    shutil.copy(train_result.__file__, file)
    monkeypatch.setattr(train_result, "__file__", str(file))
    assert commit() is None


def test_commit_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    file = tmp_path / "result.py"
    shutil.copy(train_result.__file__, file)
    monkeypatch.setattr(train_result, "__file__", str(file))
    assert commit() is None


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)])
def test_commit_without_git(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert commit() is None
