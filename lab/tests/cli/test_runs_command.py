"""`dualfocal runs` lists the progress of each run folder; a damaged one is listed, too, and hides no other."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from dualfocal_lab.runs import Run
from dualfocal_lab.runs.lease import Lease

HEADINGS = ["run", "state", "epoch", "error %", "ECE %", "floor %", "NLL", "T", "trained"]
TRAINED = "digits small_cnn dual_focal"


@pytest.fixture
def finished(trained):
    """Copy the trained run to a folder."""

    def finished(name: str = "runs/a") -> Path:
        return Path(shutil.copytree(trained.folder, name))

    return finished


@pytest.fixture
def stopped(trained):
    """Make a folder of a run that was killed after its first epoch."""

    def stopped(name: str = "runs/a") -> Path:
        folder = Path(name)
        folder.mkdir(parents=True)
        shutil.copy(trained.folder / "recipe.json", folder)
        (folder / "log.jsonl").write_text((trained.folder / "log.jsonl").read_text().splitlines(keepends=True)[0])
        return folder

    return stopped


def scores(folder: Path) -> list[str]:
    """The cells of the table for the test split."""
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
    """The one line of the table, as :func:`only_row`, and the line below it."""
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
    assert only_row(run) == " ".join(["runs/a finished 3/3", *scores(folder), TRAINED])
    result = Run(folder).result.to_dict()
    assert record("runs") == {
        "schema": 1,
        "runs": [
            {
                "run": "runs/a",
                "state": "finished",
                "epoch": 3,
                "epochs": 3,
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


def test_a_stopped_run(run, record, stopped):
    folder = stopped()
    (folder / ".attempt" / "0123456789abcdef").mkdir(parents=True)  # left by a killed process
    assert only_row(run) == f"runs/a stopped 1/3 {TRAINED}"
    [row] = record("runs")["runs"]
    assert (row["state"], row["epoch"], row["epochs"]) == ("stopped", 1, 3)
    assert "error" not in row
    (folder / "log.jsonl").unlink()
    assert only_row(run) == f"runs/a stopped 0/3 {TRAINED}"


def test_a_running_run(run, record, stopped):
    folder = stopped()
    with Lease(folder):
        assert only_row(run) == f"runs/a running 1/3 {TRAINED}"
        assert record("runs")["runs"][0]["state"] == "running"
    assert record("runs")["runs"][0]["state"] == "stopped"


def test_a_failed_run_has_its_reason(run, record, stopped):
    run("train", "digits", "--set", "lr=1e30", "--set", "epochs=2", "--out", "runs/a", code=1)
    assert with_problem(run) == (f"runs/a failed 0/2 {TRAINED}", "runs/a: the loss is nan")
    [row] = record("runs")["runs"]
    assert (row["state"], row["problem"]) == ("failed", "the loss is nan")
    Path("runs/a/failure.json").write_text('{"schema": 1}')
    assert with_problem(run)[1] == "runs/a: failure.json does not say why"


def test_a_run_without_a_validation_split_has_no_temperature(run, finished):
    folder = finished()
    wanted = scores(folder)[:-1]
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(
        json.dumps({k: v for k, v in result.items() if k not in ("val", "calibrated", "crc32")})
    )
    assert only_row(run) == " ".join(["runs/a finished 3/3", *wanted, TRAINED])


# --- damage ---


def test_damage_is_reported_and_hides_no_other_run(run, record, finished, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    finished("runs/a")
    finished("runs/c")
    for name, content, problem in (
        ("recipe.json", "{", "is not JSON, or damaged"),
        ("recipe.json", '{"schema": 2}', "has schema 2, this version of dualfocal reads schema 1"),
        ("result.json", "{", "is not JSON, or damaged"),
        ("result.json", '{"schema": 2}', "has schema 2"),
        ("result.json", "[]", "has schema None"),
        ("result.json", '{"schema": 1, "test": 3}', "is damaged"),
        ("result.json", '{"schema": 1, "test": {"error": "low"}}', "is damaged"),
        ("log.jsonl", '{"schema": 2, "epoch": 1}\n', "has schema 2"),
        ("log.jsonl", None, ""),
    ):
        file = finished("runs/b") / name
        file.unlink()
        file.mkdir() if content is None else file.write_text(content)  # a folder is as unreadable as a foreign file
        good, bad, last, below = run("runs")[0].splitlines()[1:]
        assert good.startswith("runs/a  finished"), (name, content)
        assert last.startswith("runs/c  finished"), (name, content)
        assert bad.startswith("runs/b  damaged"), (name, content)
        assert below.startswith("runs/b: "), (name, content)
        assert f"runs/b/{name}" in below, (name, content)
        assert problem in below, (name, content)
        row = record("runs")["runs"][1]
        assert row["state"] == "damaged", (name, content)
        assert below == f"runs/b: {row['problem']}", (name, content)
        shutil.rmtree("runs/b")


def test_an_incomplete_line_of_the_log_does_not_count(run, stopped):
    log = stopped() / "log.jsonl"
    complete = log.read_text()
    for tail in ('{"schema": 1, "epo', '{"schema": 1, "epoch": 2}', "\x00\x00\n", "[]\n"):
        log.write_text(complete + tail)
        assert only_row(run) == f"runs/a stopped 1/3 {TRAINED}", tail


# --- where, and how wide ---


def test_nested_folders_in_order_hidden_ones_left_out(record, finished, stopped):
    for name in ("runs/b/x", "runs/a/y/z", "runs/.old/x"):
        stopped(name)
    finished("runs/b/w")
    Path("runs/empty").mkdir()
    Path("runs/notes.txt").touch()
    assert [row["run"] for row in record("runs")["runs"]] == ["runs/a/y/z", "runs/b/w", "runs/b/x"]


def test_folders_are_listed_in_the_given_order(run, record, finished, stopped):
    for name in ("one/a", "one/b", "two/c"):
        stopped(name)
    finished("runs/a")
    assert [row["run"] for row in record("runs", "two", "one/b", "one/b")["runs"]] == ["two/c", "one/b"]  # once each
    assert [line.split()[0] for line in run("runs", "one", "two")[0].splitlines()[1:]] == ["one/a", "one/b", "two/c"]
    assert only_row(run, "one/a") == f"one/a stopped 1/3 {TRAINED}"


def test_missing_folders_are_refused(refused, stopped):
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
    del recipe["crc32"]
    (folder / "recipe.json").write_text(json.dumps({**recipe, "epochs": 350}))
    log = (json.dumps({"schema": 1, "epoch": epoch}) for epoch in range(1, 351))
    (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in log))
    lines = run("runs")[0].splitlines()
    assert max(map(len, lines)) <= columns
    assert "350/350" in lines[1]
    for number in scores(folder):
        assert any(number in line.split() for line in lines), number
    width = lines[0].index("state")
    (*parts, last) = itertools.takewhile(lambda part: part != "run", (line[:width].strip() for line in lines[1:]))
    assert "".join([*parts, last]) == str(folder)
    assert all(part.endswith(("-", "/")) for part in parts)  # broken between words


def test_listing_changes_no_file(run, finished, stopped):
    finished("runs/a")
    (stopped("runs/b") / ".attempt" / "0123456789abcdef").mkdir(parents=True)
    before = {path: path.read_bytes() if path.is_file() else None for path in Path("runs").rglob("*")}
    times = {path: path.stat().st_mtime_ns for path in before}
    run("runs")
    assert {path: path.read_bytes() if path.is_file() else None for path in Path("runs").rglob("*")} == before
    assert {path: path.stat().st_mtime_ns for path in before} == times


def test_help_has_examples(run):
    lines = [line.strip() for line in run("runs", "--help")[0].splitlines()]
    assert "dualfocal runs" in lines
    assert "dualfocal runs runs/a runs/b" in lines
    assert any("FOLDER" in line and "[default: runs]" in line for line in lines)
