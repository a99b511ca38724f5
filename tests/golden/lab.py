"""The laboratory: theory, networks, data sets, training, studies and the paper. All its imports are in this file."""

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import Any

import inputs
import numpy as np
import torch
from figures import draw
from inputs import RESULTS
from values import Recording, Section, digest

from dualfocal.losses import LOSSES
from dualfocal.metrics import compare, evaluate
from dualfocal_lab import data as data_sets
from dualfocal_lab import models as networks
from dualfocal_lab import plots
from dualfocal_lab import study as studies
from dualfocal_lab import theory as theories
from dualfocal_lab.paper.errata import find_errata
from dualfocal_lab.paper.figures import FIGURES
from dualfocal_lab.paper.published import published_tables
from dualfocal_lab.paper.replication import decide_claims
from dualfocal_lab.paper.reproduce import plan
from dualfocal_lab.paper.verify import verify
from dualfocal_lab.plots.run_groups import group_runs
from dualfocal_lab.runs import Recipe, Run, find_runs
from dualfocal_lab.train import train as train_run
from dualfocal_lab.train.presets import PRESETS, custom, preset

PLANS = ("cifar10", "20newsgroups")
TABLES = (*(f"table{number}" for number in range(1, 14)), *(table.name for table in published_tables()))


def theory(rec: Recording) -> None:
    """Functions of the theory, claims, regions and minimisers."""
    v = torch.linspace(0.05, 0.9, 18, dtype=torch.float64)
    q = torch.from_numpy(inputs.softmax(inputs.sample(20, 3, 50)[0]))
    for name in ("phi", "phi_slope", "h", "s", "t", "u"):
        for gamma in (0.5, 1.0, 3.0):
            rec.call(f"{name}/{gamma}", getattr(theories, name), v, gamma, 0.1)
    for name in ("exact_eta", "published_eta"):
        rec.call(name, getattr(theories, name), q, 2.0)
    for name in ("entropy_bound", "dual_entropy_bound"):
        rec.call(name, getattr(theories, name), q, torch.arange(20) % 3, 2.0)
    rec.call("conditional_risk", theories.conditional_risk, q, q.flip(1), 2.0)
    rec.call("uniform_threshold", theories.uniform_threshold, 3.0)
    rec.call("phi_peak", theories.phi_peak, 2.0, 0.2)
    rec.call("phi_inverse", theories.phi_inverse, 0.1, 2.0, 0.2)
    for gamma, c in ((2.0, 0.0), (5.0, 0.1)):
        rec.call(f"regions/{gamma}", theories.regions, gamma, c)
        rec.call(f"gradients/{gamma}", theories.gradient_table, gamma, c)
        rec.put(f"claims/{gamma}", [asdict(claim) for claim in theories.check_claims(gamma)])
    for eta in ((0.5, 0.3, 0.2), (0.4, 0.3, 0.15, 0.1, 0.05), (0.45, 0.35, 0.2)):
        rec.call(f"minimisers/{eta}", theories.compare_minimisers, eta, 2.0)


def models(rec: Recording) -> None:
    """Fresh weights of every network, and what it makes of two inputs."""
    for name, constructor in networks.MODELS.items():
        torch.manual_seed(0)
        model = networks.make_model(name, num_classes=7).eval()
        shape: tuple[int, ...] = (2, 3, 32, 32)
        if name == "text_cnn":
            shape = (2, inspect.signature(constructor).parameters["in_channels"].default, 64)
        elif name.startswith("tiny"):
            shape = (2, 3, 64, 64)
        x = torch.from_numpy(np.random.default_rng(60).standard_normal(shape)).float()
        with torch.no_grad():
            rec.put(name, {"weights": digest(*model.state_dict().values()), "logits": model(x)})


def write_images() -> None:
    """Write an own data set of images, and CIFAR-10 in its binary layout, of random pixels."""
    rng = np.random.default_rng(8)
    images, labels = rng.integers(0, 256, (240, 12, 12, 3), dtype=np.uint8), np.arange(240) % 4
    images[..., 0] = (images[..., 0] // 3 + 40 * labels[:, None, None]).astype(np.uint8)
    np.savez("images.npz", x_train=images[:160], y_train=labels[:160], x_test=images[160:], y_test=labels[160:])
    folder = Path("cifar", "cifar-10-batches-bin")
    folder.mkdir(parents=True)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    for name, count in [*((f"data_batch_{i}.bin", 1050) for i in range(1, 6)), ("test_batch.bin", 20)]:
        content = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
        content[:, 0] = np.arange(count) % 10
        (folder / name).write_bytes(content.tobytes())


def data(rec: Recording) -> None:
    """Data sets as they are loaded, split, drawn and augmented."""
    write_images()
    cases: dict[str, tuple[str, str | None, dict[str, Any]]] = {
        "digits": ("digits", None, {}),
        "digits-noise": ("digits", None, {"noise": 0.3, "split_seed": 0}),
        "cifar10": ("cifar10", "cifar", {}),
        "own": ("images.npz", None, {"layout": "NHWC"}),
    }
    for label, (name, root, options) in cases.items():
        loaded = data_sets.load_data(name, root, **options)
        rec.put(f"{label}/inputs", digest(loaded.inputs))
        rec.put(f"{label}/target", digest(loaded.target))
        rec.put(f"{label}/names", list(loaded.class_names))
        rec.put(f"{label}/splits", {part: digest(index) for part, index in loaded.splits.items()})
        index, draws = loaded.splits["train"][:4], loaded.draw(seed=3, epoch=2)
        rec.put(f"{label}/batch", loaded.batch(index, part="train")[0])
        if draws is not None:
            rec.put(f"{label}/augmented", loaded.batch(index, draws)[0])
    images = torch.from_numpy(np.random.default_rng(61).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8))
    for severity in (1, 5):
        rec.call(f"gaussian_noise/{severity}", data_sets.gaussian_noise, images, severity, seed=2)


def put_run(rec: Recording, key: str, run: Run) -> None:
    """Keep everything that a training gives."""
    rec.put(f"{key}/recipe", run.recipe)
    rec.put(f"{key}/log", run.log)
    rec.put(f"{key}/result", run.result)
    rec.put(f"{key}/weights", digest(*run.model().state_dict().values()))
    for part in ("val", "test"):
        logits, target = run.predictions(part)
        rec.put(f"{key}/{part}", {"logits": digest(logits), "target": digest(target), "first": logits[:3]})


def digits(out: str, *settings: str, epochs: int = 2) -> Run:
    """Train on the digits."""
    return train_run(preset("digits", [*settings, f"epochs={epochs}"]), out, device="cpu", progress=False)


class StopAfter:
    """A callback that interrupts the training as Ctrl-C does."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def on_epoch_end(self, log: dict[str, Any]) -> None:
        """Interrupt after the given number of epochs."""
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


SETTINGS = {
    "adam": ("optimizer=adam", "lr=0.002", "weights=best_nll", "drop_last=true", "batch_size=64"),
    "step": ("schedule=step", "milestones=1,2", "lr_factor=0.5", "reduction=sum", "clip_norm=2", "lr=0.01"),
    "float64": ("precision=float64", "test_each_epoch=true", "weights=best_error", "momentum=0"),
    "bfloat16": ("precision=bfloat16", "loss.gamma=2", "weight_decay=0"),
    "rival": ("loss.rival=2nd", "data.split_seed=3", "data.noise=0.5", "channels_last=true"),
}


def train(rec: Recording) -> None:
    """Training with every loss and with other settings; a training that is interrupted and goes on."""
    whole = digits("whole", "seed=5", epochs=6)
    put_run(rec, "whole", whole)
    recipe = preset("digits", ["seed=5", "epochs=6"])
    try:
        train_run(recipe, "stopped", device="cpu", progress=False, callbacks=[StopAfter(3)])
    except KeyboardInterrupt:
        rec.put("stopped/epochs", len(Run(Path("stopped")).log))
    put_run(rec, "resumed", train_run(recipe, "stopped", device="cpu", progress=False))
    for name in LOSSES:
        put_run(rec, f"losses/{name}", digits(f"loss-{name}", f"loss={name}"))
    for label, settings in SETTINGS.items():
        put_run(rec, f"settings/{label}", digits(f"settings-{label}", *settings, epochs=3))
    write_images()
    own = custom("images.npz", "small_cnn", "focal").with_settings(["data.layout=NHWC", "loss.gamma=2", "epochs=2"])
    put_run(rec, "own", train_run(own, "own", device="cpu", progress=False))


def train_study(planned: studies.Study, out: Path) -> None:
    """Train the runs of a study here: its own processes take all cores, on whose number the last bits depend."""
    for (entry, seed), folder in planned.folders(out).items():
        train_run(planned.recipes[entry][seed], folder, device="cpu", progress=False)


def study(rec: Recording) -> None:
    """Studies of losses and of gammas: their runs, summary and figures, and the figures of the paper from them."""
    settings = ["epochs=3", "test_each_epoch=true"]
    losses = studies.make_study(["cross_entropy", "dual_focal"], seeds=[0, 1], settings=settings)
    gammas = studies.make_study(["dual_focal"], gammas=[2, 5], seeds=[0], settings=settings)
    for label, planned in (("losses", losses), ("gammas", gammas)):
        out = Path(label)
        train_study(planned, out)
        studies.run_study(planned, out, jobs=1, device="cpu")  # has nothing left to train
        for run in find_runs(out):
            put_run(rec, f"{label}/runs/{run.path.name}", run)
        summary = studies.summarize(planned, out)
        rec.put(f"{label}/summary", summary)
        rec.put(f"{label}/figure", plots.study_figure(summary))
    rec.call("gammas/choice", studies.choose_gamma, gammas, Path("gammas"), criterion="ece")
    put_figures(rec, "figures", Path("losses"))


def put_figures(rec: Recording, key: str, folder: Path) -> None:
    """Keep what the figures of the paper draw from the runs of a folder."""
    settings, _ = group_runs([folder])
    for name, figure in FIGURES.items():
        for setting in settings if figure.needs_runs else []:
            rec.call(f"{key}/{name}", figure.draw, setting)


def lab_figures(rec: Recording) -> None:
    """Figures that compare methods."""
    logits, target = inputs.sample(400, 5, 150)
    other = inputs.noisy(logits, 151)
    both, curve = {"focal": logits, "cross_entropy": other}, np.linspace(0.2, 0.05, 12)
    options = {"inference": True, "draws": 200}
    evaluations = {name: evaluate(values, target, **options) for name, values in (("a", logits), ("b", other))}
    panels = {
        name: {label: plots.MetricBar.from_evaluations([evaluation, evaluations["a"]], name)}
        for name in ("ece", "nll")
        for label, evaluation in evaluations.items()
    }
    rec.put("metric", plots.metric_figure(panels, interval="interval"))
    draw(rec, plots.max_logit_histogram, both)
    draw(rec, plots.rival_boxplot, {name: (values, target) for name, values in both.items()})
    curves = {"focal": curve, "cross_entropy": [curve + 0.1, curve + 0.15]}
    draw(rec, plots.ece_over_training, curves, floors=(0.02, 0.03))
    draw(rec, plots.metric_bars, {"focal": plots.MetricBar((0.02, 0.03), (0.01, 0.04), 0.015)})


def recipes(rec: Recording) -> None:
    """Presets, and settings that are in people's scripts."""
    for name in PRESETS:
        rec.put(f"preset/{name}", preset(name))
    settings = (
        *("loss=flsd", "loss.gamma=6", "seed=2", "precision=tf32", "reduction=mean", "clip_norm=none"),
        *("test_each_epoch=true", "loss=cross_entropy", "loss.rival=2nd", "epochs=10", "precision=float32"),
        *("step=eager", "channels_last=true", "deterministic=true", "milestones=none", "data.val_size=1000"),
    )
    for setting in settings:
        rec.put(f"set/{setting}", preset("cifar10_resnet50", [setting]))
    recipe = preset("digits", ["lr=0.03", "epochs=7"])
    rec.put("from_dict", Recipe.from_dict(recipe.to_dict()) == recipe)
    rec.put("lr", [recipe.lr_at(epoch) for epoch in range(recipe.epochs)])


def paper(rec: Recording) -> None:
    """The trainings of every table, our rows from finished runs beside the published ones, errata, verification."""
    for name in TABLES:
        planned = plan(name, extras=True, seeds=[1, 2])
        rec.put(
            f"plan/{name}",
            [{"label": t.label, "special": t.special, "loss": t.recipe.loss} for t in planned.trainings.values()],
        )
        rec.put(f"plan/{name}/hours", [training.hours for training in planned.trainings.values()])
        rec.put(f"plan/{name}/epochs", [training.recipe.epochs for training in planned.trainings.values()])
    rec.put("plan/short", plan("table1", epochs_scale=0.2, settings=["lr=0.05"]))
    runs = Path("paper", "runs")
    runs.mkdir(parents=True)
    for run in sorted((RESULTS / "cifar10").iterdir()):
        method = run.name.removeprefix("resnet50-")  # the names of the runs of a table
        (runs / f"cifar10_resnet50_{method}").symlink_to(run)
    chosen = {"dataset": ["cifar10"], "model": ["resnet50"], "method": ["dual_focal", "cross_entropy"]}
    for name in ("table1", "table2", "adaptive_ece", "classwise_ece", "mce", "nll", "rbs"):
        planned = plan(name, only=chosen, out="paper")
        if all(planned.finished[run] for run in planned.trainings):  # nothing is to be trained here
            rec.call(f"rows/{name}", planned.compare, [])
    put_figures(rec, "figures", RESULTS / "cifar10")
    rec.put("figures/phi", FIGURES["phi"].draw())
    rec.put("errata", {kind: [erratum.key for erratum in errata] for kind, errata in find_errata().items()})
    rec.call("verify", verify, sorted((RESULTS / "published_logits").glob("*.npz")))


def replication(rec: Recording) -> None:
    """The claims that were fixed in advance, decided from the runs of the repository; both plans."""
    for name in PLANS:
        rec.call(name, decide_claims, find_runs(RESULTS / name), name)


def artefacts(rec: Recording) -> None:
    """The run folders of the repository: recipes, results, and their predictions evaluated again."""
    for run in find_runs(RESULTS):
        key = run.path.relative_to(RESULTS).as_posix().replace("/", "-")
        rec.call(f"{key}/recipe", lambda run=run: run.recipe)
        rec.call(f"{key}/epochs", lambda run=run: len(run.log))
        if run.has_predictions:
            rec.call(f"{key}/evaluation", evaluate, *run.predictions("test"))
    first, second = (Run(RESULTS / "cifar10" / f"resnet50-{name}-seed1") for name in ("cross_entropy", "dual_focal"))
    logits, target = first.predictions("test")
    rec.call("compare", compare, logits, second.predictions("test")[0], target)


SECTIONS = {
    "train": Section(train),
    "study": Section(study),
    "paper": Section(paper),
    "artefacts": Section(artefacts),
    "replication": Section(replication),
    "models": Section(models),
    "theory": Section(theory),
    "data": Section(data),
    "lab_figures": Section(lab_figures),
    "recipes": Section(recipes),
}
