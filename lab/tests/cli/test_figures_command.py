"""`dualfocal paper figures`: the files that are written, and the reasons for those that are not."""

from pathlib import Path

import pytest
import torch
from run_results import make_result

from dualfocal.metrics import evaluate
from dualfocal.plots.style import METADATA
from dualfocal_lab.cli._common import FIGURES as NAMES
from dualfocal_lab.cli.figures import FORMATS
from dualfocal_lab.paper.figures import FIGURES
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.runs.layout import LOG, PREDICTIONS, RECIPE, RESULT

FROM_RUNS = NAMES[1:]


def fake_run(folder: str, loss: str, seed: int = 0, data: str = "digits") -> Run:
    """A finished run folder."""
    run = Run(folder)
    run.path.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(120, 3, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    run.write_json(
        RECIPE, Recipe(data=data, model="small_cnn", loss=loss, seed=seed, epochs=2, milestones=()).to_dict()
    )
    run.write_tensors(PREDICTIONS, {"test_logits": logits, "test_target": target})
    scores = evaluate(logits, target, inference=True, draws=100)
    for epoch in (1, 2):
        run.append({"epoch": epoch, "val_ece": 0.1, "test_ece": 0.1})
    run.write_result(make_result({"val": scores, "test": scores}))
    return run


@pytest.fixture
def _study() -> None:
    for loss in ("cross_entropy", "dual_focal"):
        for seed in (0, 1):
            fake_run(f"study/runs/{loss}-seed{seed}", loss, seed)


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_names_are_those_of_the_figures():
    assert tuple(FIGURES) == NAMES
    assert {f".{name}" for name in FORMATS} == METADATA.keys()


@pytest.mark.usefixtures("_study")
def test_all_figures_of_the_runs_have_the_same_bytes_twice(run):
    options = ("--only", ",".join(FROM_RUNS), "--format", "png", "--dpi", 20)
    out, _ = run("paper", "figures", "study", *options)
    names = [f"digits-small_cnn-{name}.png" for name in FROM_RUNS]
    assert [line.split()[1] for line in out.splitlines()] == [f"figures/{name}" for name in names]
    assert "(figure 3, ECE, AdaECE and classwise ECE with intervals)" in out
    first = files("figures")
    assert sorted(first) == sorted(names)
    assert all(content.startswith(b"\x89PNG") for content in first.values())
    run("paper", "figures", "study", *options[2:], "--only", "corp,metrics", "--out", "again/there")
    again = files("again/there")
    assert again.keys() == {"digits-small_cnn-corp.png", "digits-small_cnn-metrics.png"}
    assert again.items() <= first.items()


@pytest.mark.usefixtures("_study")
def test_figures_that_are_left_out_have_a_reason(record, run):
    (Path("study/runs/dual_focal-seed0") / PREDICTIONS).unlink()
    for path in Path("study/runs").iterdir():
        (path / LOG).unlink()
    fake_run("study/runs/stopped", "focal").path.joinpath(RESULT).unlink()
    command = ("paper", "figures", "study", "--only", "metrics,training,logits", "--format", "pdf")
    content = record(*command)
    assert [figure["files"] for figure in content["written"]] == [["figures/digits-small_cnn-metrics.pdf"]]
    why = {figure["figure"]: figure["why"] for figure in content["left_out"]}
    assert why == {
        "training": "no run has test_ece or val_ece for every epoch in its log.jsonl",
        "logits": "study/runs/dual_focal-seed0 has no predictions.safetensors",
    }
    assert content["runs_left_out"] == [{"run": "study/runs/stopped", "why": "is stopped, not finished"}]
    assert sorted(files("figures")) == ["digits-small_cnn-metrics.pdf"]
    out, _ = run(*command)
    assert "Left out: logits of digits, small_cnn, 2 epochs: study/runs/dual_focal-seed0 has no" in out
    assert "Run left out: study/runs/stopped is stopped, not finished" in out


@pytest.mark.usefixtures("_study")
def test_damaged_runs_and_other_data_sets_do_not_spoil_a_figure(record):
    fake_run("study/runs/other", "focal", data="cifar10")
    files_of = {"predictions": PREDICTIONS, "result": RESULT, "recipe": RECIPE}
    for folder, file in files_of.items():
        path = fake_run(f"study/runs/{folder}", "focal").path / file
        path.write_bytes(path.read_bytes()[:-30])
    content = record("paper", "figures", "study", "--only", "logits", "--format", "svg")
    written = {file for figure in content["written"] for file in figure["files"]}
    assert written == {"figures/digits-small_cnn-logits.svg", "figures/cifar10-small_cnn-logits.svg"}
    left_out = {run["run"]: run["why"] for run in content["runs_left_out"]}
    assert left_out.keys() == {f"study/runs/{folder}" for folder in files_of}
    for folder, file in files_of.items():
        assert left_out[f"study/runs/{folder}"].startswith(f"cannot be read: {file}: ")


def test_runs_that_cannot_be_drawn_are_a_failure(run):
    fake_run("study/runs/stopped", "focal").path.joinpath(RESULT).unlink()
    out, _ = run("paper", "figures", "study", "--only", "phi", "--format", "svg", code=1)
    assert "Written: figures/phi.svg" in out
    assert "Run left out: study/runs/stopped" in out
    out, _ = run("paper", "figures", "--only", "reliability", code=1)
    assert out == "Left out: reliability: no finished runs were given\n"


def test_phi_needs_no_runs(run):
    out, _ = run("paper", "figures", "--only", "phi", "--format", "pdf")
    assert out.startswith("Written: figures/phi.pdf (figure 1, ")
    assert files("figures")["phi.pdf"].startswith(b"%PDF")


def test_refusals(refused):
    Path("file").write_text("")
    for arguments, words in (
        (["--only", "reliabilty"], ["--only", "phi, reliability", "'reliabilty'", "did you mean reliability?"]),
        (["--format", "pdf,jpg"], ["--format", "pdf, png, svg", "'jpg'"]),
        (["nowhere"], ["nowhere: is not a run folder"]),
        (["."], ["is not a run folder and contains none"]),
        (["--only", "phi", "--out", "file"], ["file: File exists"]),
    ):
        line = refused("paper", "figures", *arguments)
        assert all(word in line for word in words), arguments
    assert not Path("figures").exists()
