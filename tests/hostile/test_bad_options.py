"""Absurd values of the options of every command: exit code 2, one line, no traceback, nothing written.

``DUALFOCAL_ATTACK`` is the number of random values per option, in addition to those of the table.
"""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from dualfocal.cli import main

RANDOM = int(os.environ.get("DUALFOCAL_ATTACK", "1"))
HUGE = "99999999999999999999"
DIGITS = "1" * 4_400  # more than Python converts to an integer
LONG = "x" * 5_000
COUNT = (HUGE, f"-{HUGE}", "1000000000", "1e9", "1.5", "nan", "inf", "-1", "0", "x", "", "\0", DIGITS)
INDEX = (HUGE, f"-{HUGE}", str(2**63), "1.5", "nan", "x", "", DIGITS)
SEED = (HUGE, "-1", str(2**32), "1.5", "nan", "x", "", DIGITS)
LEVEL = ("nan", "inf", "-inf", "0", "1", "1e400", "x", "")
NAME = ("\0", "\x1b[31m", LONG, ",,,")
CHOICE = ("", "x", "\x1b[31m", LONG)
PICTURE = ("x", "x.gif", "/", "nope/x.png", "\0.png")

EVALUATE, COMPARE, REPORT = ["evaluate", "a.npz"], ["compare", "a.npz", "a.npz"], ["report", "a.npz"]
CALIBRATE, APPLY = ["calibrate", "a.npz", "--out", "c.npz"], ["apply", "a.npz", "a.npz", "--out", "o.npz"]
MONITOR = ["monitor", "s.json", "a.npz"]
TRAIN, STUDY = ["train", "digits", "--out", "r"], ["study", "--out", "s"]
THEORY, REPRODUCE = ["paper", "theory"], ["paper", "reproduce", "table1", "--dry-run"]
FIGURES = ["paper", "figures", "--out", "f", "--only", "phi"]

# Command, option (None: an argument), values.
TABLE = [
    *((EVALUATE, option, COUNT) for option in ("--num-bins", "--folds", "--repeats")),
    *(
        (EVALUATE, option, NAME)
        for option in ("--logits", "--probs", "--target", "--group-by", "--cluster", "--weight")
    ),
    (EVALUATE, "--class-names", (*NAME, "", "@", "@nope", "a.npz")),
    *((EVALUATE, option, NAME) for option in ("--prediction", "--confidence")),
    (EVALUATE, "--shifted", (*NAME, "", "/", "[", "*.nope", "a.npz", "nope.npz")),
    *((EVALUATE, option, CHOICE) for option in ("--binary", "--convention", "--calibrate", "--nope")),
    *((command, "--ignore-index", INDEX) for command in (EVALUATE, COMPARE, REPORT, CALIBRATE, APPLY)),
    *((command, "--num-bins", COUNT) for command in (COMPARE, REPORT)),
    *((command, "--seed", SEED) for command in (EVALUATE, COMPARE, REPORT)),
    *((command, "--level", LEVEL) for command in (EVALUATE, COMPARE, REPORT)),
    *((command, "--plot", PICTURE) for command in (EVALUATE, THEORY, ["data", "verify", "digits"])),
    (["evaluate"], None, ("", "/", "\0", LONG, "nope.npz")),
    (REPORT, "--calibrators", ("", "x", ",", "temperature+" * 500)),
    (REPORT, "--out", ("/", "\0.html", LONG, "nope/x.html")),
    (CALIBRATE, "--method", ("", "x", "+", "temperature+" * 500, "\0")),
    (CALIBRATE, "--out", ("c.pt", "/", "\0.npz", f"{LONG}.npz")),
    (APPLY, "--out", ("o.pt", "/", "\0.npz", "a.npz")),
    *((MONITOR, option, COUNT) for option in ("--num-bins", "--cluster-size")),
    (MONITOR, "--tolerance", ("nan", "inf", "-inf", "1", "-1", "1e400", "x", "")),
    (MONITOR, "--time", (LONG,)),
    (MONITOR, "--ignore-index", INDEX),
    (MONITOR, "--plot", PICTURE),
    (["monitor"], None, ("", "/", "\0", "\0.json", LONG, f"{LONG}.json", "nope.json", "nope.npz", "a.npz")),
    (["monitor", "s.json"], None, ("", "/", "\0", LONG, "nope.npz")),
    (TRAIN, "--checkpoint-every", (*COUNT[:2], *COUNT[3:])),
    (TRAIN, "--device", ("x", f"cpu:{HUGE}")),
    (TRAIN, "--callback", ("", "x", ":", "\0:x", "no_such_module:x", "math:pi", f"{LONG}:{LONG}")),
    (["train"], None, ("", "nope", "\0", LONG, "/", "nope.json")),
    (
        TRAIN,
        "--set",
        (
            *(
                f"{field}={value}"
                for field in ("epochs", "batch_size")
                for value in (HUGE, "1e9", "0", "-1", "nan", "x")
            ),
            *(f"seed={value}" for value in (HUGE, "-1", "1.5", DIGITS)),
            *(f"{field}={value}" for field in ("lr", "weight_decay", "lr_factor") for value in ("nan", "1e400", "-1")),
            *("momentum=2", "clip_norm=0", "clip_norm=nan", "milestones=0", f"milestones={HUGE},1"),
            *("loss=x", "loss.gamma=nan", "loss.gamma=x", "loss.nope=1", f"loss.num_bins={HUGE}"),
            *("data=", "data=nope", "model=", "model=nope", "model=nope:nope", "schedule=x", "precision=x", "step=x"),
            *(
                f"{field}={value}"
                for field in ("loss", "optimizer")
                for value in ("", ":", "a:b:c", "math:pi", "nope:x")
            ),
            *("data=nope:x", "data=math:pi", "loss=json:dumps", "optimizer=json:dumps", "data=json:dumps"),
            *("optimizer.nope=1", "optimizer.lr=1", "optimizer_options=1", "optimizer.nesterov=x"),
            *(f"data.{field}={HUGE}" for field in ("split_seed", "val_size", "val2_size")),
            *("data.val_size=nan", "data.noise=nan", "data.noise=1e400", "=", "", "x", "epochs"),
        ),
    ),
    (STUDY, "--seeds", (HUGE, "-1", "0,0", "x", "1.5", "", DIGITS)),
    (STUDY, "--gamma", ("nan", "inf", "1e400", "-1", "x")),
    (STUDY, "--jobs", COUNT),
    (STUDY, "--losses", ("", "x", ",,")),
    (STUDY, "--dataset", ("", "nope", "\0")),
    (STUDY, "--model", ("", "nope")),
    (STUDY, "--criterion", ("x", "ece")),
    (STUDY, "--out", ("a.npz",)),
    (["runs"], None, ("nope", "a.npz", "\0", LONG)),
    (["data", "verify"], None, ("", "nope", "\0", LONG)),
    (["data", "fetch"], None, ("", "nope", "20newsgroups")),
    (["info"], None, ("nope", "--nope", "")),
    (THEORY, "--gamma", ("nan", "inf", "1e300", "0", "-1", "x", "")),
    (THEORY, "--eta", ("1", "nan,nan", ".5,.6", "inf,-inf", "x", ",".join(["1e-3"] * 1_000))),
    (REPRODUCE, "--seeds", (HUGE, "x", "-1")),
    (REPRODUCE, "--epochs-scale", ("nan", "inf", "1e300", "0", "-1", "x")),
    (REPRODUCE, "--only", ("x", "x=y", "method=", "")),
    (REPRODUCE, "--set", (f"epochs={HUGE}", "x")),
    (REPRODUCE, "--jobs", COUNT),
    (["paper", "reproduce"], None, ("", "nope", f"table{HUGE}")),
    (FIGURES, "--dpi", (HUGE, "0", "x", "nan")),
    (FIGURES, "--format", ("", "gif")),
    (["paper", "figures", "--out", "f"], "--only", ("", "x")),
    (["paper", "errata"], None, ("", "nope", "\0")),
    (["paper", "replication"], None, ("nope", "a.npz", "\0")),
    ([], None, ("nope", "--nope", "\0")),
]
NUMBERS = [(command, option) for command, option, values in TABLE if {"nan", "x"} <= {*values}]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / "cache"))
    monkeypatch.delenv("DUALFOCAL_DATA", raising=False)
    rng = np.random.default_rng(0)
    np.savez("a.npz", logits=rng.normal(size=(60, 3)), target=rng.integers(0, 3, 60))


def refusal(arguments, capsys):
    """Return the lines on stderr of a command that must refuse its arguments."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    return [line for line in err.splitlines() if not line.startswith("a.npz: logits from ")]


def name(row):
    command, option, *_ = row
    return f"{' '.join(command[:2])} {option or 'ARGUMENT'}"


@pytest.mark.parametrize(("command", "option", "values"), TABLE, ids=map(name, TABLE))
def test_an_absurd_value_is_one_line(command, option, values, capsys):
    for value in values:
        arguments = [*command, value] if option is None else [*command, option, value]
        lines = refusal(arguments, capsys)
        assert len(lines) == 1, (value[:40], lines)
        assert lines[0].startswith("dualfocal: "), value[:40]
        assert "\x1b" not in lines[0], value[:40]
        assert HUGE in lines[0] or value != HUGE, lines[0]
    assert [str(path) for path in Path().iterdir()] == ["a.npz"]
    print(f"{len(values)} absurd values refused")


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=map(name, NUMBERS))
def test_random_text_is_no_number(command, option, capsys):
    rng = random.Random(f"{command}{option}")
    for _ in range(RANDOM):
        text = "".join(rng.choices("0123456789abc.,-+eE_ \t\0\x1b\u0661\u00b2", k=rng.randint(1, 30))) + "?"
        assert len(refusal([*command, option, text], capsys)) == 1, text
    print(f"{RANDOM} random texts refused")
