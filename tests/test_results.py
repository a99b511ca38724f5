"""The runs in `results/` are what they say: their predictions give their numbers, and the page repeats those."""

import re
from pathlib import Path
from typing import Any

import pytest

from dualfocal.metrics import evaluate
from dualfocal.paper.published import published
from dualfocal.runs import Run

RESULTS = Path(__file__).parent.parent / "results"
RUNS = sorted(RESULTS.glob("cifar10/*"))
METHODS = ("cross_entropy", "dual_focal")
# Rows of the page: a metric of the results, its name in the published tables, and how the paper prints it.
ROWS = {
    "error [%]": ("error", "error", 100, 2),
    "ECE [%]": ("ece", "ece", 100, 2),
    "AdaECE [%]": ("adaptive_ece", "adaptive_ece", 100, 2),
    "classwise ECE [%]": ("classwise_ece", "classwise_ece", 100, 2),
    "MCE [%]": ("mce", "mce", 100, 2),
    "NLL x 100": ("nll", "nll", 100, 2),
    'Brier score (the paper\'s "RBS")': ("brier", "rbs", 1, 4),
}


def line(start: str) -> list[str]:
    """The cells of a row of the page's first table, behind its name."""
    (line,) = (row for row in (RESULTS / "README.md").read_text().splitlines() if row.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def result(method: str) -> dict[str, Any]:
    return Run(RESULTS / "cifar10" / f"resnet50-{method}-seed1").require_result().to_dict()


def test_the_headline_is_there() -> None:
    assert {f"resnet50-{method}-seed1" for method in METHODS} <= {path.name for path in RUNS}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_predictions_give_the_numbers_of_the_run(path: Path) -> None:
    run = Run(path)
    assert run.result is not None
    kept = run.result.to_dict()
    assert (path / "predictions.safetensors").stat().st_size < 1_000_000
    assert path.name.startswith(f"{run.recipe.model}-{run.recipe.loss}-")
    assert path.name.endswith(f"-seed{run.recipe.seed}")
    assert [entry["epoch"] for entry in run.log] == list(range(1, run.recipe.epochs + 1))
    assert kept["weights_of_epoch"] == run.recipe.epochs == 350
    for part in ("val", "test"):
        logits, target = run.predictions(part)
        again = evaluate(logits, target).to_dict()
        for metric in ("error", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "mce", "aurc", "debiased_ece"):
            assert again[metric] == pytest.approx(kept[part][metric], rel=1e-6, abs=1e-9), (part, metric)


@pytest.mark.parametrize("place", range(2))
@pytest.mark.parametrize("row", ROWS)
def test_the_page_has_the_numbers_of_the_runs(row: str, place: int) -> None:
    theirs, ours, floor = line(row)[3 * place : 3 * place + 3]
    metric, table, factor, digits = ROWS[row]
    stage = None if metric == "error" else "before"
    where = {"data": "cifar10", "model": "resnet50", "method": METHODS[place], "stage": stage}
    assert theirs == published(table).find(**where)[0].printed
    test = result(METHODS[place])["test"]
    assert ours == f"{factor * test[metric]:.{digits}f}"
    floors = test["inference"]["floors"]
    assert floor == (f"{factor * floors[metric]['mean']:.{digits}f}" if metric in floors else "")


@pytest.mark.parametrize("place", range(2))
def test_the_page_has_what_temperature_gives(place: int) -> None:
    scaled = result(METHODS[place])["calibrated"]["temperature_ece"]
    for row, metric in (("ECE, T [%]", "ece"), ("AdaECE, T [%]", "adaptive_ece"), ("NLL x 100, T", "nll")):
        theirs, ours = line(row)[3 * place : 3 * place + 2]
        where = {"data": "cifar10", "model": "resnet50", "method": METHODS[place], "stage": "after"}
        (cell,) = published(metric).find(**where)
        with_temperature = metric == "ece"
        assert theirs == cell.printed + (f" ({cell.temperature})" if with_temperature else "")
        number = f"{100 * scaled['test'][metric]:.2f}"
        assert ours == number + (f" ({scaled['temperature']})" if with_temperature else "")


@pytest.mark.parametrize("place", range(2))
def test_the_page_has_interval_and_minutes(place: int) -> None:
    run = result(METHODS[place])
    low, high = (float(end) for end in re.findall(r"[\d.]+", line("its 90 % interval [%]")[3 * place + 1]))
    assert (low, high) == tuple(round(100 * end, 2) for end in run["test"]["inference"]["debiased_ece"]["interval"])
    assert line("minutes of training")[3 * place + 1] == f"{run['seconds'] / 60:.1f}"


@pytest.mark.parametrize("name", ["resnet50-dual_focal-seed2", "resnet50-dual_focal-gamma6-seed1"])
def test_the_page_has_the_numbers_of_the_other_trainings(name: str) -> None:
    run = Run(RESULTS / "cifar10" / name)
    (row,) = (row for row in (RESULTS / "README.md").read_text().splitlines() if f"](cifar10/{name}) |" in row)
    kept, test = run.require_result(), run.require_result().evaluation("test")
    last = [entry["test_ece"] for entry in run.log[-20:]]
    fractions = (test.error, test.ece, kept.floor("ece"), sum(last) / 20)
    temperatures = f"{kept.temperature('temperature_ece'):.1f}", f"{kept.temperature():.3f}"
    others = f"{test.nll:.4f}", *temperatures, f"{kept.seconds / 60:.1f}"
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [*(f"{100 * value:.2f}" for value in fractions), *others]


@pytest.mark.parametrize("place", range(2))
@pytest.mark.parametrize("page", ["README.md", "docs/paper.md"])
def test_other_pages_repeat_the_same(page: str, place: int) -> None:
    start = ("| cross-entropy |", "| dual focal")[place]
    text = (RESULTS.parent / page).read_text()
    (row,) = (line for line in text.splitlines() if line.startswith(start) and " / " in line)
    error, ece, floor, scaled, nll = (cell.strip() for cell in row.split("|")[2:-1])
    run = result(METHODS[place])
    test = run["test"]
    assert error.split(" / ")[1] == f"{100 * test['error']:.2f}"
    assert ece.split(" / ")[1] == f"{100 * test['ece']:.2f}"
    assert floor == f"{100 * test['inference']['floors']['ece']['mean']:.2f}"
    assert scaled.split(" / ")[1] == f"{100 * run['calibrated']['temperature_ece']['test']['ece']:.2f}"
    assert nll.split(" / ")[1] == f"{test['nll']:.3f}"
    for cell, name in ((error, "error [%]"), (ece, "ECE [%]")):
        assert cell.split(" / ")[0] == line(name)[3 * place]
