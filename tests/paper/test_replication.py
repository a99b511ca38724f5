"""The claims of the replication, fixed in advance: complete, and about the numbers that the paper has."""

import json
from importlib import resources

import pytest

from dualfocal.paper.published import published

PLAN = json.loads(resources.files("dualfocal.paper").joinpath("replication.json").read_text(encoding="utf-8"))
# Name in the plan: table, stage and variant of the published cell.
CELLS = {
    "error": ("error", None, None),
    "ece": ("ece", "before", None),
    "ece_temperature": ("ece", "after", None),
    "nll": ("nll", "before", None),
    "shift_auroc": ("ood_auroc", "before", "cifar10c"),
}


def test_eleven_claims_each_with_a_rule() -> None:
    assert [claim["id"] for claim in PLAN["claims"]] == [f"C{i}" for i in range(1, 12)]
    assert all(claim["claim"].endswith(".") and claim["reproduced_if"] for claim in PLAN["claims"])
    for claim in PLAN["claims"]:
        assert set(claim.get("against", ())) <= set(PLAN["setting"]["losses"])


def test_the_published_numbers_are_those_of_the_tables() -> None:
    place = {"data": PLAN["setting"]["dataset"], "model": PLAN["setting"]["model"]}
    for loss in PLAN["setting"]["losses"]:
        for name, (table, stage, variant) in CELLS.items():
            cells = published(table).find(**place, method=loss, stage=stage)
            (value,) = [cell.value for cell in cells if cell.variant == variant]
            assert PLAN["published"][loss][name] == pytest.approx(value, abs=5.1e-4), (loss, name)  # as rounded there


def test_the_published_temperature_is_that_of_the_table() -> None:
    setting = {"data": "cifar10", "model": "resnet50", "method": "dual_focal", "stage": "after"}
    (cell,) = published("ece").find(**setting)
    assert cell.temperature == PLAN["published"]["dual_focal"]["temperature"]
