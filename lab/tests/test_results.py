"""The runs in `results/` are what they say: their predictions give their numbers."""

from pathlib import Path

import pytest

from dualfocal.metrics import evaluate
from dualfocal_lab.runs import Run

RESULTS = Path(__file__).parent.parent / "results"
RUNS = sorted(RESULTS.glob("cifar10/*"))
METHODS = ("cross_entropy", "dual_focal")


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
