"""The table of all runs in results/, for lab/results/README.md."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from replication_tables import RESULTS, Report, markdown, percent

from dualfocal.metrics.registry import METRICS
from dualfocal.tables import Table
from dualfocal_lab.paper.replication_forest import group_name
from dualfocal_lab.paper.replication_plan import replication_plan
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train.presets import preset


def runs_table(report: Report) -> str:
    """A row for each folder of results/ that holds a run, finished or lost."""
    headings = ["run", "recipe", "device", "date", "commit", "minutes", "error [%]", "ECE [%]", "floor", "NLL"]
    folders = sorted({path.parent for name in ("recipe.json", "result.json") for path in RESULTS.rglob(name)})
    first = [run.path for run in report.runs]  # 350 epochs
    rows = [run_row(path) for path in [*first, *(path for path in folders if path not in first)]]
    return markdown(Table([*headings, "T by ECE", "T by NLL"], rows, left=(0, 1, 2, 3, 4)))


def run_row(path: Path) -> list[str]:
    """Return the row of a run."""
    run, name = Run(path), path.relative_to(RESULTS).as_posix()
    recipe = recipe_words(run.recipe) if run.exists else RECIPES[name]
    link, result = f"[{path.name if name.startswith(('cifar10/', '20newsgroups/')) else name}]({name})", run.result
    if result is None:
        return [link, f"{recipe}; lost after epoch {len(run.log)}: only the log", *[""] * 10]
    test, commits = result.evaluation("test"), [session.get("commit") for session in result.sessions]
    shown = dict.fromkeys(commit[:7] + "+" * commit.endswith("+") for commit in commits if commit)
    cells = [METRICS[metric].text(getattr(test, metric)) for metric in ("error", "ece", "nll")]
    cells.insert(2, percent(result.floor("ece")))
    temperatures = [f"{result.temperature('temperature_ece'):.1f}", f"{result.temperature():.3f}"]
    date = min(session["started"] for session in result.sessions)[:10]
    commit = ", ".join(shown) or f"{replication_plan()['setting']['commit']} \\*"
    minutes = f"{result.seconds / 60:.1f}"
    device = result.device.removeprefix("NVIDIA ")
    return [link, recipe, device, date, commit, minutes, *cells, *temperatures]


TEN_EPOCHS = "dual focal, gamma 5, milestones 4 and 7, epochs 10"
RECIPES = {  # of the run that has no recipe.json
    "cifar10_resnet50_10_epochs_float32": f"{TEN_EPOCHS}, precision float32, channels\\_last no, step eager, seed 1"
}


def recipe_words(recipe: Recipe) -> str:
    """Return the loss, what differs from the preset, and the seed."""
    usual = preset(f"{recipe.data}_{recipe.model}", [f"loss={recipe.loss}"])
    words = [group_name(recipe.loss)]
    for option, value in recipe.loss_options.items():
        words.append(f"{option} {value:g}" if isinstance(value, float | int) else f"{option} {value}")
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name in ("seed", "loss_options", "test_each_epoch") or value == getattr(usual, field.name):
            continue
        words.append(f"{field.name} {value_text(value)}".replace("_", r"\_"))
    return ", ".join([*words, f"seed {recipe.seed}"])


def value_text(value: Any) -> str:
    """Return a setting in words.

    >>> value_text((4, 7)), value_text(False), value_text("tf32")
    ('4 and 7', 'no', 'tf32')
    """
    if isinstance(value, tuple | list):
        return " and ".join(map(str, value))
    return {False: "no", None: "none"}.get(value, str(value))
