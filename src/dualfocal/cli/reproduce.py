"""`dualfocal paper reproduce`: the trainings of a table, what they cost, and our numbers beside the published ones."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer

from dualfocal._checks import did_you_mean
from dualfocal._files import atomic_path
from dualfocal.cli._common import AsJson, bad_input_ends, consoles, stopped_goes_on
from dualfocal.cli._reproduced import content_of, images_shown, list_trainings, markdown, notes_of, show
from dualfocal.cli.data import Root
from dualfocal.cli.study import epochs_shown, numbers
from dualfocal.paper.foreign import Foreign
from dualfocal.paper.published import Table, load_published, published
from dualfocal.paper.reproduction import Row, rows_of, runs_of
from dualfocal.paper.trainings import Training, trainings
from dualfocal.runs import Run
from dualfocal.study import Study, run_study

FIELDS = ("dataset", "model", "method", "variant")


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help=f"table1 to table13, or {', '.join(table.name for table in load_published().tables)}."
        ),
    ],
    only: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Some of its trainings: by dataset, model, method, variant; several values of one add up.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="1,2,...", help="Two or more give an interval. [default: the paper's]")
    ] = None,
    epochs_scale: Annotated[
        float, typer.Option(metavar="X", help="A shorter schedule, such as 0.2; its numbers are not the paper's.")
    ] = 1.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of all recipes: not the paper's, either."),
    ] = None,
    extras: Annotated[
        bool,
        typer.Option("--extras", help="Also what the paper lacks: adaptive losses that adapt, other weight decays."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trainings, and stop.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For runs and tables; tables share runs.")] = Path(
        "paper"
    ),
    data_root_: Root = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trainings at a time. [default: cores; 1 on a GPU]")] = None,
    device: Annotated[str | None, typer.Option(help="By default a GPU if there is one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table of the paper again: train what is missing, and put our numbers beside the published ones.

    Interrupt it as you like; the same command goes on. With two seeds or more it says whether the published run lies
    where one more run of ours would fall, 90 % of the time. What is shown is what was asked for; the files have every
    finished run of the table that lies in the folder.

        dualfocal paper reproduce table1 --dry-run

        dualfocal paper reproduce table1 --only dataset=cifar10,model=resnet50,method=dual_focal --seeds 1,2,3

        dualfocal paper reproduce ablation --epochs-scale 0.2
    """
    printer, errors = consoles(as_json)
    with bad_input_ends():
        table = published(name).as_meant()
        changes = _changes(settings or [])
        everything = {
            key: dataclasses.replace(of, recipe=of.recipe.with_settings(changes))
            for key, of in trainings(table, epochs_scale=epochs_scale, extras=True).items()
        }
        wanted = _chosen({key: of for key, of in everything.items() if extras or not of.extra}, only)
        chosen = [next(iter(wanted.values())).recipe.seed] if seeds is None else numbers("--seeds", seeds, int)
        if not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"--seeds must be different numbers, separated by commas, got {seeds!r}")
        short = f", SHORTENED to {epochs_scale:g} of the paper's epochs" if epochs_scale < 1 else ""
        changed = f", CHANGED: {', '.join(changes)}" if changes else ""
        title = f"{table.key}, {table.title}{short}{changed}"
        suffix = f" x{epochs_scale:g}" if epochs_scale < 1 else ""
        if changes:  # another folder and another file than the paper's
            suffix += f" set-{hashlib.sha256(' '.join(sorted(changes)).encode()).hexdigest()[:6]}"
        recipes = {
            key + suffix: {seed: of.recipe.with_settings([f"seed={seed}"]) for seed in chosen}
            for key, of in wanted.items()
        }
        study = Study(title, recipes)
        folders = {(key.removesuffix(suffix), seed): path for (key, seed), path in study.folders(out).items()}
    if dry_run:
        list_trainings(printer, title, wanted, folders, len(chosen), as_json)
        return
    with bad_input_ends():
        if table.name == "ood_auroc":
            Foreign(data_root_).check()
        told = f"{title}: {len(wanted)} trainings, seeds {', '.join(map(str, chosen))}, into {out}"
        printer.print(told, markup=False, highlight=False, soft_wrap=True)
        with stopped_goes_on(), epochs_shown(errors, len(folders)) as tell:
            failed = run_study(study, out, jobs=jobs, data_root=data_root_, device=device, progress=tell)
        # The file has all that there is of the table; what is shown is what was asked for.
        there = folders | runs_of(everything, out, suffix)
        of_file = {key: of for key, of in everything.items() if any(key == name for name, _ in there)}
        with stopped_goes_on(), images_shown(errors) as tell_images:
            rows = rows_of(table, of_file, there, Foreign(data_root_, device, tell_images))
        asked = [row.of_seeds(chosen) for row in rows if row.training.name in wanted]
        problems = list(failed.values())
        notes = notes_of(folders.values())
        content = content_of(table, title, asked, notes, problems)
        stem = out / (table.key + suffix.replace(" ", "-"))
        _write(stem, title, table, rows, list(there.values()), problems)
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        show(printer, table, asked, notes)
        printer.print(f"Written: {stem}.md, {stem}.json", markup=False, highlight=False, soft_wrap=True)
    for problem in problems:
        typer.echo(f"dualfocal: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _write(stem: Path, title: str, table: Table, rows: list[Row], folders: list[Path], problems: list[str]) -> None:
    """The table as JSON and as Markdown, with every run that is there."""
    told = {problem.partition(": ")[0] for problem in problems}
    earlier = [run for run in map(Run, folders) if run.state == "failed" and str(run.path) not in told]
    problems = [*problems, *(f"{run.path}: {(run.failure or {}).get('what')}" for run in earlier)]
    notes = notes_of(folders)
    texts = {
        "json": json.dumps(content_of(table, title, rows, notes, problems), indent=2) + "\n",
        "md": markdown(title, table, rows, notes),
    }
    for suffix, text in texts.items():
        with atomic_path(stem.with_name(f"{stem.name}.{suffix}")) as path:
            path.write_text(text, encoding="utf-8")


def _changes(settings: list[str]) -> list[str]:
    """What ``--set`` asks for: of two settings of a field, the second."""
    found: dict[str, str] = {}
    for setting in settings:
        field, equals, value = setting.partition("=")
        if field.strip() in ("data", "model", "loss", "seed"):
            raise ValueError(
                f"{field.strip()} is what a row of the table stands for, not for --set; see --only and --seeds"
            )
        found[field.strip()] = f"{field.strip()}{equals}{value.strip()}"
    return list(found.values())


def _chosen(found: dict[str, Training], only: str | None) -> dict[str, Training]:
    """Those that ``--only`` asks for; several values of a field add up."""
    values: dict[str, list[str]] = {}
    for part in only.split(",") if only is not None else ():
        field, equals, value = (text.strip() for text in part.partition("="))
        if not equals or field not in FIELDS:
            near = did_you_mean(field, FIELDS)
            raise ValueError(f"--only is written field=value,..., of {', '.join(FIELDS)}; got {part!r}{near}")
        values.setdefault(field, []).append(value)
    for field, some in values.items():
        attribute = "data" if field == "dataset" else field
        known = sorted({str(getattr(of, attribute)) for of in found.values()})
        for value in some:
            if value not in known:
                raise ValueError(
                    f"--only {field} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}"
                )
        found = {name: of for name, of in found.items() if str(getattr(of, attribute)) in some}
    return found
