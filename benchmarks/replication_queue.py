"""Train the missing runs of a replication plan, one after another; start it again after a stop, and it goes on.

    nice python benchmarks/replication_queue.py 20newsgroups [OUT] [--jobs 1]

The plans are lab/src/dualfocal_lab/paper/replication_*.json. Run folders go to OUT, the default is lab/results/PLAN. An
interrupted training continues from its last epoch. $DUALFOCAL_DATA must have the data set.
"""

import argparse
from pathlib import Path

from dualfocal_lab.data import load_data
from dualfocal_lab.paper.replication_plan import PLANS, replication_plan, results_folder, sort_runs
from dualfocal_lab.runs import find_runs
from dualfocal_lab.study import LocalEngine
from dualfocal_lab.study.engine import Task


def missing(plan: str, out: Path) -> list[Task]:
    """The planned runs that are not finished. Which gammas are planned may depend on the finished runs."""
    runs = find_runs(out) if out.is_dir() else []
    places = sort_runs(runs, plan)
    return [Task(run.recipe, out / run.folder) for run in places.wanted() if run.name not in places.planned]


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("out", type=Path, nargs="?", help="default: lab/results/PLAN")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default %(default)s)")
    args = parser.parse_args()
    out = args.out or results_folder(args.plan)
    load_data(replication_plan(args.plan)["setting"]["dataset"])  # decodes the files once, for all processes
    while tasks := missing(args.plan, out):
        print(f"{len(tasks)} trainings are missing", flush=True)
        for update in LocalEngine(args.jobs).train(tasks, out, None):
            for folder, outcome in update.ended.items():
                print(folder.name, outcome.problem or "finished", flush=True)
                if outcome.problem:
                    return


if __name__ == "__main__":
    main()
