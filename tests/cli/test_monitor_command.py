"""`dualfocal monitor`: a state file, fed with prediction files day by day."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from samples import draw_logits, write_run

from dualfocal.metrics import CalibrationMonitor
from dualfocal.predictions import save_predictions

SHARP = {"calibrated": 1.0, "over-confident": 0.5}  # of the labels, relative to the logits


@pytest.fixture
def day():
    """Write the predictions of a day; returns the name of the file."""

    def write(number: int, kind: str = "calibrated", suffix: str = ".npz", num_classes: int = 3) -> str:
        generator = torch.Generator().manual_seed(number)
        logits = 2 * torch.randn(300, num_classes, generator=generator, dtype=torch.float64)
        target = torch.multinomial((SHARP[kind] * logits).softmax(1), 1, generator=generator)[:, 0]
        name = f"day{number}{suffix}"
        save_predictions(name, logits, input="logits", target=target)
        return name

    return write


def test_a_state_is_started_and_goes_on(day, run):
    out, err = run("monitor", "state.json", day(0))
    assert err.startswith("day0.npz: logits from 'logits' (300 x 3, float64)")
    assert [line.split()[1] for line in out.splitlines() if "300" in line][:1] == ["day0"]
    assert out.splitlines()[-1].startswith("No alarm: no miscalibration detected (300 samples in 1 period).")
    out, _ = run("monitor", "state.json", day(1), day(2))
    assert "900 samples in 3 periods" in out
    assert sorted(path.name for path in Path().iterdir()) == ["day0.npz", "day1.npz", "day2.npz", "state.json"]


def test_an_alarm_is_exit_code_1_until_a_reset(day, run):
    run("monitor", "state.json", *(day(i) for i in range(5)))
    files = [day(i, "over-confident") for i in range(5, 8)]
    out, _ = run("monitor", "state.json", *files, code=1)
    assert "Over-confident since about day5" in out
    assert run("monitor", "state.json", code=1)[0].splitlines()[-1] == out.splitlines()[-1]
    out, _ = run("monitor", "state.json", "--reset", code=0)
    assert out == "No samples yet.\n"
    assert "300 samples in 1 period)" in run("monitor", "state.json", day(8))[0]


def test_columns_of_class_1_are_probability_and_frequency(day, run):
    out, _ = run("monitor", "state.json", day(0, num_classes=2), "--binary", "positive")
    assert "prob. %" in out
    assert "freq. %" in out
    assert "conf. %" in run("monitor", "b.json", "day0.npz")[0]


def test_json_and_python_give_the_same_numbers(day, record):
    names = [day(0, suffix=".csv"), day(1, suffix=".parquet")]
    content = record("monitor", "state.json", *names, "--classwise", "--num-bins", 10)
    monitor = CalibrationMonitor(classwise=True, num_bins=10)
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        logits = 2 * torch.randn(300, 3, generator=generator, dtype=torch.float64)
        target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        monitor.update(logits, target, time=f"day{number}")
    assert content["log_evidence"] == pytest.approx(monitor.log_evidence, abs=1e-9)
    assert (content["num_samples"], content["alarm"]) == (600, None)
    assert [new["file"] for new in content["new"]] == names
    assert content["history"] == [period.to_dict() for period in monitor.history]
    assert content["settings"] == monitor.settings
    assert record("monitor", "state.json")["verdict"] == content["verdict"]


def test_a_file_larger_than_the_memory_gives_the_same_state(day, run):
    run("monitor", "whole.json", day(0, suffix=".csv"), "--classwise")
    run("monitor", "chunks.json", "day0.csv", "--classwise", "--max-memory", "4KB")
    whole, chunks = (json.loads(Path(name).read_text())["monitor"] for name in ("whole.json", "chunks.json"))
    assert whole.keys() == chunks.keys()
    for name, cells in whole["cells"].items():
        assert chunks["cells"][name] == pytest.approx(cells, rel=1e-12, abs=1e-12)


def test_confidences_of_predicted_classes_are_enough(record):
    rows = "cat,0.9,cat\n" * 9 + "cat,0.9,dog\n" + "dog,0.8,dog\n" * 8 + "dog,0.8,cat\n" * 2
    Path("a.csv").write_text("prediction,confidence,label\n" + 5 * rows)
    options = ("--prediction", "prediction", "--confidence", "confidence", "--target", "label")
    (new,) = record("monitor", "state.json", "a.csv", *options)["new"]
    assert (new["num_samples"], new["correct"]) == (100, 85)
    assert new["confidence"] == pytest.approx(85.0)


def test_the_same_file_is_not_added_twice_by_mistake(day, run, refused):
    run("monitor", "state.json", day(0))
    before = Path("state.json").read_bytes()
    Path("day0.npz").rename("again.npz")
    line = refused("monitor", "state.json", "again.npz")
    assert line == "again.npz: these predictions were added before, as 'day0.npz'; --again adds them once more"
    refused("monitor", "state.json", day(1), "again.npz")
    assert Path("state.json").read_bytes() == before
    assert "600 samples in 2 periods" in run("monitor", "state.json", "again.npz", "--again")[0]
    assert "added before" in refused("monitor", "state.json", "again.npz", "--reset")


def test_settings_are_those_of_the_first_use(day, run, refused):
    run("monitor", "state.json", day(0), "--tolerance", 0.01, "--cluster-size", 2)
    run("monitor", "state.json", day(1), "--tolerance", 0.01)
    for option, old, new in (
        ("--num-bins", "with --num-bins 15", 10),
        ("--tolerance", "with --tolerance 0.01", 0.02),
        ("--cluster-size", "with --cluster-size 2", 3),
        ("--binary", "without --binary", "positive"),
    ):
        line = refused("monitor", "state.json", day(2), option, new)
        assert line.startswith(f"state.json: was started {old}, but now {option} is {new}: leave it out")
    assert "without --classwise, but now --classwise is True" in refused(
        "monitor", "state.json", "day2.npz", "--classwise"
    )


def test_without_files_no_option_is_ignored(day, run, refused):
    run("monitor", "state.json", day(0), "--num-bins", 10)
    assert "was started with --num-bins 10, but now --num-bins is 5" in refused(
        "monitor", "state.json", "--num-bins", 5
    )
    assert "No alarm" in run("monitor", "state.json", "--num-bins", 10)[0]
    for options in (["--probs", "x"], ["--time", "today"], ["--again"], ["--reset", "--percent"]):
        option = options[-1] if options[0] == "--reset" else options[0]
        assert refused("monitor", "state.json", *options).startswith(f"{option} needs prediction files")


def test_a_label_of_ones_own(day, record, refused):
    assert record("monitor", "state.json", day(0), "--time", "release 7")["history"][0]["time"] == "release 7"
    assert "--time is the label of one file, but 2 are given" in refused(
        "monitor", "state.json", day(1), day(2), "--time", "x"
    )


def test_periods_are_labelled_by_the_names_of_their_files(day, record):
    for name in ("2026-10-01.npz", "v1.5.npz"):
        Path(day(len(name))).rename(name)
    with gzip.open("2026-10-02.csv.gz", "wb") as file:
        file.write(Path(day(2, suffix=".csv")).read_bytes())
    Path("days").mkdir()
    Path(day(3)).rename("days/2026-10-03.npz")
    files = ["2026-10-01.npz", "2026-10-02.csv.gz", "days/2026-10-03.npz", "v1.5.npz"]
    for name in files:
        os.utime(name, (0, 0))  # as after a copy
    history = record("monitor", "state.json", *files)["history"]
    assert [period["time"] for period in history] == ["2026-10-01", "2026-10-02", "2026-10-03", "v1.5"]


def test_a_name_that_is_not_unicode_can_be_drawn(day, run):
    name = os.fsdecode(b"caf\xe9.npz")
    Path(day(0)).rename(name)
    run("monitor", "state.json", name, "--plot", "evidence.png")
    assert json.loads(Path("state.json").read_text())["monitor"]["history"][0]["time"] == "caf\N{REPLACEMENT CHARACTER}"


def test_two_periods_do_not_have_the_same_label(day, run, refused):
    for number in range(2):
        Path(f"2026-10-0{number + 1}").mkdir()
        Path(day(number)).rename(f"2026-10-0{number + 1}/predictions.npz")
    files = ["2026-10-01/predictions.npz", "2026-10-02/predictions.npz"]
    line = refused("monitor", "state.json", *files)
    assert line.startswith("2026-10-02/predictions.npz: ")
    assert "'predictions'" in line
    assert "--time LABEL" in line
    assert not Path("state.json").exists()
    run("monitor", "state.json", files[0])
    assert "'predictions'" in refused("monitor", "state.json", files[1])
    assert "600 samples in 2 periods" in run("monitor", "state.json", files[1], "--time", "2026-10-02")[0]
    assert "'2026-10-02'" in refused("monitor", "state.json", day(3), "--time", "2026-10-02")


def test_a_bad_file_changes_nothing(day, run, refused):
    run("monitor", "state.json", day(0), "--classwise")
    before = Path("state.json").read_bytes()
    np.savez("nan.npz", logits=np.full((3, 3), np.nan), target=np.zeros(3, int))
    assert "nan.npz: " in refused("monitor", "state.json", day(1), "nan.npz")
    np.savez("labels.npz", logits=np.zeros((3, 3)), target=np.array([0, 1, 3]))
    assert "labels.npz: " in refused("monitor", "state.json", "labels.npz")
    assert "day3.npz: has 4 classes" in refused("monitor", "state.json", day(3, num_classes=4))
    assert Path("state.json").read_bytes() == before
    refused("monitor", "new.json", "nan.npz")
    assert not Path("new.json").exists()
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_predictions_of_a_model_with_other_classes_are_refused(day, run, refused):
    run("monitor", "state.json", day(0))
    before = Path("state.json").read_bytes()
    for options in ([], ["--again"], ["--reset"]):
        line = refused("monitor", "state.json", day(1), day(2, num_classes=4), *options)
        assert line.startswith("day2.npz: has 4 classes, but the files before have 3: ")
    assert Path("state.json").read_bytes() == before
    run("monitor", "other.json", day(2, num_classes=4))


def test_a_file_of_confidences_fits_any_number_of_classes(day, run, refused):
    Path("day1.csv").write_text("guess,sure,label\ncat,0.7,cat\ndog,0.6,cat\n")
    options = ["--prediction", "guess", "--confidence", "sure", "--target", "label"]
    run("monitor", "state.json", "day1.csv", *options)
    run("monitor", "state.json", day(0))
    assert "302 samples in 2 periods" in run("monitor", "state.json")[0]
    assert "has 4 classes, but the files before have 3" in refused("monitor", "state.json", day(2, num_classes=4))


def test_classes_keep_their_order(run, refused):
    for name, classes in (("a.csv", "cat,dog"), ("b.csv", "dog,cat")):
        first, second = classes.split(",")
        Path(name).write_text(f"prob_{first},prob_{second},label\n0.9,0.1,cat\n0.2,0.8,dog\n")
    run("monitor", "top.json", "a.csv", "b.csv")
    line = refused("monitor", "state.json", "a.csv", "b.csv", "--classwise")
    assert line == "b.csv: its classes must be those of the files before, in the same order: cat, dog"


def test_the_names_of_state_and_files_are_not_confused(day, refused):
    line = refused("monitor", day(0), day(1))
    assert line == "day0.npz: the name of a state file must end in .json; it comes first, then the predictions"
    assert "there is no such file; give prediction files, too" in refused("monitor", "state.json")
    Path("other.json").write_text("{}")
    assert "other.json: is damaged, or no state" in refused("monitor", "other.json", "day0.npz")
    assert Path("other.json").read_text() == "{}"
    Path("runs.json").mkdir()
    assert "is a folder" in refused("monitor", "runs.json", "day0.npz")
    assert "there is no folder" in refused("monitor", "nowhere/state.json", "day0.npz")


def test_two_processes_do_not_update_a_state_at_once(day, run, refused):
    run("monitor", "state.json", day(0))
    with FileLock(".state.json.lock"):
        assert "another process is updating" in refused("monitor", "state.json", day(1))
        assert "300 samples in 1 period)" in run("monitor", "state.json")[0]  # reading needs no lock
    run("monitor", "state.json", "day1.npz")
    assert not Path(".state.json.lock").exists()


def test_a_link_stays_a_link(day, run):
    Path("elsewhere").mkdir()
    Path("state.json").symlink_to("elsewhere/state.json")
    run("monitor", "state.json", day(0))
    run("monitor", "state.json", day(1))
    assert Path("state.json").is_symlink()
    assert json.loads(Path("elsewhere/state.json").read_text())["monitor"]["num_samples"] == 600


def test_the_evidence_is_drawn(day, run):
    _, err = run("monitor", "state.json", day(0), day(1), "--plot", "evidence.png")
    assert err.splitlines()[-1] == "Evidence over time: evidence.png"
    assert Path("evidence.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_folder_is_read(run):
    path = write_run(Path("runs/a"), {"test": draw_logits(300, 4)})
    content = json.loads(run("monitor", "state.json", path, "--json")[0])
    assert content["num_samples"] == 300
    assert content["history"][0]["time"] == "a"
