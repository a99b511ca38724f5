"""The command line: each command once or twice, its exit code and the numbers of its JSON.

Where a command is renamed, write its present form into ``new``; ``key`` and ``old`` stay as they were recorded.
"""

import contextlib
import io
import json
import shlex
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inputs
import lab
from values import Recording, Section


@dataclass(frozen=True)
class Command:
    """A command and what is expected of it.

    Args:
        key: under which its numbers are recorded.
        old: the command of version 0.2, without the name of the program. ``{logs}`` and ``{results}`` are folders.
        new: the same command today; empty if it is still the old one.
        code: expected exit code.
        as_json: whether ``--json`` is added, and the JSON recorded.
        writes: a file that it writes, whose content is recorded.
    """

    key: str
    old: str
    new: str = ""
    code: int = 0
    as_json: bool = True
    writes: str = ""

    @property
    def arguments(self) -> list[str]:
        """What the program is called with today."""
        line = (self.new or self.old).format(logs=inputs.LOGS, results=inputs.RESULTS)
        return [*shlex.split(line), *(["--json"] if self.as_json else [])]


COMMANDS = (
    Command("evaluate/npz", "evaluate five.npz"),
    Command(
        "evaluate/binary", "evaluate binary.csv --probs score --target outcome --binary positive --group-by hospital"
    ),
    Command("evaluate/clusters", "evaluate five.csv --cluster patient --weight weight --level 0.95 --seed 7"),
    Command("evaluate/several", "evaluate five.npz other.npz probs.npz"),
    Command("evaluate/merge", "evaluate part1.npz part2.npz --merge --num-bins 10"),
    Command("evaluate/confidence", "evaluate confidence.csv --prediction prediction --confidence confidence"),
    Command("evaluate/calibrate", "evaluate five.npz --calibrate temperature,vector,isotonic --repeats 1"),
    Command("evaluate/multilabel", "evaluate labels.npz --task multilabel --cluster patient"),
    Command("evaluate/shift", "evaluate five.npz --shifted noise-1.npz --shifted noise-2.npz"),
    Command("evaluate/dense", "evaluate dense --ignore-index 255 --boundary 2"),
    Command("evaluate/logs", "evaluate {logs} --format lm-eval --choice-score per-char --no-inference"),
    Command("evaluate/fail-over", "evaluate five.npz --fail-over 0.03", code=3),
    Command("evaluate/published", "evaluate five.npz --convention published --no-inference"),
    Command("compare", "compare five.npz other.npz"),
    Command("compare/id", "compare words.csv shuffled.csv --id id --num-bins 10"),
    Command("calibrate", "calibrate split.npz --split val --method vector --out cal.npz"),
    Command("apply", "apply cal.npz split.npz --split test --out calibrated.npz", writes="calibrated.npz"),
    Command("apply/table", "apply cal.npz five.csv --out calibrated.csv"),
    Command("calibrate/multilabel", "calibrate labels.npz --task multilabel --method platt --out cal-labels.npz"),
    Command("monitor/first", "monitor state.json part1.npz --time first", code=1),
    Command("monitor/second", "monitor state.json part2.npz --time second --classwise", code=2, as_json=False),
    Command("monitor/alarm", "monitor state.json part2.npz --time second", code=1),
    Command("report", "report five.npz --calibrators temperature -o report.html", as_json=False),
    Command("info", "info", as_json=False),
    Command("wrong", "evaluate missing.npz", code=2, as_json=False),
)
LAB_COMMANDS = (
    Command("train", "train digits --set epochs=2 --set seed=3 --device cpu --out run"),
    Command("train/show", "train cifar10_resnet50 --set loss=flsd --show"),
    Command("train/wrong", "train digits --set loss.gama=6 --show", code=2, as_json=False),
    Command("runs", "runs run"),
    Command("evaluate-run", "evaluate run --calibrate temperature"),
    Command(
        "compare-runs", "compare {results}/cifar10/resnet50-cross_entropy-seed1 {results}/cifar10/resnet50-flsd-seed1"
    ),
    Command("calibrate-run", "calibrate run --method vector --out run.npz"),
    Command("apply-run", "apply run.npz run --out run-calibrated.npz", writes="run-calibrated.npz"),
    Command(
        "study",
        "study --losses cross_entropy,dual_focal --seeds 0 --set epochs=2 --jobs 1 --device cpu --out study",
        writes="study/table.csv",
    ),
    Command("data/list", "data list --data-root empty"),
    Command("data/verify", "data verify digits"),
    Command("paper/reproduce", "paper reproduce table1 --dry-run"),
    Command("paper/theory", "paper theory --gamma 2 --eta .5,.3,.2"),
    Command("paper/errata", "paper errata rbs-root"),
    Command("paper/replication", "paper replication {results}/20newsgroups"),
    Command("paper/verify", "paper verify {results}/published_logits/resnet50-cifar10-flsd.npz"),
    Command("paper/figures", "paper figures --only phi --format svg --out figures"),
)


def run(arguments: list[str]) -> tuple[Any, str, str]:
    """Run a command in this process; return its exit code, what it printed, and its remarks."""
    from dualfocal.cli import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
        except Exception as error:
            code = f"raises {type(error).__name__}"
            err.write(traceback.format_exc())
    return code, out.getvalue(), err.getvalue()


def record_commands(rec: Recording, commands: tuple[Command, ...]) -> None:
    """Run the commands in their order, in one folder: some read what others wrote."""
    for command in commands:
        code, out, err = run(command.arguments)
        rec.put(f"{command.key}/exit", code)
        if code != command.code:
            rec.notes.append(f"{command.key}: exit {code}, not {command.code}: {err.strip()[-300:]}")
        if command.as_json:
            try:
                rec.put(f"{command.key}/json", json.loads(out))
            except ValueError:
                rec.put(f"{command.key}/json", "no JSON")
                rec.notes.append(f"{command.key}: no JSON: {out[:200]}")
        if command.writes:
            rec.file(f"{command.key}/file", Path(command.writes))


def commands(rec: Recording) -> None:
    """The commands of the library."""
    inputs.write_files()
    record_commands(rec, COMMANDS)


def lab_commands(rec: Recording) -> None:
    """The commands of the laboratory, and those of the library on its run folders."""
    Path("empty").mkdir()
    planned = lab.studies.make_study(["cross_entropy", "dual_focal"], seeds=[0], settings=["epochs=2"])
    lab.train_study(planned, Path("study"))  # so that the command finds finished runs
    record_commands(rec, LAB_COMMANDS)


SECTIONS = {"lab_commands": Section(lab_commands), "commands": Section(commands)}
