"""Published numbers, recomputed from published logits."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dualfocal.predictions import PredictionsError
from dualfocal_lab.paper.verify import verify

LOGITS = Path(__file__).parents[2] / "results/published_logits"
DIFFERENT = {("ece", "flsd"), ("classwise_ece", "flsd"), ("mce", "cross_entropy"), ("mce", "flsd")}


def test_most_published_numbers_follow_from_the_published_logits() -> None:
    verification = verify(sorted(LOGITS.glob("*.npz")))
    rows = verification.recomputed
    assert {row.table for row in rows} == {f"table{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 11)}
    assert {(row.cell.metric, row.cell.method) for row in rows if not row.agrees} == DIFFERENT
    assert verification.sentence().startswith("22 of 27 published numbers follow")
    assert [row.cells() for row in rows if row.table == "table1"] == [
        ["table1", "cross_entropy", "ece before T", "4.35", "4.35", "yes"],
        ["table1", "cross_entropy", "ece after T", "1.35 (2.5)", "1.35 (2.5)", "yes"],
        ["table1", "flsd", "ece before T", "1.55", "1.55", "yes"],
        ["table1", "flsd", "ece after T", "0.95 (1.1)", "0.91 (1.1)", "no"],
    ]


def test_other_logits_do_not_agree(tmp_path: Path) -> None:
    with np.load(LOGITS / "resnet50-cifar10-flsd.npz") as file:
        arrays = {name: 1.5 * array if name.endswith("logits") else array for name, array in file.items()}
    np.savez(tmp_path / "resnet50-cifar10-flsd.npz", **arrays)
    rows = verify([tmp_path / "resnet50-cifar10-flsd.npz"]).to_dict()["numbers"]
    assert {row["metric"] for row in rows if row["agrees"]} == {"error"}


def test_files_that_are_not_of_the_tables_are_refused(tmp_path: Path) -> None:
    file = shutil.copy(LOGITS / "resnet50-cifar10-flsd.npz", tmp_path / "resnet51-cifar10-flsd.npz")
    with pytest.raises(ValueError, match=r"resnet51-cifar10-flsd\.npz: the name must be MODEL-DATA-METHOD\.npz"):
        verify([Path(file)])
    with pytest.raises(PredictionsError, match=r"resnet50-cifar10-flsd\.npz"):
        verify([tmp_path / "resnet50-cifar10-flsd.npz"])
