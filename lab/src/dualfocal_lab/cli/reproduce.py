"""`dualfocal paper reproduce`: train the runs of a table, and print our numbers beside the published ones."""

from pathlib import Path
from typing import Annotated

import typer

from dualfocal.cli.commands import AsJson, comma_separated, consoles, names_of, print_json, print_table, say
from dualfocal.tables import quantity
from dualfocal_lab.cli import _engines as engines
from dualfocal_lab.cli._common import DEVICES, FIELDS, Jobs, end_with, stopped_goes_on, training_bar
from dualfocal_lab.cli.data import Root
from dualfocal_lab.paper.published import published_tables

TABLES = (*(f"table{number}" for number in range(1, 14)), *(table.name for table in published_tables()))


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=names_of(TABLES),
            help=f"table1 to table13, or {', '.join(table.name for table in published_tables())}.",
        ),
    ],
    only: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Select trainings by dataset, model, method or variant; repeat a field to select several values.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="1,2,...", help="Seeds; two or more give an interval. [default: the paper's]")
    ] = None,
    epochs_scale: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Shorten the schedule, for example to 0.2; the numbers are then not comparable with the paper.",
        ),
    ] = 1.0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a setting of all recipes; the numbers are then not comparable with the paper.",
        ),
    ] = None,
    extras: Annotated[
        bool,
        typer.Option(
            "--extras", help="Also train what the paper lacks: adaptive losses that do adapt, other weight decays."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trainings and exit.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for runs and tables; tables share runs.")] = Path(
        "paper"
    ),
    data_root_: Root = None,
    jobs: Jobs = None,
    device: Annotated[
        str | None, typer.Option(autocompletion=names_of(DEVICES), help="Device. [default: a GPU if there is one]")
    ] = None,
    engine: engines.EngineOption = engines.EngineName.local,
    address: engines.Address = None,
    cpus_per_run: engines.CpusPerRun = None,
    gpus_per_run: engines.GpusPerRun = None,
    shard: engines.ShardOption = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table of the paper: train the missing runs and print our numbers beside the published ones.

    After an interruption, run the same command again to continue. With two or more seeds, the output says whether the
    published number lies in the 90 % prediction interval of one more run of ours. The printed table has the selected
    trainings; the files have every finished run of the table in the folder.

        dualfocal paper reproduce table1 --dry-run

        dualfocal paper reproduce table1 --only dataset=cifar10,model=resnet50,method=dual_focal --seeds 1,2,3

        dualfocal paper reproduce ablation --epochs-scale 0.2

        dualfocal paper reproduce table1 --engine ray --address auto --gpus-per-run 0.5 --out /shared/paper

        dualfocal paper reproduce table1 --shard 2/8 --out /shared/paper
    """
    from dualfocal_lab.paper.reproduce import plan

    printer, errors = consoles(as_json)
    planned = plan(
        name,
        only=_only(only),
        seeds=None if seeds is None else comma_separated("--seeds", seeds, int),
        epochs_scale=epochs_scale,
        settings=settings or [],
        extras=extras,
        out=out,
    )
    if dry_run:
        if as_json:
            print_json(planned.to_dict())
        say(printer, planned.study.title, wrap=True)
        print_table(printer, planned.as_table())
        say(printer, planned.cost(), wrap=True)
        return
    part = engines.parse_shard(shard)
    trainer = engines.make_engine(
        engine, jobs=jobs, device=device, address=address, cpus_per_run=cpus_per_run, gpus_per_run=gpus_per_run
    )
    say(
        printer,
        f"{planned.study.title}: {quantity(len(planned.trainings), 'training')}, "
        f"seeds {', '.join(map(str, planned.study.seeds))}, into {out}",
    )
    with stopped_goes_on(errors):
        with engines.training_display(errors, engine) as watch:
            failed = planned.train(engine=trainer, shard=part, data_root=data_root_, watch=watch)
        if part is not None and not planned.study.is_finished(out):
            engines.say_shard(printer, planned.study, out, part, as_json)
            end_with(errors, failed)
            return
        with training_bar(errors) as bar:
            reproduction = planned.compare(
                failed,
                data_root=data_root_,
                device=device,
                progress=lambda what, done, total: bar(done, total=total, description=what),
            )
    if as_json:
        print_json(reproduction.to_dict())
    print_table(printer, reproduction.as_table())
    say(printer, reproduction.explanation(), wrap=True)
    for note in reproduction.notes:
        say(printer, f"Note: {note}.")
    say(printer, f"Written: {', '.join(map(str, planned.files()))}")
    end_with(errors, reproduction.failed)


def _only(text: str | None) -> dict[str, list[str]]:
    """Parse ``--only`` into the selected values of each field."""
    values: dict[str, list[str]] = {}
    for part in text.split(",") if text is not None else ():
        field, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--only must be FIELD=VALUE,... with a field of {', '.join(FIELDS)}; got {part!r}")
        values.setdefault(field, []).append(value)
    return values
