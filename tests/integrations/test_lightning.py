"""The callback and the torchmetrics classes in Lightning, in one process and in two."""

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from launch import meeting_place, start_pair, wait_for_end
from torch import Tensor
from torch.utils.data import DataLoader

from dualfocal import TemperatureScaling, evaluate, load_calibrator
from dualfocal.integrations.lightning import CalibrationCallback, checkpoint_calibrator
from dualfocal.metrics import ece

if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":  # in make test-integrations, a missing library is a failure
    pytest.importorskip("lightning", reason="make test-integrations installs it")
import lightning.pytorch as pl
import noisy_module
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from noisy_module import NUM_VALIDATION, TEST, VALIDATION, Noisy, loaders, overconfident, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*number of training batches", "ignore:.*isinstance.treespec"
)


def logits_of(model: Noisy, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model.layers(inputs)


# One process


def test_validation_logs_the_metrics_of_all_samples(tmp_path):
    model, callback = overconfident(), CalibrationCallback()
    validated = trainer(tmp_path, callbacks=[callback])
    validated.validate(model, loaders()[1], verbose=False)
    logged = {name: float(value) for name, value in validated.callback_metrics.items()}
    inputs, target = VALIDATION.tensors
    logits = logits_of(model, inputs)
    expected = evaluate(logits, target)
    for name in ("error", "nll", "brier", "ece", "classwise_ece", "mce"):
        assert logged[f"val/{name}"] == pytest.approx(getattr(expected, name), rel=1e-6), name
    calibrator = TemperatureScaling().fit(logits, target)
    assert logged["val/temperature"] == pytest.approx(float(calibrator.temperature), rel=1e-6)
    assert logged["val/temperature"] > 1.2
    assert logged["val/ece_calibrated"] == pytest.approx(float(ece(calibrator(logits), target)), rel=1e-6)
    assert logged["val/ece_calibrated"] < logged["val/ece"]
    for name in ("ece", "mce", "classwise_ece", "brier"):
        assert logged[f"metric/{name}"] == pytest.approx(getattr(expected, name), rel=1e-6), name


class Recorder(Callback):
    """Keeps what the calibration callback has after each validation, in the order of the callbacks."""

    def __init__(self, callback: CalibrationCallback) -> None:
        self.callback = callback
        self.epochs: list[tuple[int, float]] = []
        self.of_check: list[Any] = []

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self.of_check.append((self.callback.evaluation, self.callback.calibrator))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.epochs.append((self.callback.evaluation.num_samples, float(self.callback.calibrator.temperature)))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> dict[str, Any]:
    """A training of three epochs, with a check of one batch before it."""
    folder = tmp_path_factory.mktemp("fitted")
    torch.manual_seed(0)
    model, callback = Noisy(), CalibrationCallback()
    recorder = Recorder(callback)
    checkpoints = ModelCheckpoint(folder / "checkpoints", filename="{epoch}", save_top_k=-1)
    options = {"num_sanity_val_steps": 1, "enable_checkpointing": True, "logger": CSVLogger(folder), "max_epochs": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = trainer(folder, callbacks=[callback, recorder, checkpoints], log_every_n_steps=1, **options)
        run.fit(model, *loaders())
    return {
        "model": model,
        "callback": callback,
        "recorder": recorder,
        "trainer": run,
        "folder": folder / "checkpoints",
    }


def test_the_check_before_training_does_not_count(fitted):
    assert fitted["recorder"].of_check == [(None, None)]
    assert [num_samples for num_samples, _ in fitted["recorder"].epochs] == [NUM_VALIDATION] * 3


def test_each_checkpoint_has_the_temperature_of_its_weights(fitted):
    temperatures = [temperature for _, temperature in fitted["recorder"].epochs]
    assert len(set(temperatures)) == 3
    paths = [fitted["folder"] / f"epoch={epoch}.ckpt" for epoch in range(3)]
    assert [float(checkpoint_calibrator(path).temperature) for path in paths] == temperatures
    content = torch.load(paths[0], weights_only=True)
    model = Noisy()
    model.load_state_dict(content["state_dict"])
    inputs, target = VALIDATION.tensors
    calibrator = TemperatureScaling().fit(logits_of(model, inputs), target)
    assert temperatures[0] == pytest.approx(float(calibrator.temperature), rel=1e-6)


def test_the_last_calibrator_is_saved_beside_the_checkpoints(fitted):
    calibrator = load_calibrator(fitted["folder"] / "temperature.npz")
    assert float(calibrator.temperature) == fitted["recorder"].epochs[-1][1]
    assert calibrator.report.num_samples == NUM_VALIDATION


def test_every_epoch_reaches_the_logger(fitted):
    [file] = Path(fitted["trainer"].logger.log_dir).glob("metrics.csv")
    header, *lines = [line.split(",") for line in file.read_text().splitlines()]
    column = header.index("val/temperature")
    logged = [float(line[column]) for line in lines if line[column]]
    assert logged == pytest.approx([temperature for _, temperature in fitted["recorder"].epochs], rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint")
def test_a_test_set_is_scored_with_the_temperature_of_the_checkpoint(fitted, tmp_path):
    callback, model = CalibrationCallback(), Noisy()
    tested = trainer(tmp_path, callbacks=[callback])
    path = str(fitted["folder"] / "epoch=1.ckpt")
    tested.test(model, DataLoader(TEST, batch_size=30), ckpt_path=path, verbose=False)
    temperature = fitted["recorder"].epochs[1][1]
    assert float(callback.calibrator.temperature) == temperature
    inputs, target = TEST.tensors
    logits = logits_of(model, inputs)
    logged = tested.callback_metrics
    before, after = evaluate(logits, target), evaluate(logits / temperature, target)
    assert float(logged["test/ece"]) == pytest.approx(before.ece, rel=1e-5)
    assert float(logged["test/ece_calibrated"]) == pytest.approx(after.ece, rel=1e-5)
    assert float(logged["test/nll_calibrated"]) == pytest.approx(after.nll, rel=1e-5)
    assert callback.evaluation.num_samples == 80


def test_nothing_is_saved_without_checkpoints(tmp_path):
    callback = CalibrationCallback()
    run = trainer(tmp_path, callbacks=[callback], max_epochs=1)
    run.fit(Noisy(), *loaders())
    assert callback.calibrator.is_fitted
    assert list(tmp_path.rglob("*")) == []


def test_few_samples_are_a_warning_at_the_end(tmp_path):
    run = trainer(
        tmp_path, callbacks=[CalibrationCallback()], max_epochs=1, enable_checkpointing=True, limit_val_batches=1
    )
    with pytest.warns(UserWarning, match=r"10 samples.*at least 20"):
        run.fit(Noisy(), *loaders())
    assert len(list(tmp_path.rglob("temperature.npz"))) == 1


@pytest.mark.filterwarnings("ignore:.*defined a .validation_step. but have no")
def test_a_training_without_validation_is_a_warning(tmp_path):
    run = trainer(tmp_path, callbacks=[CalibrationCallback()], max_epochs=1)
    with pytest.warns(UserWarning, match="pass val_dataloaders"):
        run.fit(Noisy(), loaders()[0])


def test_the_callback_works_with_pytorch_lightning(tmp_path):
    other = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs[:, :4]

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
            return {"scores": self(batch[0]), "labels": batch[1]}

    callback = CalibrationCallback(logits="scores", target="labels", prefix="holdout_")
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    run = other.Trainer(callbacks=[callback], default_root_dir=tmp_path, **options)
    run.validate(Other(), loaders()[1], verbose=False)
    inputs, target = VALIDATION.tensors
    assert float(run.callback_metrics["holdout_ece"]) == pytest.approx(float(ece(inputs[:, :4], target)), rel=1e-6)


# What a step returns


class Returns(pl.LightningModule):
    """A module whose validation step returns what a test says."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.outputs = outputs

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return self.outputs


def validate(outputs: Any, folder: Path, **options: Any) -> CalibrationCallback:
    callback = CalibrationCallback(**options)
    run = trainer(folder, callbacks=[callback], limit_val_batches=1)
    run.validate(Returns(outputs), loaders()[1], verbose=False)
    return callback


LOGITS, TARGET = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (None, TypeError, 'validation_step must return {"logits": logits, "target": target}, got NoneType'),
        (LOGITS.sum(), TypeError, "got Tensor"),
        ({"logits": LOGITS, "labels": TARGET}, ValueError, "the keys are 'logits', 'labels'"),
        ({"logits": LOGITS, "target": torch.eye(3).repeat(10, 1)}, ValueError, "target.argmax(1)"),
        ({"logits": LOGITS, "target": torch.ones(30, 3).long()}, ValueError, "task='multilabel'"),
        ({"logits": LOGITS.softmax(1), "target": TARGET}, ValueError, 'input="probs"'),
        ({"logits": LOGITS, "target": TARGET + 1}, IndexError, "subtract 1"),
        ({"logits": LOGITS * torch.nan, "target": TARGET}, ValueError, "must not be NaN"),
        ({"logits": LOGITS, "target": torch.full((30,), -100)}, ValueError, "every target is ignore_index"),
    ],
)
def test_wrong_outputs_are_an_error_with_a_remedy(tmp_path, outputs, error, message):
    with pytest.raises(error, match=re.escape(message)):
        validate(outputs, tmp_path)


def test_wrong_outputs_are_noticed_before_training(tmp_path):
    model = overconfident()
    model.validation_step = lambda batch, batch_idx: None
    run = trainer(tmp_path, callbacks=[CalibrationCallback()], num_sanity_val_steps=1, max_epochs=1)
    with pytest.raises(TypeError, match="validation_step must return"):
        run.fit(model, *loaders())
    assert torch.equal(model.layers[0].weight, overconfident().layers[0].weight)


def test_probabilities_and_dense_predictions_are_supported(tmp_path):
    expected = validate({"logits": LOGITS, "target": TARGET}, tmp_path)
    probs = validate({"logits": LOGITS.double().softmax(1), "target": TARGET}, tmp_path, input="probs")
    assert probs.evaluation.ece == pytest.approx(expected.evaluation.ece, rel=1e-6)
    assert float(probs.calibrator.temperature) == pytest.approx(float(expected.calibrator.temperature), rel=1e-5)
    target = torch.cat([TARGET, torch.full((6,), -100)]).view(4, 9)
    dense = torch.cat([LOGITS, torch.full((6, 3), torch.nan)]).view(4, 9, 3).movedim(2, 1)
    images = validate({"logits": dense, "target": target}, tmp_path)
    assert images.evaluation.to_dict() == expected.evaluation.to_dict()
    assert float(images.calibrator.temperature) == float(expected.calibrator.temperature)


def test_the_second_of_two_data_loaders_can_be_chosen(tmp_path):
    class Two(Noisy):
        def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int) -> Any:
            return self.test_step(batch, batch_idx) if dataloader_idx == 1 else None

    callback = CalibrationCallback(dataloader_idx=1)
    run = trainer(tmp_path, callbacks=[callback])
    run.validate(Two(), [loaders()[1], DataLoader(TEST, batch_size=30)], verbose=False)
    assert callback.evaluation.num_samples == 80
    assert "val/ece" in run.callback_metrics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filename": "t.pt"}, "end in .npz, got 't.pt'"),
        ({"max_samples": 1}, "max_samples must be at least 2, got 1"),
        ({"num_bins": 0}, "num_bins must be at least 1"),
        ({"input": "probabilities"}, "input must be one of"),
    ],
)
def test_wrong_options_are_an_error(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CalibrationCallback(**options)


def test_without_lightning_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("dualfocal.integrations.lightning.callback.Callback", object)
    with pytest.raises(ImportError, match=re.escape('pip install "dualfocal[lightning]"')):
        CalibrationCallback()


def test_a_checkpoint_without_temperature_is_an_error(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="contains no temperature"):
        checkpoint_calibrator(tmp_path / "plain.ckpt")


def state(calibrator: Any) -> dict[str, Any]:
    return {"callbacks": {"CalibrationCallback[val/]": {"calibrator": calibrator}}}


NO_CHECKPOINTS = {
    "list": [1.5],
    "callbacks": {"callbacks": [1.5]},
    "calibrator": state(None),
    "without temperature": state({}),
    "text": state({"temperature": "1.5"}),
    "vector": state({"temperature": torch.tensor([1.5, 2.0])}),
    "NaN": state({"temperature": torch.tensor(torch.nan)}),
    "negative": state({"temperature": torch.tensor(-1.5)}),
    "objects": state({"temperature": torch.tensor(1.5)}) | {"hyper_parameters": Path("a")},
}


@pytest.mark.parametrize("content", NO_CHECKPOINTS.values(), ids=NO_CHECKPOINTS)
def test_a_file_that_is_no_checkpoint_is_one_line(content, tmp_path):
    torch.save(content, tmp_path / "bad.ckpt")
    with pytest.raises(ValueError, match=r"^\S*bad\.ckpt: [^\n]*$"):
        checkpoint_calibrator(tmp_path / "bad.ckpt")


DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "no end": lambda content: content[:-30],
    "text": lambda content: b"epoch 1\n",
    "pickle": lambda content: content.replace(b"temperature", b"temperat\xffre"),
    "byte order": lambda content: content.replace(b"little", b"middle"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_one_line(damage, tmp_path):
    path = tmp_path / "bad.ckpt"
    torch.save(state({"temperature": torch.tensor(1.5)}), path)
    assert float(checkpoint_calibrator(path).temperature) == 1.5
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"^\S*bad\.ckpt: [^\n]*$"):
        checkpoint_calibrator(path)


def test_a_missing_checkpoint_and_a_folder_are_one_line(tmp_path):
    for path in (tmp_path / "missing.ckpt", tmp_path):
        with pytest.raises(ValueError, match=re.escape(f"{path}: ")):
            checkpoint_calibrator(path)


@pytest.mark.parametrize(("limit", "stride"), [(NUM_VALIDATION, 1), (NUM_VALIDATION - 1, 2), (NUM_VALIDATION // 4, 4)])
def test_kept_rows_are_evenly_spread_and_at_most_the_limit(limit, stride, tmp_path):
    callback, model = CalibrationCallback(max_samples=limit), overconfident()
    trainer(tmp_path, callbacks=[callback]).validate(model, loaders()[1], verbose=False)
    inputs, target = VALIDATION.tensors
    expected = TemperatureScaling().fit(logits_of(model, inputs)[::stride], target[::stride])
    assert callback.calibrator.report.num_samples == expected.report.num_samples <= limit
    assert float(callback.calibrator.temperature) == pytest.approx(float(expected.temperature), rel=1e-4)


# Two processes


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two processes logs for the validation of a module, each with half of the samples."""
    folder = tmp_path_factory.mktemp("pair")
    store, variables = meeting_place(), {"TORCHELASTIC_RUN_ID": "pair", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    processes = start_pair([noisy_module.__file__, str(folder)], store, (folder, folder), **variables)
    for code, _, err in wait_for_end(processes):
        assert code == 0, err
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_log_the_numbers_of_one(pair, tmp_path):
    callback = CalibrationCallback(inference=True)
    validated = trainer(tmp_path, callbacks=[callback])
    validated.validate(overconfident(), loaders()[1], verbose=False)
    single = {name: float(value) for name, value in validated.callback_metrics.items()}
    assert {"val/ece", "val/nll", "val/brier", "val/error", "val/ece_floor", "metric/classwise_ece"} <= single.keys()
    for process in pair:
        assert process["shares"] == NUM_VALIDATION // 2
        assert process["evaluation"].keys() == callback.evaluation.to_dict().keys()
        assert process["evaluation"]["ece"] == pytest.approx(callback.evaluation.ece, abs=1e-12)
        assert process["logged"] == pytest.approx(single, rel=1e-6)


def test_the_streaming_metrics_of_two_processes_are_those_of_the_functions(pair):
    inputs, target = VALIDATION.tensors
    expected = evaluate(logits_of(overconfident(), inputs), target)
    for process in pair:
        for name in ("ece", "mce", "classwise_ece", "brier"):
            assert process["logged"][f"metric/{name}"] == pytest.approx(getattr(expected, name), rel=1e-6), name


def test_two_processes_fit_and_save_the_same_temperature(pair):
    assert pair[0]["temperature"] == pair[1]["temperature"]
    [file] = Path(pair[0]["folder"]).glob("*.npz")
    calibrator = load_calibrator(file)
    assert float(calibrator.temperature) == pair[0]["temperature"]
    assert calibrator.report.num_samples == NUM_VALIDATION
