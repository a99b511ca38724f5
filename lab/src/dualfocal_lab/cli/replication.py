"""`dualfocal paper replication` and `verify`: verdicts on the claims of the replication, and published logits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dualfocal.cli.commands import AsJson, consoles, print_json, print_table, say, show

if TYPE_CHECKING:
    from dualfocal_lab.paper.replication import Replication


def replication(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER",
            help="Run folders, or folders that contain them, of one data set. [default: those of the lab on CIFAR-10]",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also draw the pictures of the report into this folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide the claims of the replication, which were fixed in advance, from finished runs.

    There are claims about CIFAR-10 (ResNet-50, cross-entropy, FLSD-53 and dual focal) and about 20 Newsgroups (all
    seven losses of table 1). For each claim, the table has the published number, our mean with an interval over seeds,
    the number of finished runs and the verdict, with all runs and without those that were known when the claims were
    fixed. A claim is pending until all its runs are finished. The commands of the missing trainings are printed at the
    end.

    `--figures`, for CIFAR-10, draws claims.png (all quantities with intervals), training.png (test ECE over the epochs,
    beside the authors' log), temperature.png (before and after temperature scaling) and reliability.png. The authors'
    log and logits come with the lab.

        dualfocal paper replication

        dualfocal paper replication --figures figures

        dualfocal paper replication lab/results/20newsgroups --json
    """
    from dualfocal_lab.paper.replication import decide_claims
    from dualfocal_lab.paper.replication_plan import plan_of, results_folder
    from dualfocal_lab.runs import find_runs

    out, _ = consoles(as_json)
    by_folder = {folder: find_runs(folder) for folder in folders or [results_folder("cifar10")]}
    for folder in folders or ():
        if not by_folder[folder]:
            raise ValueError(f"{folder}: holds no run folder")
    runs = {run.path.resolve(): run for group in by_folder.values() for run in group}
    plan = plan_of(runs.values())
    if figures is not None and plan != "cifar10":
        raise ValueError(f"--figures draws the runs on cifar10, but these are on {plan}")
    decided = decide_claims(runs.values(), plan)
    if as_json:
        print_json(decided.to_dict())
    _print_replication(out, decided)
    if figures is not None:
        from dualfocal_lab.paper.replication_figures import draw_replication

        files = draw_replication(runs.values(), decided, figures)
        say(out, f"\nWritten: {', '.join(map(str, files))}")


def _print_replication(out: Console, decided: "Replication") -> None:
    print_table(out, decided.table())
    say(out, f"\n{decided.explanation()}\n", wrap=True)
    for claim in decided.claims:
        say(out, claim.sentence(), wrap=True)
    if decided.controls:
        show(out, decided.controls_table(), before="\n")
    for title, lines in (
        ("Not finished, and not counted", decided.unfinished),
        ("Not part of the plan", decided.not_in_plan),
        ("Trainings that are missing", decided.missing),
    ):
        if lines:
            say(out, f"\n{title}:")
        for line in lines:  # to be copied, so never broken into lines
            say(out, f"  {line}")


def verify(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="MODEL-DATA-METHOD.npz files. [default: those that come with the lab]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute published numbers from published logits of the same networks.

    Logits of two of the paper's networks have been published: ResNet-50 on CIFAR-10, by cross-entropy and FLSD-53. The
    table has every number of the paper's tables about them, as printed and as recomputed, and whether all printed
    digits agree. The temperature is the one with the least ECE on the validation split, as in the paper.

        dualfocal paper verify
    """
    from dualfocal_lab.paper.verify import FOLDER, verify

    out, _ = consoles(as_json)
    chosen = files or sorted(FOLDER.glob("*.npz"))
    verified = verify(chosen)
    if as_json:
        print_json(verified.to_dict())
    print_table(out, verified.table())
    say(out, f"\n{verified.sentence()}", wrap=True)
