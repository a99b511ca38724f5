"""The examples run, shortened; the notebooks are valid, and have no outputs. Whole: tests/integrations."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from case_loops import for_each

from dualfocal_lab.data import load_data
from dualfocal_lab.study import make_study

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run_shortened(name: str, **constants: str) -> None:
    """Run an example with other values of its constants, each given as the old and the new text."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for change in constants.values():
        old, new = change.split(" -> ")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    exec(compile(text, name, "exec"), {"__name__": "__main__"})


def test_there_are_examples() -> None:
    assert {"swap_the_loss", "segmentation", "long_tailed", "label_shift", "choose_gamma"} <= {
        path.stem for path in SCRIPTS
    }
    assert {"quick_start", "is_my_model_calibrated"} <= {path.stem for path in NOTEBOOKS}


def test_every_example_is_in_the_list() -> None:
    listed = re.findall(r"\]\(([^)/]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert {path.name for path in (*SCRIPTS, *NOTEBOOKS)} <= set(listed)


@for_each(path=SCRIPTS)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100
    assert f"\n    python examples/{path.name}" in text


def test_swapping_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    run_shortened("swap_the_loss.py", epochs="EPOCHS = 150 -> EPOCHS = 1")
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if "Loss(" in line] == [
        "CrossEntropyLoss()",
        "DualFocalLoss(gamma=5, rival='next', impl='auto')",
    ]
    assert output.count("a calibrated model would show") == 2


def test_label_shift(capsys: pytest.CaptureFixture[str]) -> None:
    run_shortened("label_shift.py", size="NUM_SAMPLES, SEED = 6000 -> NUM_SAMPLES, SEED = 2000")
    verdicts = [text.split("\n")[1].split(":")[0] for text in capsys.readouterr().out.strip().split("\n\n")]
    assert verdicts[0] == verdicts[3] == "No miscalibration detectable at N = 2,000"
    assert verdicts[1] == verdicts[5] == "Under-confident"
    assert verdicts[2] == "Over-confident"
    assert verdicts[4].startswith("B has the lower NLL")


def test_segmentation(capsys: pytest.CaptureFixture[str]) -> None:
    run_shortened("segmentation.py", epochs="SEED = 60, 0 -> SEED = 1, 0", images="(100, 200, 300) -> (10, 20, 30)")
    heading, *rows = capsys.readouterr().out.splitlines()
    *rows, _, _, pixels, images = rows
    assert [line.split(":")[0] for line in (pixels, images)] == ["independent pixels", "images as clusters"]
    assert len({re.findall(r"[+-]0\.\d{4}", line)[0] for line in (pixels, images)}) == 1  # only the interval changes
    assert heading.split()[:3] == ["gamma", "T", "Brier"]
    assert [row.split()[0] for row in rows] == ["0", "0", "2", "2", "5", "5"]
    for untouched, scaled in zip(rows[::2], rows[1::2], strict=True):
        assert untouched.split()[1] == "1.00"
        assert float(scaled.split()[2]) < float(untouched.split()[2])  # after one epoch, a temperature helps


def test_long_tailed_data(capsys: pytest.CaptureFixture[str]) -> None:
    run_shortened(
        "long_tailed.py",
        epochs="SEEDS = 50, range(3) -> SEEDS = 4, range(1)",
        sizes="SIZES = 2000, 1000, 2000 -> SIZES = 1000, 300, 500",
    )
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 12
    excess = {" ".join(row[:-11]): float(row[-8]) for row in rows}
    for loss in ("cross-entropy", "dual focal"):
        weighted = excess[f"{loss} 1/frequency none"]
        assert weighted > excess[f"{loss} none none"]
        assert weighted > excess[f"{loss} 1/frequency divide"]


def test_choosing_gamma(tmp_path: Path) -> None:
    """The data can be read and the study planned; it is trained by tests/integrations."""
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "choose_gamma.py"))
    data = tmp_path / "my_data.npz"
    example["write_data"](data)
    study = make_study(["dual_focal"], dataset=str(data), gammas=example["GAMMAS"], settings=example["SETTINGS"])
    assert study.entries == ["gamma 0", "gamma 1", "gamma 2", "gamma 5", "gamma 10"]
    recipe = study.recipes["gamma 5"][0]
    assert (recipe.loss, recipe.loss_options) == ("dual_focal", {"gamma": 5})
    parts = {name: len(index) for name, index in load_data(recipe.data, **recipe.data_options).splits.items()}
    assert parts == {"train": 597, "val": 400, "test": 800}


@for_each(path=NOTEBOOKS)
def test_a_notebook_compiles_and_has_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert "".join(notebook["cells"][0]["source"]).startswith("# ")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 5
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        compile("".join(cell["source"]), path.name, "exec")
