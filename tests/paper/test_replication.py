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


@pytest.mark.parametrize("loss", PLAN["setting"]["losses"])
@pytest.mark.parametrize("name", CELLS)
def test_the_published_numbers_are_those_of_the_tables(loss: str, name: str) -> None:
    table, stage, variant = CELLS[name]
    setting = {"data": PLAN["setting"]["dataset"], "model": PLAN["setting"]["model"], "method": loss}
    (cell,) = [cell for cell in published(table).find(**setting, stage=stage) if cell.variant == variant]
    assert PLAN["published"][loss][name] == pytest.approx(cell.value, abs=5.1e-4)  # as the claims round them


def test_the_published_temperature_is_that_of_the_table() -> None:
    setting = {"data": "cifar10", "model": "resnet50", "method": "dual_focal", "stage": "after"}
    (cell,) = published("ece").find(**setting)
    assert cell.temperature == PLAN["published"]["dual_focal"]["temperature"]
