"""Custom losses, data sets and optimizers in a training: their contracts, their sources, and resuming."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from case_loops import for_each
from small_runs import assert_same_bytes
from toys import go, recipe_for

from dualfocal.cli import main
from dualfocal.data import load_data
from dualfocal.plots import run_groups
from dualfocal.runs import Recipe, Run
from dualfocal.runs.optimizers import OPTIMIZERS
from dualfocal.train import step as steps
from dualfocal.train.distributed import Group
from dualfocal.train.optimizer import make_optimizer

MODULE = "objects_for_tests"
CODE = '''
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from dualfocal.data import DataSet


class Scaled(nn.Module):
    """Cross-entropy times a factor, which follows the validation split if ``follows``."""

    def __init__(self, *, factor=1.0, reduction="mean"):
        super().__init__()
        self.reduction = reduction
        self.register_buffer("factor", torch.tensor(float(factor), dtype=torch.float64))

    def forward(self, logits, target):
        return self.factor * cross_entropy(logits, target, reduction=self.reduction)


class Following(Scaled):
    def update(self, logits, target):
        self.factor = 0.5 * self.factor


class Mean(Scaled):
    def forward(self, logits, target):
        return cross_entropy(logits, target)


class Whole(Mean):
    per_sample = False


class Wrong(Scaled):
    def forward(self, logits, target):
        return cross_entropy(logits, target, reduction="none")


class Constant(Scaled):
    def forward(self, logits, target):
        return torch.tensor(1.0, requires_grad=True) * len(target)


def no_reduction(factor=1.0):
    return Scaled()


def no_module(*, reduction):
    return "a loss"


module = Scaled()


def arrays():
    rng = np.random.default_rng(3)
    target = np.arange(88) % 4
    return (rng.normal(size=(4, 5))[target] + rng.normal(size=(88, 5))).astype(np.float32), target


def pair():
    return arrays()


def splits(*, scale=1.0):
    x, y = arrays()
    return {"train": (torch.tensor(scale * x[:60]), torch.tensor(y[:60])), "test": (x[60:], y[60:])}


def named(root, half=False):
    x, y = arrays()
    return {"x": x, "y": y, "class_names": np.array(["a", "b", "c", "d"])}


def whole(root, **options):
    x, y = map(torch.tensor, arrays())
    index = torch.arange(88)
    return DataSet(name=str(root), class_names=tuple("abcd"), inputs=x, target=y,
                   splits={"train": index[:60], "val": index[60:70], "test": index[70:]})


def nothing():
    return 3


def fails():
    raise RuntimeError("my trouble")


class Counting(torch.optim.Optimizer):
    """Plain gradient descent whose state has Python numbers: the rate falls with the number of steps."""

    def __init__(self, weights, *, lr, decay=0.1):
        super().__init__(weights, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state.setdefault("steps", 0)
                state.setdefault("rate", 1.0)
                state["steps"] += 1
                state["rate"] *= 1 - group["decay"]
                weight -= group["lr"] * state["rate"] * weight.grad


class Grouped(Counting):
    def step(self):
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1


class Listed(Counting):
    def step(self):
        self.state[self.param_groups[0]["params"][0]]["history"] = []


def no_lr(weights):
    return Counting(weights, lr=0.1)


def no_optimizer(weights, *, lr):
    return None
'''


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write the module into the current folder, as a new process would import it."""
    monkeypatch.chdir(tmp_path)

    def write(code: str) -> None:
        sys.modules.pop(MODULE, None)
        (tmp_path / f"{MODULE}.py").write_text(code)

    write(CODE)
    yield write
    sys.modules.pop(MODULE, None)


@contextmanager
def stopped_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A training in this context is stopped in the next epoch; the checkpoint is of the last one."""
    append = Run.append

    def stop(self: Run, line: dict[str, Any]) -> None:
        if line["epoch"] > epochs:
            raise KeyboardInterrupt
        append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


pytestmark = pytest.mark.usefixtures("quick", "write")


def named(name: str) -> str:
    return f"{MODULE}:{name}"


# Losses


def test_a_custom_loss_trains_as_the_one_it_equals(toy: Path, tmp_path: Path) -> None:
    custom = go(recipe_for(toy, loss=named("Scaled")), tmp_path / "custom")
    known = go(recipe_for(toy, loss="cross_entropy"), tmp_path / "known")
    for mine, theirs in zip(custom.log, known.log, strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-12)
        assert mine["val_nll"] == pytest.approx(theirs["val_nll"], rel=1e-12)
    assert "gamma" not in custom.log[0]
    double = go(recipe_for(toy, loss=named("Scaled"), loss_options={"factor": 2}), tmp_path / "double")
    assert double.log[0]["train_loss"] != pytest.approx(custom.log[0]["train_loss"])


@pytest.mark.filterwarnings("ignore:loss .* uses the validation split")
def test_a_custom_loss_with_update_follows_the_validation_split(toy: Path, tmp_path: Path) -> None:
    run = go(recipe_for(toy, loss=named("Following")), tmp_path / "run")
    for i, line in enumerate(run.log):
        assert line["val_loss"] == pytest.approx(0.5**i * line["val_nll"], rel=1e-6)
    with pytest.raises(ValueError, match=r"needs a validation split"):
        go(recipe_for(toy, loss=named("Following"), data_options={"val_size": 0}), tmp_path / "none")


@for_each(
    "loss, words",
    [
        ("Missing", "has no 'Missing'"),
        ("module", r"is Scaled, but a custom loss is a class or function .*reduction='sum'.*torch\.nn\.Module"),
        ("no_reduction", "does not accept reduction as a keyword argument, but a custom loss is"),
        ("no_module", "returned str, but a custom loss is"),
        ("Mean", r"the sum of their losses is .*reduction='sum'.*per_sample = False"),
        ("Wrong", r"finite scalar tensor, got shape \(3,\)"),
        ("Constant", "has no gradient"),
    ],
)
def test_a_loss_that_breaks_the_contract_is_refused(loss: str, words: str, toy: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^loss '?{named(loss)}.*{words}"):
        go(recipe_for(toy, loss=named(loss)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loss_of_a_whole_batch_says_so(toy: Path, tmp_path: Path) -> None:
    assert go(recipe_for(toy, loss=named("Whole"), epochs=1), tmp_path / "run").state == "finished"


def test_objects_are_refused_before_the_data_are_read(tmp_path: Path) -> None:
    """Large data take minutes."""
    for changes in ({"loss": named("no_reduction")}, {"optimizer": named("no_lr")}, {"model": named("Missing")}):
        with pytest.raises(ValueError, match=rf"{MODULE}"):
            go(recipe_for(Path("missing.npz"), **changes), tmp_path / "run")


# Data


@for_each(
    "function, options, expected",
    [
        ("pair", {}, "pair: 63 train, 7 val, 18 test; 4 classes; 5 float32"),
        ("pair", {"val_size": 20, "test_size": 8}, "pair: 60 train, 20 val, 8 test; 4 classes; 5 float32"),
        ("splits", {"scale": 2, "val_size": 10}, "splits: 50 train, 10 val, 28 test; 4 classes; 5 float32"),
        ("named", {"half": True}, "named: 63 train, 7 val, 18 test; 4 classes; 5 float32"),
        ("whole", {}, "here: 60 train, 10 val, 18 test; 4 classes; 5 float32"),
    ],
)
def test_a_custom_function_gives_the_data(function: str, options: dict[str, Any], expected: str) -> None:
    assert str(load_data(named(function), "here", **options)) == expected


def test_values_of_a_custom_function() -> None:
    plain, doubled = load_data(named("splits")), load_data(named("splits"), scale=2)
    assert torch.equal(doubled.part("train")[0], 2 * plain.part("train")[0])
    assert load_data(named("named")).class_names == ("a", "b", "c", "d")


@for_each(
    "function, options, words",
    [
        ("module", {}, "fails: "),
        ("nothing", {}, "returned int, but a custom data set is a function that returns a DataSet; or arrays"),
        ("fails", {}, "fails: RuntimeError: my trouble"),
        ("pair", {"vall_size": 3}, "has the options layout, .*got vall_size; did you mean val_size"),
        ("splits", {"scal": 3}, "has the options scale, layout, .*got scal; did you mean scale"),
        ("pair", {"test_size": 2.0}, "test_size must be"),
    ],
)
def test_a_function_that_breaks_the_contract_is_refused(function: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_data(named(function), **options)


# Optimizers


def trained(toy: Path, out: Path, **changes: Any) -> Run:
    data = Path(changes.pop("data", toy))
    return go(recipe_for(data, **{"lr": 0.01, "weight_decay": 0.0, "clip_norm": None, **changes}), out)


@for_each(name=[name for name in OPTIMIZERS if name != "sgd"])
def test_an_optimizer_takes_the_steps_of_torch(name: str, toy: Path, tmp_path: Path) -> None:
    """The first steps of each, against the class of torch.optim with its defaults."""
    recipe = recipe_for(toy, optimizer=name, lr=0.01, weight_decay=0.0 if name == "rprop" else 0.02)
    kind = {kind.lower(): kind for kind in dir(torch.optim)}[name]
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64)) for _ in range(2))
    extra = {} if name == "rprop" else {"weight_decay": 0.02}
    reference = getattr(torch.optim, kind)([theirs], lr=0.01, **extra)
    optimizer = make_optimizer(recipe, [ours])
    for step in range(4):
        for weight, taking in ((ours, optimizer), (theirs, reference)):
            weight.grad = torch.tensor([1.0, 0.5], dtype=torch.float64) * (step + 1)
            taking.step()
    assert not torch.equal(ours, torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_options_of_an_optimizer() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    for name, settings, expected in (
        ("adam", ["optimizer.betas=[0.5, 0.6]", "optimizer.eps=1e-3"], {"betas": (0.5, 0.6), "eps": 1e-3}),
        ("rmsprop", ["optimizer.alpha=.9", "optimizer.momentum=.5"], {"alpha": 0.9, "momentum": 0.5}),
        ("sgd", ["optimizer.nesterov=true"], {"nesterov": True, "momentum": 0.9}),
        ("torch.optim:SGD", ["optimizer.dampening=.5"], {"dampening": 0.5, "momentum": 0}),
    ):
        recipe = Recipe(data="digits", model="small_cnn").with_settings([f"optimizer={name}", *settings])
        group = make_optimizer(recipe, [weight]).param_groups[0]
        assert {key: group[key] for key in expected} == expected, name
        assert recipe.with_settings(["optimizer=adamw"]).optimizer_options == {}
        assert "optimizer_options" in recipe.to_dict()


@for_each(
    "settings, words",
    [
        (["optimizer=rmsprp"], "optimizer must be one of sgd, adam, .*package.module:object.*did you mean rmsprop"),
        (["optimizer=lbfgs"], "optimizer must be one of"),
        (["optimizer=adam", "optimizer.momentum=.5"], "adam has the options betas, eps, .*got momentum"),
        (["optimizer.momentum=.5"], "momentum is a field of the recipe; set momentum=0.5"),
        (["optimizer=adam", "optimizer.lr=.5"], "lr is a field of the recipe; set lr=0.5"),
        (["optimizer.dampening=.5"], "sgd has the options nesterov; got dampening"),
        (["optimizer=adam", "optimizer.betas=[2, 0]"], "optimizer adam: Invalid beta"),
        (["optimizer=adam", "optimizer.amsgrad=1"], "amsgrad must be true or false"),
        (["optimizer=rprop"], "rprop has no weight decay, got weight_decay=0.0005; set weight_decay=0"),
        (["momentum=0", "optimizer.nesterov=true"], "optimizer sgd: Nesterov"),
    ],
)
def test_a_recipe_refuses_unknown_optimizers_and_options(settings: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe(data="digits", model="small_cnn").with_settings(settings)


@for_each(
    "optimizer, options, words",
    [
        ("torch.optim:LBFGS", {}, "fails in a step: .*closure"),
        ("torch:nn", {}, "is module, but a custom optimizer is a class or function"),
        (named("no_lr"), {}, "does not accept lr as a keyword argument, but a custom optimizer is"),
        (named("no_optimizer"), {}, "returned NoneType, but a custom optimizer is"),
        (named("Counting"), {"dekay": 1}, "has the options weights, decay; got dekay; did you mean decay"),
        (named("Grouped"), {}, "a step changes k of its param_groups, which a checkpoint does not hold"),
        (named("Listed"), {}, "its state must be tensors and numbers.*history is list"),
    ],
)
def test_an_optimizer_that_breaks_the_contract_is_refused(
    optimizer: str, options: dict[str, Any], words: str, toy: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^optimizer {optimizer}.*{words}"):
        trained(toy, tmp_path / "run", optimizer=optimizer, optimizer_options=options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes", [{"optimizer": named("Counting"), "optimizer_options": {"decay": 0.2}}, {"optimizer": "nadam"}]
)
def test_a_resumed_run_has_the_state_of_its_optimizer(
    changes: dict[str, Any], toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(toy, tmp_path / "whole", **changes)
    with stopped_after(2, monkeypatch):
        trained(toy, tmp_path / "run", **changes)
    assert_same_bytes(trained(toy, tmp_path / "run", **changes), whole)


@for_each(
    "changes, reason",
    [
        ({"optimizer": "rmsprop"}, "optimizer rmsprop is not one of sgd, adam, adamw"),
        ({"optimizer": "torch.optim:SGD"}, "optimizer torch.optim:SGD is not one of"),
        ({"loss": named("Following")}, "the custom loss .* is updated each epoch"),
    ],
)
def test_what_a_graph_could_miss_runs_eagerly(changes: dict[str, str], reason: str, toy: Path) -> None:
    recipe = recipe_for(toy, step="captured", **changes)
    data = load_data(recipe.data)
    weight = torch.nn.Parameter(torch.zeros(2))
    lines: list[str] = []
    arguments: Any = (data, None, recipe.make_loss(), make_optimizer(recipe, [weight]))
    step = steps.make_step(recipe, *arguments, Group(0, 1, torch.device("cpu")), lines.append)
    assert type(step) is steps.Step
    assert lines == [step.problem]
    assert re.search(reason, lines[0])


# Sources


def test_the_result_has_the_hash_of_each_custom_object(toy: Path, tmp_path: Path) -> None:
    changes = {"loss": named("Scaled"), "optimizer": named("Counting"), "data": named("whole"), "data_options": {}}
    run = trained(toy, tmp_path / "run", **changes)
    [session] = run.require_result().sessions
    sources = session["sources"]
    assert {kind: source["object"] for kind, source in sources.items()} == {
        "data": named("whole"),
        "model": "toys:perceptron",
        "loss": named("Scaled"),
        "optimizer": named("Counting"),
    }
    assert len({sources[kind]["sha256"] for kind in ("data", "loss", "optimizer")}) == 1
    assert sources["model"]["sha256"] != sources["loss"]["sha256"]
    known = go(recipe_for(toy, model="toys:perceptron", epochs=1), tmp_path / "known")
    assert known.require_result().sessions[0]["sources"].keys() == {"model"}


def test_a_resumed_run_says_that_a_source_changed(
    toy: Path, tmp_path: Path, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(toy, loss=named("Scaled"))
    for epochs in (1, 2):  # the second session has the same source: a warning would fail
        with stopped_after(epochs, monkeypatch):
            go(recipe, tmp_path / "run")
    write(CODE + "# changed\n")
    with pytest.warns(UserWarning, match=f"source file of loss {named('Scaled')} changed before epoch 3"):
        run = go(recipe, tmp_path / "run")
    result = run.require_result()
    assert [session["from_epoch"] for session in result.sessions] == [1, 2, 3]
    [note] = [note for note in result.notes if "source file" in note]
    assert "so the run is of neither version alone" in note


def test_reading_a_run_imports_nothing(toy: Path, tmp_path: Path, write: Callable[[str], None]) -> None:
    objects = {kind: named(name) for kind, name in (("loss", "Scaled"), ("optimizer", "Counting"), ("data", "whole"))}
    path = trained(toy, tmp_path / "run", **objects, data_options={}).path
    write("from pathlib import Path\nPath('imported').touch()\n")
    run = Run(path)
    assert (run.state, len(run.log), run.recipe.loss) == ("finished", 3, named("Scaled"))
    assert run.predictions("test")[0].shape == (18, 4)
    assert run.require_result().num_classes == 4
    assert run.recipe.with_settings(["seed=5"]).seed == 5
    [setting], unfinished = run_groups.group_runs([path])
    assert (setting.title, [entry.label for entry in setting.entries]) == ("whole, perceptron, 3 epochs", ["Scaled"])
    assert unfinished == {}
    for command in (["runs", path], ["evaluate", path], ["report", path, "-o", tmp_path / "report.html"]):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        assert ended.value.code == 0, command
    assert not Path("imported").exists()
    with pytest.raises(ValueError, match="has no 'whole'"):
        go(run.recipe.with_settings(["seed=5"]), tmp_path / "other")
    assert Path("imported").exists()
