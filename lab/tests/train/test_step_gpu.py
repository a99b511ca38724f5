"""The step as a CUDA graph: the bits of the step as it is written down, and the way back where there is no graph."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same_bytes

from dualfocal.losses import LOSSES
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import DivergedError, train
from dualfocal_lab.train.presets import preset
from dualfocal_lab.train.step import WARM_UP, Step

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings(
        "ignore:results on CUDA are not reproducible", "ignore:loss ada_.* uses the validation split"
    ),
]

NETS = """
import random
import torch
from torch import nn

class Reads(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.last = nn.Linear(64, num_classes)
    def forward(self, x):
        x = x.flatten(1)
        return self.last(x / x.abs().max().item())

def reads(*, num_classes): return Reads(num_classes)

class Opaque(Reads):
    @torch.compiler.disable
    def forward(self, x):
        return super().forward(x)

def opaque(*, num_classes): return Opaque(num_classes)

class ReadsAndDrops(Reads):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.3, self.training))

def reads_and_drops(*, num_classes): return ReadsAndDrops(num_classes)

class Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad * (1.0 if grad.abs().sum().item() > 0 else 0.5)

class ReadsBack(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, num_classes)
    def forward(self, x):
        return self.last(Back.apply(self.first(x.flatten(1))).relu())

def reads_back(*, num_classes): return ReadsBack(num_classes)

class Draws(Reads):
    def forward(self, x):
        return self.last(x.flatten(1)) * (1 if random.random() < 0.5 or not self.training else 0.5)

def draws(*, num_classes): return Draws(num_classes)

class Counts(Reads):
    steps = 0
    def forward(self, x):
        self.steps += self.training
        return self.last(x.flatten(1)) * (1 + 0.01 * (self.steps % 2))

def counts(*, num_classes): return Counts(num_classes)

def dropout(*, num_classes):
    layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(32, num_classes))
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of nets; its name."""
    name = f"nets_{random.getrandbits(64):x}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return name


def digits(*settings: str) -> Recipe:
    return preset("digits", ["epochs=3", "lr=0.1", "deterministic=true", *settings])


def go(recipe: Recipe, out: Path) -> Run:
    return train(recipe, out, device="cuda", progress=False)


def way(run: Run) -> str:
    """Return how the steps of the last session were taken: eager, captured or compiled."""
    step: str = run.result.sessions[-1]["step"]
    return step


def compare(tmp_path: Path, *settings: str) -> Run:
    """Train with a graph and without; the bits must be equal."""
    eager, captured = (go(digits(*settings, f"step={way}"), tmp_path / way) for way in ("eager", "captured"))
    assert (way(eager), way(captured)) == ("eager", "captured")
    assert_same_bytes(eager, captured)
    return captured


@pytest.mark.parametrize("loss", LOSSES)
def test_a_graph_has_the_bits_of_the_steps_it_holds(loss: str, tmp_path: Path) -> None:
    """Of each loss; adaptive ones change their gammas after each epoch, in place."""
    run = compare(tmp_path, f"loss={loss}")
    assert run.result.sessions[0]["start_up_seconds"] > 0
    assert run.result.notes == [note for note in run.result.notes if "uses the validation split" in note]


@pytest.mark.filterwarnings("ignore:weights=best_nll uses the validation split")
@pytest.mark.parametrize(
    "settings",
    [
        ("precision=float32", "channels_last=false"),
        ("precision=tf32",),
        ("precision=float64", "channels_last=false"),
        ("optimizer=adam", "lr=0.002"),
        ("clip_norm=2", "reduction=sum", "lr=0.01"),
        ("schedule=step", "milestones=1,2"),
        ("momentum=0", "weights=best_nll"),
        ("batch_size=128",),  # the last batch has 88
        ("batch_size=5000",),
    ],
)
def test_a_graph_has_the_bits_for_other_recipes(settings: tuple[str, ...], tmp_path: Path) -> None:
    if settings == ("batch_size=5000",):  # no batch is ever full
        eager, captured = (go(digits(*settings, f"step={way}"), tmp_path / way) for way in ("eager", "captured"))
        assert_same_bytes(eager, captured)
        assert way(captured) == "eager"
    else:
        compare(tmp_path, *settings)


def test_dropout_draws_what_it_would_have_drawn(nets: str, tmp_path: Path) -> None:
    compare(tmp_path, f"model={nets}:dropout")


def test_dropout_bears_a_gpu_that_lags_behind(nets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch writes on the stream of the capture must have happened before the first replay writes there."""
    begin = torch.cuda.CUDAGraph.capture_begin

    def late(*arguments: Any, **options: Any) -> None:
        torch.cuda._sleep(500_000_000)
        begin(*arguments, **options)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", late)
    compare(tmp_path, f"model={nets}:dropout")


@pytest.mark.parametrize("model", ["resnet110_sd", "densenet40"])
def test_larger_nets(model: str, tmp_path: Path) -> None:
    compare(tmp_path, f"model={model}", "epochs=1")


@pytest.mark.parametrize("step", [2, WARM_UP + 1, WARM_UP + 3, 8, 13], ids=str)
def test_interrupted_gives_the_same_bytes(
    step: int, nets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = digits("clip_norm=2", f"model={nets}:dropout", "batch_size=128")  # five steps an epoch, the last smaller
    whole = go(recipe, tmp_path / "whole")
    begin, steps = Step.begin, 0

    def interrupting(self: Step, epoch: int) -> None:
        begin(self, epoch)
        call = type(self).__call__

        class Watched(type(self)):  # type: ignore[misc]
            def __call__(self, batch: torch.Tensor) -> Any:
                nonlocal steps
                steps += 1
                if steps == step:
                    signal.raise_signal(signal.SIGINT)
                return call(self, batch)

        self.__class__ = Watched

    with monkeypatch.context() as patch:
        patch.setattr(Step, "begin", interrupting)
        with pytest.raises(KeyboardInterrupt):
            go(recipe, tmp_path / "parts")
    run = go(recipe, tmp_path / "parts")
    assert_same_bytes(whole, run)
    assert run.result.sessions[0]["step"] == ("captured" if step > WARM_UP else "eager")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("reads", "captur"),
        ("reads_and_drops", "captur"),
        ("reads_back", "captur"),
        ("draws", "the model draws random numbers"),
        ("counts", "changes values on the CPU"),
    ],
)
def test_what_cannot_be_captured_is_trained_eagerly(
    model: str, reason: str, nets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random.seed(1)
    eager = go(digits(f"model={nets}:{model}", "step=eager"), tmp_path / "eager")
    random.seed(1)
    stream = torch.cuda.current_stream()
    run = train(digits(f"model={nets}:{model}", "step=captured"), tmp_path / "run", device="cuda")
    lines = [line for line in capsys.readouterr().err.splitlines() if "cannot be captured" in line]
    assert len(lines) == 1
    assert reason in lines[0]
    assert run.result.notes == lines
    assert way(run) == "eager"
    assert torch.cuda.current_stream() == stream
    assert_same_bytes(eager, run)


def test_a_graph_does_not_hide_a_nan(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"epoch 1, step \d of 6"):
        go(digits("lr=1e30", "model=small_cnn", "step=captured"), tmp_path / "run")
    assert Run(tmp_path / "run").failure["checkpoint_of_epoch"] is None


def test_compiled_is_nearly_eager(tmp_path: Path) -> None:
    settings = ("deterministic=false", "epochs=2", "precision=float32", "clip_norm=2")
    runs = {way: go(digits(*settings, f"step={way}"), tmp_path / way) for way in ("eager", "compiled")}
    assert way(runs["compiled"]) == "compiled"
    for name in ("train_loss", "val_nll", "grad_norm"):
        assert runs["compiled"].log[-1][name] == pytest.approx(runs["eager"].log[-1][name], rel=1e-3)


def test_what_cannot_be_compiled_is_trained_eagerly(nets: str, tmp_path: Path) -> None:
    run = go(digits(f"model={nets}:opaque", "step=compiled", "deterministic=false"), tmp_path / "run")
    assert way(run) == "eager"
    assert "cannot be captured" in run.result.notes[-1]


def test_many_runs_compile_in_one_process(nets: str, tmp_path: Path) -> None:
    """More than the compiler's limit of versions of one function."""
    settings = "deterministic=false", "epochs=1", "step=compiled", f"model={nets}:dropout"
    for size in range(90, 100):
        run = go(digits(*settings, f"batch_size={size}"), tmp_path / str(size))
        assert way(run) == "compiled"


def test_bfloat16_in_a_graph_follows_float32(tmp_path: Path) -> None:
    losses = {}
    for precision, step in (("float32", "eager"), ("bfloat16", "captured")):
        run = go(digits(f"precision={precision}", f"step={step}", "lr=0.05", "epochs=4"), tmp_path / precision)
        losses[precision] = [line["train_loss"] for line in run.log]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)


def test_trainings_one_after_the_other_do_not_disturb_each_other(nets: str, tmp_path: Path) -> None:
    """A graph that is destroyed during the next one's capture would end it."""
    for seed in range(8):
        assert way(go(digits(f"model={nets}:dropout", f"seed={seed}", "epochs=1"), tmp_path / str(seed))) == "captured"
