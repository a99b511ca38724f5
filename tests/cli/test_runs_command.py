"""`dualfocal runs`: how far each run folder has come; one that is damaged is listed too, and hides no other."""

import json
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from dualfocal.runs import Run
from dualfocal.train import train
from dualfocal.train.presets import preset

HEADINGS = ["run", "state", "epoch", "error %", "ECE %", "floor %", "NLL", "T", "trained"]
RECIPE = preset("digits", ["epochs=2", "seed=3"])
TRAINED = "digits small_cnn dual_focal"
FAILED = {  # as dualfocal.train.failure writes it
    "schema": 1,
    "what": "the loss is nan",
    "epoch": 2,
    "step": 4,
    "steps": 6,
    "lr": 0.05,
    "checkpoint_of_epoch": 1,
    "recent_losses": [2.5, None],
    "recent_grad_norms": [],
    "weight_norm": 9.5,
    "batch": {"samples": [], "targets": [], "inputs": {}, "logits": None},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A finished run: made once."""
    return train(RECIPE, tmp_path_factory.mktemp("made") / "run", progress=False).path


@pytest.fixture
def finished(made):
    """Make copies of it, under any name."""

    def finished(name: str = "runs/a") -> Path:
        return Path(shutil.copytree(made, name))

    return finished


@pytest.fixture
def stopped(made):
    """What is left of it when it was killed after its first epoch."""

    def stopped(name: str = "runs/a") -> Path:
        folder = Path(name)
        folder.mkdir(parents=True)
        shutil.copy(made / "recipe.json", folder)
        (folder / "log.jsonl").write_text((made / "log.jsonl").read_text().splitlines(keepends=True)[0])
        return folder

    return stopped


def scores(folder: Path) -> list[str]:
    """What the table should say of its test part."""
    result = json.loads((folder / "result.json").read_text())
    test = result["test"]
    floor = test["inference"]["floors"]["ece"]["mean"]
    temperature = result["calibrated"]["temperature"]["temperature"]
    percent = [f"{100 * value:.2f}" for value in (test["error"], test["ece"], floor)]
    return [*percent, f"{test['nll']:.4f}", f"{temperature:.3f}"]


def only_row(run, *folders: object) -> str:
    """The one line of the table, its words separated by single spaces."""
    lines = run("runs", *folders)[0].splitlines()
    assert " ".join(lines[0].split()) == " ".join(HEADINGS)
    assert len(lines) == 2
    return " ".join(lines[1].split())


def with_problem(run) -> tuple[str, str]:
    """The one line of the table, as :func:`only_row`, and what is said below it."""
    _, row, problem = run("runs")[0].splitlines()
    return " ".join(row.split()), problem


# --- states ---


def test_no_folder_and_an_empty_one(run, record):
    assert run("runs") == ("no runs in runs\n", "")
    assert not Path("runs").exists()
    Path("runs/[red]x").mkdir(parents=True)
    assert run("runs") == ("no runs in runs\n", "")
    assert run("runs", "runs", "runs/[red]x")[0] == "no runs in runs, runs/[red]x\n"
    assert record("runs") == {"schema": 1, "runs": []}


def test_a_finished_run_has_the_numbers_of_its_result(run, record, finished):
    folder = finished()
    assert only_row(run) == " ".join(["runs/a finished 2/2", *scores(folder), TRAINED])
    result = Run(folder).result.to_dict()
    assert record("runs") == {
        "schema": 1,
        "runs": [
            {
                "run": "runs/a",
                "state": "finished",
                "epoch": 2,
                "epochs": 2,
                "data": "digits",
                "model": "small_cnn",
                "loss": "dual_focal",
                "loss_options": {},
                "seed": 3,
                "part": "test",
                "error": result["test"]["error"],
                "ece": result["test"]["ece"],
                "nll": result["test"]["nll"],
                "floor": result["test"]["inference"]["floors"]["ece"]["mean"],
                "temperature": result["calibrated"]["temperature"]["temperature"],
            }
        ],
    }


def test_a_run_that_was_stopped(run, record, stopped):
    stopped()
    assert only_row(run) == f"runs/a stopped 1/2 {TRAINED}"
    [row] = record("runs")["runs"]
    assert (row["state"], row["epoch"], row["epochs"]) == ("stopped", 1, 2)
    assert "error" not in row


def test_a_run_that_was_killed_leaves_a_lock_that_nobody_holds(run, stopped):
    (stopped() / ".lock").touch()
    assert only_row(run) == f"runs/a stopped 1/2 {TRAINED}"


def test_a_run_that_is_running(run, record, stopped):
    folder = stopped()
    with FileLock(folder / ".lock"):
        assert only_row(run) == f"runs/a running 1/2 {TRAINED}"
        assert record("runs")["runs"][0]["state"] == "running"
    assert record("runs")["runs"][0]["state"] == "stopped"


def test_a_run_that_has_not_come_to_its_first_epoch(run, stopped):
    (stopped() / "log.jsonl").unlink()
    assert only_row(run) == f"runs/a stopped 0/2 {TRAINED}"


def test_a_run_that_failed_says_why(run, record, stopped):
    (stopped() / "failure.json").write_text(json.dumps(FAILED))
    table, problem = with_problem(run)
    assert table == f"runs/a failed 1/2 {TRAINED}"
    assert problem == "runs/a: the loss is nan"
    [row] = record("runs")["runs"]
    assert (row["state"], row["problem"]) == ("failed", "the loss is nan")


def test_a_run_that_failed_in_training_is_listed(run):
    run("train", "digits", "--set", "lr=1e30", "--set", "epochs=2", "--out", "runs/a", code=1)
    assert with_problem(run) == (f"runs/a failed 0/2 {TRAINED}", "runs/a: the loss is nan")


def test_a_run_without_a_validation_part_has_no_temperature(run, finished):
    folder = finished()
    wanted = scores(folder)[:-1]
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k not in ("val", "calibrated")}))
    assert only_row(run) == " ".join(["runs/a finished 2/2", *wanted, TRAINED])


# --- damage ---


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "recipe.json",
            "{",
            "is not JSON, or damaged: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("recipe.json", '{"schema": 2}', "has schema 2, this version of dualfocal reads schema 1"),
        ("result.json", "{", "is not JSON, or damaged: Expecting property name enclosed in double quotes"),
        ("result.json", '{"schema": 2}', "has schema 2, this version of dualfocal reads schema 1"),
        ("result.json", "[]", "has schema None, this version of dualfocal reads schema 1"),
        ("log.jsonl", '{"schema": 2, "epoch": 1}\n', "has schema 2, this version of dualfocal reads schema 1"),
    ],
)
def test_damage_is_told_and_hides_no_other_run(run, record, finished, monkeypatch, name, content, problem):
    monkeypatch.setenv("COLUMNS", "300")
    finished("runs/a")
    (finished("runs/b") / name).write_text(content)
    finished("runs/c")
    good, bad, last, below = run("runs")[0].splitlines()[1:]
    assert good.startswith("runs/a  finished")
    assert last.startswith("runs/c  finished")
    assert bad.startswith("runs/b  damaged")
    assert below.startswith(f"runs/b: runs/b/{name}: {problem}")
    row = record("runs")["runs"][1]
    assert row["state"] == "damaged"
    assert row["problem"].startswith(f"runs/b/{name}: {problem}")


@pytest.mark.parametrize("tail", ['{"schema": 1, "epo', '{"schema": 1, "epoch": 2}', "\x00\x00\n", "[]\n"])
def test_a_line_of_the_log_that_is_half_there_does_not_count(run, stopped, tail):
    with (stopped() / "log.jsonl").open("a") as file:
        file.write(tail)
    assert only_row(run) == f"runs/a stopped 1/2 {TRAINED}"


def test_a_log_that_cannot_be_read(record, finished):
    folder = finished()
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").mkdir()  # as unreadable as one of somebody else
    [row] = record("runs")["runs"]
    assert row["state"] == "damaged"
    assert "log.jsonl" in row["problem"]


@pytest.mark.parametrize("test", [3, {"error": "low"}])
def test_a_result_with_something_else_in_it(run, finished, test):
    folder = finished()
    (folder / "result.json").write_text(json.dumps({"schema": 1, "test": test}))
    table, problem = with_problem(run)
    assert table == f"runs/a damaged 2/2 {TRAINED}"
    assert problem.startswith("runs/a: runs/a/result.json: is damaged: ")


def test_a_failure_that_does_not_say_why(run, stopped):
    (stopped() / "failure.json").write_text('{"schema": 1}')
    assert with_problem(run)[1] == "runs/a: failure.json does not say why"


# --- where, and how wide ---


def test_nested_folders_in_order_hidden_ones_left_out(record, finished, stopped):
    for name in ("runs/b/x", "runs/a/y/z", "runs/.old/x"):
        stopped(name)
    finished("runs/b/w")
    Path("runs/empty").mkdir()
    Path("runs/notes.txt").touch()
    assert [row["run"] for row in record("runs")["runs"]] == ["runs/a/y/z", "runs/b/w", "runs/b/x"]


def test_folders_as_they_are_given(run, record, finished, stopped):
    for name in ("one/a", "one/b", "two/c"):
        stopped(name)
    finished("runs/a")
    assert [row["run"] for row in record("runs", "two", "one/b")["runs"]] == ["two/c", "one/b"]
    assert [line.split()[0] for line in run("runs", "one", "two")[0].splitlines()[1:]] == ["one/a", "one/b", "two/c"]
    assert only_row(run, "one/a") == f"one/a stopped 1/2 {TRAINED}"


def test_a_run_is_listed_once(record, stopped):
    stopped()
    assert [row["run"] for row in record("runs", "runs", "runs/a")["runs"]] == ["runs/a"]


def test_folders_that_are_not_there(refused, stopped):
    stopped()
    Path("file").touch()
    assert refused("runs", "runs", "nothing") == "there is no folder 'nothing'"
    assert refused("runs", "file") == "there is no folder 'file'"


def test_names_are_not_markup(run, record, finished, stopped):
    finished("runs/[red]x")
    stopped("runs/:smile:")
    lines = run("runs")[0].splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["runs/:smile:", "runs/[red]x"]
    assert [row["run"] for row in record("runs")["runs"]] == ["runs/:smile:", "runs/[red]x"]


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_loses_no_number_and_no_name(run, finished, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    folder = finished("runs/digits-small_cnn-dual_focal-seed3-0123abcd")
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**recipe, "epochs": 350}))
    log = (json.dumps({"schema": 1, "epoch": epoch}) for epoch in range(1, 351))
    (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in log))
    lines = run("runs")[0].splitlines()
    assert max(map(len, lines)) <= columns
    numbers = next(line.split() for line in lines if "350/350" in line)
    at = numbers.index("350/350")
    assert numbers[at + 1 : at + 6] == scores(folder)
    width = next(line for line in lines if "350/350" in line).index(" ")
    assert str(folder) in "".join(line[:width].strip() for line in lines)


def test_many_runs_a_line_each(run, finished, stopped):
    folder = finished("runs/a")
    for i in range(20):
        stopped(f"runs/b{i:02}")
    lines = run("runs")[0].splitlines()
    assert len(lines) == 22
    assert " ".join(lines[1].split()) == " ".join(["runs/a finished 2/2", *scores(folder), TRAINED])
    assert " ".join(lines[21].split()) == f"runs/b19 stopped 1/2 {TRAINED}"


def test_looking_changes_no_file(run, finished, stopped):
    finished("runs/a")
    (stopped("runs/b") / ".lock").touch()
    paths = [path for path in Path("runs").rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
    run("runs")
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths} == before


def test_help_has_examples(run):
    lines = [line.strip() for line in run("runs", "--help")[0].splitlines()]
    assert "dualfocal runs" in lines
    assert "dualfocal runs runs/a runs/b" in lines
    assert any("FOLDER" in line and "[default: runs]" in line for line in lines)
