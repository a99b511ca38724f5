"""Every loss trains a small net on noisy digits, from recipe to result; dual focal is better calibrated."""

import json
from pathlib import Path

import pytest
import torch

from dualfocal.data import load_data
from dualfocal.losses import LOSSES
from dualfocal.metrics import evaluate
from dualfocal.runs import Run
from dualfocal.train import train
from dualfocal.train.presets import preset

# Test errors seen with seeds 1, 2, 3 are given behind each; at chance it would be 0.9.
SETTINGS = {
    "cross_entropy": [],  # .151 .140 .149
    "label_smoothing": [],  # .127 .141 .144
    "brier": ["optimizer=adam", "lr=0.005"],  # .159 .153 .157; SGD is slow to start with it
    "mmce": ["loss.as_published=true"],  # .172 .161 .153; the intended form is too strong for this net: .89
    "focal": [],  # .163 .168 .160
    "flsd": [],  # .167 .179 .149
    "inverse_focal": [],  # .179 .142 .146
    "dual_focal": [],  # .152 .159 .166
    "ada_focal": [],  # .157 .159 .143
    "ada_dual_focal": [],  # .169 .153 .157
    "kde_xe": ["loss.bandwidth=0.1"],  # .144 .134 .135; of .001, which is for a metric, .79
}
BOUND = 0.21


def train_on_digits(name: str, out: Path, seed: int) -> Run:
    settings = [f"loss={name}", f"seed={seed}", "epochs=20", "lr=0.15", *SETTINGS[name]]
    return train(preset("digits", settings), out, device="cpu", progress=False)


def test_settings_are_of_every_loss() -> None:
    assert SETTINGS.keys() == LOSSES.keys()


@pytest.mark.filterwarnings("ignore:loss ada_.* uses the validation split")
@pytest.mark.parametrize("name", LOSSES)
def test_learns(name: str, tmp_path: Path) -> None:
    run = train_on_digits(name, tmp_path / "run", seed=1)
    logits, target = run.predictions("test")
    assert len(target) == 997
    error = float((logits.argmax(1) != target).double().mean())
    assert error < BOUND
    assert run.result.parts["test"].error == pytest.approx(error)
    assert run.log[-1]["train_loss"] < 0.5 * run.log[0]["train_loss"]
    with torch.no_grad():
        again = run.model()(load_data("digits", noise=0.3).part("test")[0])
    torch.testing.assert_close(again, logits)
    json.dumps(run.result.to_dict(), allow_nan=False)


def test_dual_focal_is_better_calibrated_than_cross_entropy(tmp_path: Path) -> None:
    """Before temperature, from the same start and order: seen .021 to .040 against .054 to .074 over three seeds."""
    gain = []
    for seed in (1, 2, 3):
        runs = {
            name: train_on_digits(name, tmp_path / f"{name}{seed}", seed) for name in ("dual_focal", "cross_entropy")
        }
        ece = {name: evaluate(*run.predictions("test")).ece for name, run in runs.items()}
        gain.append(ece["cross_entropy"] - ece["dual_focal"])
    assert sum(gain) / len(gain) > 0.015
