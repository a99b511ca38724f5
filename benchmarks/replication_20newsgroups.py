"""Train the missing runs of the replication on 20 Newsgroups, in the order of their importance; resumes after a stop.

    python benchmarks/replication_20newsgroups.py [OUT] [--jobs 1]

The plan is src/dualfocal/paper/replication_20newsgroups.json. First the three losses that the claims compare, the other
gammas of dual focal with seed 1, the other losses and the float32 controls; then the gammas that validation has chosen,
with all seeds. $DUALFOCAL_DATA must have the corpus and glove.6B.100d.txt. Run folders go to OUT, the default is
results/20newsgroups.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dualfocal.data import load_data
from dualfocal.runs import Recipe, Run
from dualfocal.study import LocalEngine
from dualfocal.study.engine import Task
from dualfocal.train.presets import preset

PLAN_FILE = Path(__file__).resolve().parents[1] / "src/dualfocal/paper/replication_20newsgroups.json"
PLAN = json.loads(PLAN_FILE.read_text("utf-8"))
SETTING = PLAN["setting"]
SEEDS = SETTING["seeds"]


def recipe(loss: str, seed: int, *settings: str) -> Recipe:
    """The recipe of a run of the plan."""
    fixed = [f"loss={loss}", f"seed={seed}", f"precision={SETTING['precision']}", "test_each_epoch=true"]
    return preset(f"{SETTING['dataset']}_{SETTING['model']}", [*fixed, *settings])


def with_gamma(gamma: float, seed: int) -> tuple[str, Recipe]:
    """Folder and recipe of a run of dual focal."""
    group = "dual_focal" if gamma == SETTING["dual_focal_gamma"] else f"dual_focal-gamma{gamma:g}"
    return f"{SETTING['model']}-{group}-seed{seed}", recipe("dual_focal", seed, f"loss.gamma={gamma}")


def first_runs() -> dict[str, Recipe]:
    """All runs but those of the chosen gammas: folder -> recipe."""
    gamma = SETTING["dual_focal_gamma"]
    runs = dict([with_gamma(gamma, SEEDS["dual_focal"][0])])
    main = ("cross_entropy", "flsd")
    for loss in main:
        runs[f"{SETTING['model']}-{loss}-seed1"] = recipe(loss, 1)
    runs |= dict(with_gamma(other, SEEDS["dual_focal"][0]) for other in SETTING["gammas"])
    for seed in SEEDS["dual_focal"][1:]:
        runs |= dict([with_gamma(gamma, seed)])
        runs |= {f"{SETTING['model']}-{loss}-seed{seed}": recipe(loss, seed) for loss in main}
    others = [loss for loss in SEEDS if loss not in (*main, "dual_focal")]
    runs |= {f"{SETTING['model']}-{loss}-seed{seed}": recipe(loss, seed) for loss in others for seed in SEEDS[loss]}
    for control in PLAN["controls"]:
        loss, *settings = control["recipe"].replace("--set ", "").split()
        runs[control["folder"]] = recipe(loss.removeprefix("loss="), 1, *settings)
    return runs


def chosen_runs(out: Path) -> dict[str, Recipe]:
    """Runs of the gammas with the lowest validation NLL and validation ECE, of the kept epoch of seed 1."""
    seed, *_ = SEEDS["dual_focal"]
    kept = {}
    for gamma in SETTING["gammas"]:
        log = Run(out / with_gamma(gamma, seed)[0]).log
        kept[gamma] = min(log, key=lambda line: line["val_error"])  # the first of equal ones, as in training
    chosen = {min(kept, key=lambda gamma: kept[gamma][name]) for name in ("val_nll", "val_ece")}
    print("validation of each gamma:", {gamma: (line["val_nll"], line["val_ece"]) for gamma, line in kept.items()})
    print("chosen:", sorted(chosen))
    return dict(with_gamma(gamma, seed) for gamma in sorted(chosen) for seed in SEEDS["dual_focal"])


def train(runs: dict[str, Recipe], out: Path, jobs: int) -> None:
    """Train the runs that are not finished, some at a time."""
    tasks: Sequence[Task] = [Task(recipe, out / name) for name, recipe in runs.items()]
    tasks = [task for task in tasks if Run(task.folder).state != "finished"]
    if not tasks:
        return
    for update in LocalEngine(jobs).train(tasks, out, None):
        for folder, outcome in update.ended.items():
            print(folder.name, outcome.problem or "finished", flush=True)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("results/20newsgroups"))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default %(default)s)")
    args = parser.parse_args()
    load_data(SETTING["dataset"])  # reads the texts once, for all processes
    train(first_runs(), args.out, args.jobs)
    train(chosen_runs(args.out), args.out, args.jobs)


if __name__ == "__main__":
    main()
