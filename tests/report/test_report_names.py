"""Names on a page are distinct, without private folders, and without characters that change the direction of text."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from browser import contents_of
from safetensors.torch import load_file, save_file

from dualfocal.predictions import Reading
from dualfocal.report import write_report
from dualfocal.report.inputs import load_inputs
from dualfocal.report.names import distinct, input_names, plain, shortened, without_folders


def test_names_are_as_short_as_they_can_be():
    assert input_names([Path("/home/me/a.npz"), Path("/home/me/b.npz")]) == ("a.npz", "b.npz")
    assert input_names([Path("/home/me/1/x"), Path("/home/me/2/x"), Path("/y")]) == ("1/x", "2/x", "y")
    here = Path.cwd().name
    assert input_names([Path()]) == (here,)
    assert input_names([Path("runs/../runs/x")]) == ("x",)


def test_long_names_stay_apart():
    first, second = (Path("/" + "p" * 70 + f"{c}.npz") for c in "ab")
    names = input_names([first, second])
    assert names == (f"…{'p' * 54}a.npz", f"…{'p' * 54}b.npz")
    assert [len(name) for name in names] == [60, 60]
    deep = input_names([Path("/a") / ("q" * 70) / "run", Path("/b") / ("q" * 70) / "run"])
    assert deep == (f"…{'q' * 55}/run", f"…{'q' * 55}/run (2)")


def test_equal_names_get_numbers():
    assert distinct(["x", "x", "x", "x (2)"]) == ("x", "x (2)", "x (3)", "x (2) (2)")


def test_no_control_character_stays():
    assert plain("\u202eabc\u2066 5\u200f\x00\x1b[31m") == "abc 5[31m"
    assert plain("one\r\n\ttwo") == "one two"
    assert shortened("עברית") == "עברית"
    assert shortened("👩\u200d💻") == "👩\u200d💻"  # joined to one picture, which is no direction


def test_paths_lose_their_folders():
    assert without_folders("/data/cifar-10: no such file") == "cifar-10: no such file"
    assert without_folders(r"C:\Users\me\x.npz is damaged") == "x.npz is damaged"
    assert without_folders("nothing here") == "nothing here"


def test_classes_of_one_long_name(tmp_path):
    names = ["long " * 30 + end for end in "abc"] + ["\u202ereversed"]
    np.savez(tmp_path / "p.npz", logits=2 * np.eye(4), target=np.arange(4), class_names=names)
    [subject] = load_inputs([tmp_path / "p.npz"], Reading())
    assert len(set(subject.class_names)) == 4
    assert subject.class_names[3] == "reversed"


def test_one_input_in_two_ways(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "p.npz", logits=np.eye(3), target=np.arange(3))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"p\.npz is given more than once"):
        write_report(["p.npz", "in/../p.npz"], "page.html")
    os.symlink("p.npz", "q.npz")
    with pytest.raises(ValueError, match=r"p\.npz is given more than once"):
        write_report(["p.npz", "q.npz"], "page.html")


def test_classes_are_named_by_the_run_or_by_its_data(runs, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "a", run)
    tensors = load_file(run / "predictions.safetensors")
    names = [f"digit {c}" for c in range(10)]
    save_file(tensors, run / "predictions.safetensors", {"class_names": json.dumps(names)})
    write_report([run], tmp_path / "page.html", calibrators=())
    contents = contents_of(tmp_path / "page.html")
    assert contents["classNames"] == names
    assert contents["runs"][0]["mistakes"]["items"][0]["true"].startswith("digit ")
    # A file without names: those of the data, if its labels are these.
    save_file(tensors, run / "predictions.safetensors")
    labels = tensors["test_target"].numpy()
    images = np.random.default_rng(0).integers(256, size=(len(labels), 8, 8), dtype=np.uint8)
    own = {"x_test": images, "y_test": labels, "class_names": [f"kind {c}" for c in range(10)]}
    np.savez(tmp_path / "own.npz", x_train=images[:50], y_train=labels[:50], **own)
    recipe = json.loads((run / "recipe.json").read_text())
    del recipe["crc32"]
    (run / "recipe.json").write_text(json.dumps(recipe | {"data": str(tmp_path / "own.npz"), "data_options": {}}))
    write_report([run], tmp_path / "page.html", calibrators=())
    contents = contents_of(tmp_path / "page.html")
    assert contents["classNames"] == [f"kind {c}" for c in range(10)]
    assert len(contents["images"]) == 12
    np.savez(tmp_path / "own.npz", x_train=images[:50], y_train=labels[:50], **own | {"y_test": labels[::-1]})
    write_report([run], tmp_path / "page.html", calibrators=())
    assert contents_of(tmp_path / "page.html")["classNames"] == list("0123456789")
