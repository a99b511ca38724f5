"""A small classifier for Lightning, trained by a test, or as one of the processes that a test starts.

python noisy_module.py FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

from dualfocal import DualFocalLoss
from dualfocal.integrations.lightning import CalibrationCallback
from dualfocal.metrics import (
    BrierScore,
    ClasswiseCalibrationError,
    ExpectedCalibrationError,
    MaximumCalibrationError,
)

NUM_CLASSES, NUM_VALIDATION = 4, 96


def samples(num_samples: int, seed: int) -> TensorDataset:
    """Points around the centres of the classes, near enough to each other to be confused."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(NUM_CLASSES, (num_samples,), generator=generator)
    centres = torch.eye(NUM_CLASSES, 6)
    return TensorDataset(centres[target] + 0.7 * torch.randn(num_samples, 6, generator=generator), target)


TRAINING, VALIDATION, TEST = samples(64, 1), samples(NUM_VALIDATION, 2), samples(80, 3)


def streaming_metrics() -> MetricCollection:
    return MetricCollection(
        {
            "ece": ExpectedCalibrationError(),
            "mce": MaximumCalibrationError(),
            "classwise_ece": ClasswiseCalibrationError(NUM_CLASSES),
            "brier": BrierScore(),
        },
        prefix="metric/",
    )


class Noisy(pl.LightningModule):
    """A network that over-fits in a few epochs, and whose steps return what the callback needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, NUM_CLASSES))
        self.criterion = DualFocalLoss()
        self.metrics = streaming_metrics()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.criterion(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        logits = self.layers(batch[0])
        self.metrics.update(logits, batch[1])
        self.log_dict(self.metrics)
        return {"logits": logits, "target": batch[1]}

    def test_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return {"logits": self.layers(batch[0]), "target": batch[1]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    """A quiet Trainer on the CPU."""
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(**(defaults | options))


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(TRAINING, batch_size=16), DataLoader(VALIDATION, batch_size=10)


def overconfident() -> Noisy:
    """An untrained module with large logits."""
    torch.manual_seed(0)
    module = Noisy()
    with torch.no_grad():
        module.layers[-1].weight *= 20
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    callback = CalibrationCallback(inference=True)
    validated = trainer(folder, strategy="ddp", devices=2, callbacks=[callback])
    validated.validate(overconfident(), loaders()[1], verbose=False)
    logged = {name: float(value) for name, value in validated.callback_metrics.items()}
    fitted = trainer(folder, strategy="ddp", devices=2, callbacks=[callback], enable_checkpointing=True, max_epochs=1)
    content = {"logged": logged, "evaluation": callback.evaluation.to_dict(), "shares": callback._kept._added}
    fitted.fit(Noisy(), *loaders())
    content |= {"temperature": float(callback.calibrator.temperature), "folder": fitted.checkpoint_callback.dirpath}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(content))
