"""The claims of the replications, fixed in advance: complete, and about the numbers that the paper has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dualfocal_lab.paper.published import published
from dualfocal_lab.paper.replication_plan import PLANS, SortedRuns, replication_plan, sort_runs
from dualfocal_lab.runs import Run, find_runs

RESULTS = Path(__file__).parents[2] / "results" / "20newsgroups"
# Name in the plan: table, stage and variant of the published cell.
CELLS = {
    "error": ("error", None, None),
    "ece": ("ece", "before", None),
    "ece_temperature": ("ece", "after", None),
    "nll": ("nll", "before", None),
    "shift_auroc": ("ood_auroc", "before", "cifar10c"),
}


@pytest.mark.parametrize("name", PLANS)
def test_each_claim_has_a_rule_and_is_about_losses_of_the_plan(name: str) -> None:
    plan = replication_plan(name)
    ids = {"cifar10": [f"C{i}" for i in range(1, 12)], "20newsgroups": [f"N{i}" for i in range(1, 8)]}
    assert [claim["id"] for claim in plan["claims"] if claim["id"][-1] not in "ab"] == ids[name]
    assert all(claim["claim"].endswith(".") and claim["reproduced_if"] for claim in plan["claims"])
    assert {loss for claim in plan["claims"] for loss in claim.get("against", ())} <= set(plan["setting"]["seeds"])


@pytest.mark.parametrize("name", PLANS)
def test_the_published_numbers_are_those_of_the_tables(name: str) -> None:
    plan = replication_plan(name)
    place = {"data": plan["setting"]["dataset"], "model": plan["setting"]["model"]}
    assert plan["published"].keys() == plan["setting"]["seeds"].keys()
    for loss, numbers in plan["published"].items():
        for metric in numbers.keys() & CELLS.keys():
            table, stage, variant = CELLS[metric]
            cells = published(table).find(**place, method=loss, stage=stage)
            (value,) = [cell.value for cell in cells if cell.variant == variant]
            assert numbers[metric] == pytest.approx(value, abs=5.1e-4), (loss, metric)  # as rounded there
        if "temperature" in numbers:
            (cell,) = published("ece").find(**place, method=loss, stage="after")
            assert cell.temperature == numbers["temperature"]


# The gamma that validation chooses

Sort = Callable[[Callable[[Run], bool]], SortedRuns]
BY_NLL, BY_ECE = (claim for claim in replication_plan("20newsgroups")["claims"] if claim["id"] in ("N2a", "N2b"))


@pytest.fixture
def sort() -> Sort:
    runs = find_runs(RESULTS)
    return lambda keep: sort_runs([run for run in runs if keep(run)], "20newsgroups")


def test_the_gamma_of_lowest_validation_nll_and_ece_of_the_first_seeds_is_chosen(sort: Sort) -> None:
    places = sort(lambda run: True)
    first = [run for run in find_runs(RESULTS) if run.recipe.loss == "dual_focal" and run.recipe.seed == 1]
    first = [run for run in first if run.recipe.precision == "bfloat16"]
    for claim, metric in ((BY_NLL, "nll"), (BY_ECE, "ece")):
        best = min(first, key=lambda run: getattr(run.require_result().evaluation("val"), metric))
        assert places.group_of(claim) == f"dual_focal gamma {best.recipe.loss_options['gamma']}"
    assert places.missing() == ()


def test_without_a_first_seed_no_gamma_is_chosen_and_no_further_seed_is_asked_for(sort: Sort) -> None:
    places = sort(lambda run: run.recipe.loss_options.get("gamma") != 7)
    assert places.group_of(BY_NLL) == "dual_focal gamma val_nll"
    (command,) = places.missing()
    assert "loss.gamma=7" in command
    assert "seed=1" in command


def test_all_seeds_of_the_chosen_gamma_are_asked_for(sort: Sort) -> None:
    places = sort(lambda run: run.recipe.loss_options.get("gamma") != 15 or run.recipe.seed == 1)
    assert [command.rpartition("-")[2] for command in places.missing()] == ["seed2", "seed3", "seed4", "seed5"]
