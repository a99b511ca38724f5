"""Names on a page are distinct, without private folders, and without characters that change the direction of text."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from report_pages import contents
from safetensors.torch import load_file, save_file

from dualfocal.report import write_report


def names_of(folder: Path, *files: str) -> list[str]:
    """The names that a page gives to files with these paths below a folder."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        np.savez(folder / file, logits=2 * np.eye(3), target=np.arange(3))
    return [run["name"] for run in contents(folder, [folder / file for file in files])["runs"]]


def class_names_of(folder: Path, *names: str) -> list[str]:
    """The names that a page gives to classes with these names."""
    models = {"m": (2 * torch.eye(len(names)), torch.arange(len(names)))}
    return contents(folder, models, class_names=names)["classNames"]


def test_names_are_as_short_as_they_can_be(tmp_path):
    assert names_of(tmp_path, "me/a.npz", "me/b.npz") == ["a.npz", "b.npz"]
    assert names_of(tmp_path, "me/1/x.npz", "me/2/x.npz", "y.npz") == ["1/x.npz", "2/x.npz", "y.npz"]


def test_long_names_stay_apart(tmp_path):
    names = names_of(tmp_path, *(f"{'p' * 70}{c}.npz" for c in "ab"))
    assert names == [f"…{'p' * 54}a.npz", f"…{'p' * 54}b.npz"]
    deep = names_of(tmp_path, *(f"{c}/{'q' * 70}/r.npz" for c in "ab"))
    assert len(set(deep)) == 2
    assert max(map(len, deep)) == 60


def test_equal_names_get_numbers(tmp_path):
    assert class_names_of(tmp_path, "x", "x\r", "x\f", "x (2)") == ["x", "x ", "x  (2)", "x (2)"]


def test_no_control_character_stays(tmp_path):
    names = class_names_of(tmp_path, "\u202eabc\u2066 5\u200f\x00\x1b[31m", "one\r\n\ttwo", "עברית", "👩\u200d💻")
    assert names == ["abc 5[31m", "one two", "עברית", "👩\u200d💻"]  # the last one is joined, which is no direction


def test_classes_of_one_long_name(tmp_path):
    names = class_names_of(tmp_path, *("long " * 30 + end for end in "abc"), "\u202ereversed")
    assert len(set(names)) == 4
    assert names[3] == "reversed"


def test_one_input_in_two_ways(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "p.npz", logits=np.eye(3), target=np.arange(3))
    monkeypatch.chdir(tmp_path)
    os.symlink("p.npz", "q.npz")
    for other in ("in/../p.npz", "q.npz"):
        with pytest.raises(ValueError, match=r"p\.npz .*more than once"):
            write_report(["p.npz", other], "page.html")


def test_classes_are_named_by_the_run(runs, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "a", run)
    tensors = load_file(run / "predictions.safetensors")
    names = [f"digit {c}" for c in range(10)]
    save_file(tensors, run / "predictions.safetensors", {"class_names": json.dumps(names)})
    page = contents(tmp_path, [run])
    assert page["classNames"] == names
    assert page["runs"][0]["mistakes"]["items"][0]["true"].startswith("digit ")
    save_file(tensors, run / "predictions.safetensors")
    assert contents(tmp_path, [run])["classNames"] == list("0123456789")
