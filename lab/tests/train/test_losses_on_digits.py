"""Every loss trains a small net on noisy digits; with dual focal, the net is better calibrated."""

from pathlib import Path

import pytest

from dualfocal.losses import LOSSES
from dualfocal.metrics import evaluate
from dualfocal_lab.runs import Run
from dualfocal_lab.train import train
from dualfocal_lab.train.presets import preset

# Behind each loss: test errors after 10 epochs with seeds 1, 2, 3. By chance the error is 0.9.
SETTINGS = {
    "cross_entropy": [],  # .172 .217 .184
    "label_smoothing": [],  # .206 .215 .179
    "brier": ["optimizer=adam", "lr=0.005"],  # .184 .200 .203; SGD is slow to start with it
    "mmce": ["loss.as_published=true"],  # .175 .212 .178; the intended form is too strong for this net: .89
    "focal": [],  # .194 .211 .191
    "flsd": [],  # .207 .215 .195
    "inverse_focal": [],  # .217 .264 .225
    "dual_focal": [],  # .164 .193 .203
    "ada_focal": [],  # .176 .211 .176
    "ada_dual_focal": [],  # .161 .186 .187
    "kde_xe": ["loss.bandwidth=0.1"],  # .187 .218 .192; with .001, which is for a metric: .79
}
pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.filterwarnings("ignore:loss ada_.* uses the validation split"),
]


def train_on_digits(name: str, out: Path, seed: int, epochs: int) -> Run:
    settings = [f"loss={name}", f"seed={seed}", f"epochs={epochs}", "lr=0.15", *SETTINGS[name]]
    return train(preset("digits", settings), out, device="cpu", progress=False)


@pytest.mark.parametrize("name", LOSSES)
def test_learns(name: str, tmp_path: Path) -> None:
    run = train_on_digits(name, tmp_path / "run", seed=1, epochs=10)
    logits, target = run.predictions("test")
    assert len(target) == 997
    assert float((logits.argmax(1) != target).double().mean()) < 0.25
    assert run.log[-1]["train_loss"] < 0.5 * run.log[0]["train_loss"]


def test_dual_focal_is_better_calibrated_than_cross_entropy(tmp_path: Path) -> None:
    """Without temperature, after 20 epochs. Over five seeds, the ECE was .019 to .038 and .054 to .075."""
    gains = []
    for seed in (1, 2, 3):
        runs = [train_on_digits(name, tmp_path / f"{name}{seed}", seed, 20) for name in ("cross_entropy", "dual_focal")]
        cross_entropy, dual_focal = (evaluate(*run.predictions("test")).ece for run in runs)
        gains.append(cross_entropy - dual_focal)
    assert sum(gains) / len(gains) > 0.015
