"""Fixtures of the training tests: small nets, toy data, trained runs, and ways to stop a training."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from pair import Pair, shared_pair
from small_runs import Killed, go, outcome, small

from dualfocal_lab.runs import Run
from dualfocal_lab.train import loop
from dualfocal_lab.train import result as train_result
from dualfocal_lab.train.forward import Forward

NETS = '''
import os
import time
import torch
from torch import nn


class Tied(nn.Module):
    """Uses one matrix twice, and has a weight that is not contiguous."""

    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.last = nn.Parameter(torch.randn(64, num_classes).t())
        assert not self.last.is_contiguous()

    def forward(self, inputs):
        return self.second(self.first(inputs.flatten(1)).relu()).relu() @ self.last.t()


def tied(*, num_classes):
    return Tied(num_classes)


def dense(*, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))


def dropout(*, num_classes):
    layers = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, num_classes))


class Nap(nn.Module):
    """Sleep for NAP seconds in each training step, so that a test can stop the training in between."""

    def forward(self, inputs):
        if self.training:
            time.sleep(float(os.environ.get("NAP", "0")))
        return inputs


def slow(*, num_classes):
    return nn.Sequential(Nap(), dropout(num_classes=num_classes))


class Loud(nn.Linear):
    def forward(self, inputs):
        return super().forward(10 * inputs)


def loud(*, num_classes, in_channels):
    return Loud(in_channels, num_classes)
'''


@pytest.fixture
def nets(tmp_path, monkeypatch) -> None:
    """The folder to work in has a module of nets."""
    (tmp_path / "nets_for_tests.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def quick(monkeypatch) -> None:
    """Skip the metrics and the commit, which take most of the time of a small run."""
    monkeypatch.setattr(train_result, "metrics_of", lambda predictions: ({}, {}))
    monkeypatch.setattr(train_result, "commit", lambda: None)


@pytest.fixture
def at_step(monkeypatch):
    """``at_step(n, act)``: act on the logits of the n-th training step from now on, counted from 1."""

    def at_step(number, act) -> None:
        steps = 0

        def forward(self, *arguments):
            nonlocal steps
            logits = original(self, *arguments)
            steps += self.model.training
            changed = act(logits) if self.model.training and steps == number else None
            return logits if changed is None else changed

        # Only in the loop: the trial before the first step does not count.
        monkeypatch.setattr(loop, "Forward", type("Watched", (Forward,), {"__call__": forward}))

    original = Forward.__call__
    return at_step


@pytest.fixture
def after_update(monkeypatch):
    """``after_update(n, act)``: act on the optimizer after its n-th step from now on, counted from 1."""

    def after_update(number, act) -> None:
        steps = 0

        def make(*arguments):
            optimizer = original(*arguments)

            def hook(*_) -> None:
                nonlocal steps
                steps += 1
                if steps == number:
                    act(optimizer)

            optimizer.register_step_post_hook(hook)
            return optimizer

        monkeypatch.setattr(loop, "make_optimizer", make)

    original = loop.make_optimizer
    return after_update


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Pair:
    """Two processes that have trained together; started once, even by pytest-xdist."""
    return shared_pair(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """88 samples of 5 features, 4 classes that overlap."""
    rng = np.random.default_rng(3)
    target = rng.permutation(np.arange(88) % 4)
    inputs = rng.normal(size=(4, 5))[target] + 0.8 * rng.normal(size=(88, 5))
    path = tmp_path_factory.mktemp("toy") / "toy.npz"
    np.savez(path, x=inputs.astype(np.float32), y=target)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 coloured images of 8 x 8 pixels, 3 classes that differ in brightness of a corner."""
    rng = np.random.default_rng(4)
    target = np.arange(60) % 3
    images = rng.integers(0, 120, (60, 8, 8, 3), dtype=np.uint8)
    images[:, :4, :4] += (60 * target[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "pictures.npz"
    np.savez(path, x=images, y=target)
    return path


# Runs of `small_runs.small()`, trained once and copied for each test.


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def finished(nets, quick, trained, tmp_path) -> Path:
    if not (trained / "finished").exists():
        go(small(), trained / "finished")
    return shutil.copytree(trained / "finished", tmp_path / "finished")


@pytest.fixture
def expected(finished):
    """The outcome of an uninterrupted run."""
    return outcome(finished)


@pytest.fixture
def stopped(nets, quick, trained, tmp_path, monkeypatch) -> Path:
    """A run of two epochs, whose process was killed in the third."""

    def append(self, line) -> None:
        if line["epoch"] == 3:
            raise Killed
        original(self, line)

    original = Run.append
    if not (trained / "stopped").exists():
        with monkeypatch.context() as patch:
            patch.setattr(Run, "append", append)
            with pytest.raises(Killed):
                go(small(), trained / "stopped")
    return shutil.copytree(trained / "stopped", tmp_path / "run")
