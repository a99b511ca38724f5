"""The examples as they are, and the notebooks: they run, and show what their texts say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from case_loops import for_each

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def output_of(name: str, folder: Path) -> str:
    """Return what an example prints, run from an empty folder."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(folder.iterdir())
    return done.stdout


def test_segmentation_shows_that_a_larger_gamma_lowers_the_confidence(tmp_path: Path) -> None:
    rows = [line.split() for line in output_of("segmentation.py", tmp_path).splitlines()[1:]]
    temperature = {row[0]: float(row[1]) for row in rows if len(row) == 4 and row[1] != "1.00"}
    assert temperature["0"] > 1.5 > temperature["2"] > 1 > temperature["5"]


def test_weights_of_long_tailed_data_distort_class_probabilities_and_dividing_repairs_them(tmp_path: Path) -> None:
    output = output_of("long_tailed.py", tmp_path)
    rows = re.findall(r"^(cross-entropy|dual focal) +(\S+) +(\S+) .*?([+-]\d+\.\d) %.* in (\d) of 3", output, re.M)
    excess = {row[:3]: float(row[3]) for row in rows}
    significant = {row[:3]: int(row[4]) for row in rows}
    assert len(excess) == 12
    for loss in ("cross-entropy", "dual focal"):
        for repair in ("none", "temperature"):
            assert excess[loss, "1/frequency", repair] > 10
            assert significant[loss, "1/frequency", repair] == 3
        assert abs(excess[loss, "1/frequency", "divide"]) < 3
        assert abs(excess[loss, "1/frequency", "vector"]) < 3
    assert significant["cross-entropy", "1/frequency", "divide"] < 3


def test_gamma_is_not_chosen_as_zero_for_noisy_digits(tmp_path: Path) -> None:
    output = output_of("choose_gamma.py", tmp_path)
    nll = {int(gamma): float(value) for gamma, value in re.findall(r"^gamma (\d+) +(0\.\d{4}) ", output, re.M)}
    assert list(nll) == [0, 1, 2, 5, 10]
    [chosen] = re.findall(r"Lowest validation NLL: gamma (\d+)", output)
    assert nll[int(chosen)] == min(nll.values())
    assert chosen != "0"


@pytest.mark.filterwarnings("ignore")  # of Jupyter; warnings in a notebook are in its outputs, which are checked
@for_each(path=NOTEBOOKS)
def test_a_notebook_runs_in_an_empty_folder(path: Path, tmp_path: Path) -> None:
    if os.environ.get("DUALFOCAL_INTEGRATIONS") != "required":
        pytest.importorskip("nbclient", reason="make test-integrations installs it")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    folder = tmp_path / path.stem
    folder.mkdir()
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not any(output.output_type == "stream" and output.name == "stderr" for output in outputs)
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert shown.count("image/png") >= 2
    assert shown.count("text/html") >= 2  # evaluations are shown as tables
