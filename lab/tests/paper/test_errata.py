"""The errata are complete, quote the numbers of the paper's tables, and name options that exist and work."""

import math
import re
import shlex
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import torch
import typer

import dualfocal.calibrators
import dualfocal.losses
import dualfocal.metrics
import dualfocal_lab.models
from dualfocal.cli import full_app
from dualfocal.losses import (
    AdaDualFocalLoss,
    AdaFocalLoss,
    DualFocalLoss,
    cross_entropy_loss,
    dual_focal_loss,
    kde_xe_loss,
    mmce_loss,
)
from dualfocal.losses.kde import log_dirichlet_kernels
from dualfocal.metrics import Evaluation, brier_score, ece, kde_ece, nll
from dualfocal_lab.data import DATASETS
from dualfocal_lab.paper.errata import ERRATA, GROUPS, OUT_OF_SCOPE, find_errata
from dualfocal_lab.paper.published import Table, published, published_tables
from dualfocal_lab.runs.recipe import Recipe
from dualfocal_lab.theory import check_claims
from dualfocal_lab.train.presets import GAMMA, preset

BY_KEY = {erratum.key: erratum for erratum in ERRATA}
COMMANDS = [erratum for erratum in ERRATA if erratum.option.startswith("dualfocal ")]
EXPRESSIONS = [erratum for erratum in ERRATA if erratum.option and erratum not in COMMANDS]

C10, C100 = {"data": "cifar10"}, {"data": "cifar100"}
R50, R110, WIDE, DENSE = ({"model": name} for name in ("resnet50", "resnet110", "wide_resnet26_10", "densenet121"))
DUAL, FLSD, CE = {"method": "dual_focal"}, {"method": "flsd"}, {"method": "cross_entropy"}
BEFORE, AFTER = {"stage": "before"}, {"stage": "after"}
MEAN, SE = {"variant": "mean"}, {"variant": "standard_error"}

# Erratum, table, cell: every number that an erratum takes from a table, in the order in which it has them.
QUOTED: list[tuple[str, str, dict[str, str], str]] = [
    ("adafocal-columns", "table3", C10 | DENSE | DUAL, "0.81"),
    ("adafocal-columns", "table3", C10 | WIDE | DUAL, "0.57"),
    ("adafocal-columns", "table3", C100 | DENSE | DUAL, "1.79"),
    ("adafocal-columns", "table3", C100 | WIDE | DUAL, "1.81"),
    ("adafocal-columns", "table1", C10 | DENSE | DUAL | BEFORE, "0.57"),
    ("adafocal-columns", "table1", C10 | WIDE | DUAL | BEFORE, "0.81"),
    ("adafocal-columns", "table1", C100 | DENSE | DUAL | BEFORE, "1.81"),
    ("adafocal-columns", "table1", C100 | WIDE | DUAL | BEFORE, "1.79"),
    ("robustness-headings", "table12", {"method": "mmce", "metric": "ece"} | MEAN | BEFORE, "1.81"),
    ("robustness-headings", "table12", {"method": "brier", "metric": "ece"} | MEAN | BEFORE, "4.51"),
    ("robustness-headings", "table1", C10 | R50 | {"method": "mmce"} | BEFORE, "4.56"),
    ("robustness-headings", "table1", C10 | R50 | {"method": "brier"} | BEFORE, "1.82"),
    ("rbs-root", "table11", C10 | R50 | CE, "0.0922"),
    ("rbs-root", "table2", C10 | R50 | CE, "4.95"),
    ("mce-repeated", "table7", C10 | DENSE | {"method": "inverse_focal"} | BEFORE, "52.11"),
    ("mce-repeated", "table7", C10 | DENSE | DUAL | BEFORE, "52.11"),
    ("mce-repeated", "table7", C10 | DENSE | DUAL | AFTER, "52.11"),
    ("bold-print", "table7", C10 | WIDE | DUAL | BEFORE, "26.27"),
    ("bold-print", "table7", C10 | WIDE | {"method": "label_smoothing"} | BEFORE, "24.89"),
    ("bold-print", "table7", C10 | R50 | DUAL | AFTER, "24.24"),
    ("bold-print", "table7", C10 | R50 | CE | AFTER, "20.6"),
    ("bold-print", "table6", C100 | DENSE | DUAL | BEFORE, "0.20"),
    ("bold-print", "table6", C100 | DENSE | FLSD | BEFORE, "0.19"),
    ("bold-print", "table4", {"metric": "adaptive_ece", "variant": "next"}, "0.66"),
    ("bold-print", "table4", {"metric": "adaptive_ece", "variant": "mean_all"}, "0.38"),
    ("bold-print", "table4", {"metric": "adaptive_ece", "variant": "mean3"}, "0.5"),
    ("nll-unit", "table8", C10 | R50 | DUAL | BEFORE, "17.02"),
    ("kde-unit", "table10", C10 | {"model": "resnet110_kde", "metric": "ece"} | DUAL, "0.4"),
    ("kde-unit", "table10", C10 | {"model": "resnet110_kde", "metric": "kde_ece"} | DUAL, "0.153"),
    ("robustness-runs", "table12", {"metric": "adaptive_ece"} | DUAL | MEAN, "0.47"),
    ("robustness-runs", "table12", {"metric": "adaptive_ece"} | DUAL | SE, "0.04"),
    ("robustness-runs", "table5", C10 | R50 | DUAL | BEFORE, "0.66"),
    ("robustness-runs", "table12", {"metric": "adaptive_ece", "method": "label_smoothing"} | MEAN, "2.99"),
    ("robustness-runs", "table12", {"metric": "adaptive_ece", "method": "label_smoothing"} | SE, "0.09"),
    ("robustness-runs", "table5", C10 | R50 | {"method": "label_smoothing"} | BEFORE, "3.89"),
    ("gamma-digits", "table13", {"metric": "adaptive_ece", "variant": "5"}, "0.6694"),
    ("gamma-digits", "table13", {"metric": "classwise_ece", "variant": "5"}, "0.3578"),
    ("gamma-digits", "table5", C10 | R50 | DUAL | BEFORE, "0.66"),
    ("gamma-digits", "table6", C10 | R50 | DUAL | BEFORE, "0.35"),
    ("adadualfocal-claim", "table3", C100 | DENSE | {"method": "ada_dual_focal"}, "1.8"),
    ("adadualfocal-claim", "table3", C100 | DENSE | DUAL, "1.79"),
    ("adadualfocal-claim", "table1", C100 | DENSE | DUAL | BEFORE, "1.81"),
    ("error-claim", "table2", C100 | R110 | DUAL, "22.59"),
    ("error-claim", "table2", C100 | R110 | FLSD, "22.51"),
    ("error-claim", "table2", C10 | R50 | DUAL, "5.17"),
    ("error-claim", "table2", C10 | R50 | FLSD, "4.98"),
    ("error-claim", "table2", {"data": "20newsgroups"} | DUAL, "28.73"),
    ("error-claim", "table2", {"data": "20newsgroups"} | FLSD, "27.98"),
    ("nll-claim", "table8", C100 | WIDE | FLSD | BEFORE, "76.92"),
    ("nll-claim", "table8", C100 | WIDE | DUAL | BEFORE, "78.67"),
    ("nll-claim", "table8", C100 | WIDE | FLSD | AFTER, "78.14"),
    ("nll-claim", "table8", C100 | WIDE | DUAL | AFTER, "78.67"),
    ("nll-claim", "table8", C100 | DENSE | FLSD | BEFORE, "85.47"),
    ("nll-claim", "table8", C100 | DENSE | DUAL | BEFORE, "85.82"),
    ("adaptive-claim", "table5", {"data": "tiny_imagenet"} | DUAL | BEFORE, "1.52"),
    ("adaptive-claim", "table5", {"data": "tiny_imagenet"} | FLSD | BEFORE, "1.42"),
    ("adaptive-claim", "table5", C100 | WIDE | DUAL | AFTER, "2.03"),
    ("adaptive-claim", "table5", C100 | WIDE | FLSD | AFTER, "1.6"),
    ("adadualfocal-frozen", "table3", C10 | R50 | {"method": "ada_dual_focal"}, "0.43"),
    ("adadualfocal-frozen", "table3", C10 | R110 | {"method": "ada_dual_focal"}, "0.69"),
    ("adadualfocal-frozen", "table3", C10 | DENSE | {"method": "ada_dual_focal"}, "0.5"),
    ("adadualfocal-frozen", "table3", C10 | WIDE | {"method": "ada_dual_focal"}, "0.54"),
    ("noise-floor", "table1", C10 | R50 | DUAL | BEFORE, "0.46"),
    ("after-temperature", "table1", C10 | R50 | CE | BEFORE, "4.35"),
    ("after-temperature", "table1", C10 | R50 | DUAL | BEFORE, "0.46"),
    ("after-temperature", "table1", C10 | R50 | CE | AFTER, "1.35"),
    ("after-temperature", "table1", C10 | R50 | DUAL | AFTER, "0.46"),
    ("after-temperature", "table8", C10 | R50 | CE | BEFORE, "41.21"),
    ("after-temperature", "table8", C10 | R50 | DUAL | BEFORE, "17.02"),
    ("after-temperature", "table8", C10 | R50 | CE | AFTER, "20.38"),
    ("after-temperature", "table8", C10 | R50 | DUAL | AFTER, "17.02"),
]


def rows_of(table: Table, stage: str | None = None) -> list[dict[str, float]]:
    """The methods' values, row by row."""
    places = dict.fromkeys((cell.data, cell.model) for cell in table.cells)
    actual = [table.find(data=data, model=model, stage=stage) for data, model in places]
    return [{cell.method: cell.value for cell in row} for row in actual]


def lowest(table: str, stage: str, method: str = "dual_focal") -> int:
    return sum(row[method] == min(row.values()) for row in rows_of(published(table), stage))


def predictions(rows: int = 64, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, half of them right, and targets."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator)
    other = torch.randint(classes, (rows,), generator=generator)
    return logits, torch.where(torch.arange(rows) % 2 == 0, logits.argmax(1), other)


def simulated(
    rows: int, classes: int, generator: torch.Generator, margin: float, spread: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal logits, with that of the target larger by a margin of its own, and targets."""
    target = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), target] += margin + spread * torch.randn(rows, generator=generator)
    return logits, target


def evaluated(expression: str) -> Any:
    """Evaluate with the names that the help lists."""
    logits, target = predictions()
    names: dict[str, Any] = {"logits": logits, "target": target, "ood_logits": logits / 2}
    for module in (dualfocal.losses, dualfocal.metrics, dualfocal.calibrators, dualfocal_lab.models):
        names |= {name: getattr(module, name) for name in module.__all__ if name in expression}
    names |= {"preset": preset, "published": published}
    with torch.device("meta" if "make_model('resnet110'" in expression else "cpu"):  # large
        return eval(expression, names)


# What is written


def test_every_erratum_is_complete() -> None:
    assert len(BY_KEY) == len(ERRATA)
    assert list(GROUPS) == ["paper: tables", "paper: theory", "paper: claims", "code", "method"]
    for key, erratum in BY_KEY.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)
        for text in (erratum.what, erratum.ours):
            assert text == " ".join(text.split()), key
            assert text.endswith("."), key
            assert 5 <= len(text) <= 480, key
        assert erratum.where, key
        assert not erratum.where.endswith("."), key
        assert len(key) + 2 + len(erratum.where) <= 80, key
        assert len(erratum.option) <= 74, key  # after an indent of six
        assert erratum.option == " ".join(erratum.option.split()), key
        for other in re.findall(r"[Ss]ee ([a-z0-9]+-[a-z0-9-]+)|and ([a-z0-9]+-frozen)", erratum.ours):
            assert (other[0] or other[1]) in BY_KEY, key


def test_every_table_that_is_named_exists() -> None:
    known = {table.key for table in published_tables()}
    for erratum in ERRATA:
        named = set(re.findall(r"table\d+", f"{erratum.where} {erratum.what} {erratum.ours}"))
        assert named <= known, erratum.key
    for name in re.findall(r"published\('(\w+)'\)", " ".join(erratum.ours for erratum in ERRATA)):
        assert published(name).name == name


def test_every_table_with_marked_cells_has_an_erratum() -> None:
    marked = {table.key for table in published_tables() if any(cell.erratum for cell in table.cells)}
    assert marked == {"table3", "table4", "table5", "table6", "table7", "table11", "table12"}
    where = " ".join(erratum.where for erratum in GROUPS["paper: tables"])
    assert marked <= set(re.findall(r"table\d+", where))


def test_what_is_out_of_scope() -> None:
    text = " ".join(OUT_OF_SCOPE)
    for name in ("AvUC", "soft calibration objectives", "mixup", "ensembles"):
        assert name in text
    assert not {"avuc", "soft_ece", "mixup"} & set(dualfocal.losses.LOSSES)


def test_errata_by_key() -> None:
    assert find_errata() == {kind: list(group) for kind, group in GROUPS.items()}
    actual = find_errata(["small-gamma", "rbs-root", "rbs-root"])
    assert {kind: [one.key for one in some] for kind, some in actual.items()} == {
        "paper: tables": ["rbs-root"],
        "code": ["small-gamma"],
    }
    with pytest.raises(ValueError, match=r"unknown erratum 'rbs-rot'; .* did you mean rbs-root\?$"):
        find_errata(["rbs-rot"])
    with pytest.raises(ValueError, match="`dualfocal paper errata` lists all"):
        find_errata(["?"])


# Numbers of the paper


def test_numbers_are_those_of_the_table() -> None:
    for key, table, place, printed in QUOTED:
        (cell,) = published(table).find(**place)
        assert Decimal(cell.printed) == Decimal(printed), (key, table, place)
        assert re.search(rf"(?<![\d.]){re.escape(printed)}(?![\d]|\.\d)", BY_KEY[key].what), (key, printed)


def test_no_number_with_two_decimals_is_left_unchecked() -> None:
    """Except differences, derived numbers, and numbers of a log or a simulation."""
    other = {
        ("rbs-root", "0.30"),
        ("adadualfocal-claim", "0.01"),
        ("adaptive-claim", "0.43"),
        ("adadualfocal-frozen", "3.46"),
        *(("noise-floor", number) for number in ("0.37", "0.49", "0.81")),
        *(("gamma-by-ece", number) for number in ("0.52", "0.69")),
        *(("adafocal-bins", number) for number in ("0.09", "0.36")),
        *(("kde-many-classes", number) for number in ("0.49", "0.75")),
    }
    checked = {(key, printed) for key, _, _, printed in QUOTED} | other
    for erratum in ERRATA:
        for number in re.findall(r"(?<![\d.])\d+\.\d\d(?!\d)", erratum.what):
            assert (erratum.key, number) in checked


def test_the_exchanged_columns() -> None:
    """Put right they are table1's, before temperature scaling."""
    meant, first = published("adafocal").as_meant(), published("ece")
    for cell in meant.cells:
        if cell.method in ("flsd", "dual_focal"):
            assert cell.value == first.value(data=cell.data, model=cell.model, method=cell.method, stage="before")


def test_ada_dual_focal_is_lower_in_all_rows_once_they_are_put_right() -> None:
    def ahead(table: Table) -> list[float]:
        return [min(row["ada_focal"], row["dual_focal"]) - row["ada_dual_focal"] for row in rows_of(table)]

    assert sum(by > 0 for by in ahead(published("adafocal"))) == 7
    by = [round(100 * one, 2) for one in ahead(published("adafocal").as_meant())]
    assert len(by) == 8
    assert min(by) > 0
    assert by.count(0.01) == 2


def test_counts_of_the_claims() -> None:
    assert (lowest("mce", "before"), lowest("mce", "after"), len(rows_of(published("mce"), "after"))) == (3, 4, 9)
    errors = rows_of(published("error"))
    assert (sum(row["dual_focal"] > row["flsd"] for row in errors), len(errors)) == (3, 10)
    adaptive = rows_of(published("adaptive_ece"), "after")
    assert (sum(row["flsd"] < row["dual_focal"] for row in adaptive), len(adaptive)) == (4, 9)
    assert max(row["dual_focal"] - row["flsd"] for row in adaptive) == pytest.approx(0.0043)
    before = rows_of(published("ece"), "before")
    assert sum(row["inverse_focal"] == max(row.values()) for row in before) == 3
    assert sum(row["inverse_focal"] > row["cross_entropy"] for row in before) == 6
    assert len(before) == 10
    cifar100 = rows_of(replace(published("nll"), cells=tuple(published("nll").find(data="cifar100"))), "before")
    assert (sum(row["flsd"] < row["dual_focal"] for row in cifar100), len(cifar100)) == (2, 4)


def test_every_bold_number_that_is_not_the_lowest_is_named() -> None:
    text = BY_KEY["bold-print"].what
    wrong = [cell for table in published_tables() for cell in table.cells if "Bold" in (cell.erratum or "")]
    assert len(wrong) == 4
    assert all(cell.printed in text for cell in wrong)


def test_the_temperature_of_inverse_focal() -> None:
    where = {"data": "cifar10", "model": "resnet50", "method": "inverse_focal", "stage": "after"}
    actual = {table: published(table).find(**where)[0].temperature for table in ("ece", "classwise_ece", "mce", "nll")}
    assert set(actual.values()) == {2.8}
    assert published("adaptive_ece").find(**where)[0].temperature == 1.5


def test_gammas_are_between_those_named() -> None:
    assert (min(GAMMA.values()), max(GAMMA.values())) == (2.3, 6.1)


# Numbers that are computed


def test_the_root_of_the_brier_score() -> None:
    wrong = torch.arange(10_000) < 495  # of a fully confident model
    logits = torch.zeros(10_000, 2).index_fill_(1, torch.tensor([0]), 200.0)
    assert brier_score(logits, wrong.long()) == pytest.approx(0.099)
    assert math.sqrt(0.0922) == pytest.approx(0.30, abs=0.005)
    assert brier_score(logits, wrong.long(), root=True) == pytest.approx(math.sqrt(0.099))


@pytest.mark.filterwarnings("ignore:dual focal loss with two classes")
def test_the_jump_of_the_loss() -> None:
    for p, loss in ((0.499, 0.022), (0.501, 0.684)):
        logits = torch.tensor([[p, 1 - p]], dtype=torch.float64).log()
        assert float(dual_focal_loss(logits, torch.tensor([0]), gamma=5)) == pytest.approx(loss, abs=5e-4)


def risk(q: torch.Tensor, eta: torch.Tensor, gamma: float) -> float:
    """By the loss itself, as class probabilities are its targets."""
    return float(dual_focal_loss(q.log()[None], eta[None], gamma=gamma, reduction="sum"))


def test_the_region_that_is_called_under_confident() -> None:
    (numbers,) = (c.numbers for c in check_claims(1.0) if c.says == "under-confident for q_m in [v^uc, 1)")
    assert (numbers["of"], numbers["inside"], numbers["right"]) == (156, 85, 54)
    for number in ("156", "85", "54"):
        assert f" {number} " in BY_KEY["underconfident-region"].what


def test_the_order_below_the_top_class() -> None:
    eta = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    unordered = torch.tensor([0.5322, 0.2267, 0.2411], dtype=torch.float64)
    ordered = torch.tensor([0.5521, 0.2945, 0.1534], dtype=torch.float64)  # the best of its cell
    assert risk(unordered, eta, 2) == pytest.approx(0.70111, abs=6e-6)
    assert risk(ordered, eta, 2) == pytest.approx(0.70298, abs=6e-6)


@pytest.mark.parametrize(("gamma", "limit"), [(0.5, 0.707), (1, 0.774), (2, 0.855), (3, 0.905), (5, 0.958)])
def test_two_classes_that_tie_have_the_least_risk_up_to_a_limit(gamma, limit) -> None:
    q = torch.linspace(0.500001, 0.999999, 20_001, dtype=torch.float64)
    top, other = -((2 - 2 * q) ** gamma) * q.log(), -(q**gamma) * (1 - q).log()
    for eta, tie_wins in ((limit - 0.001, True), (limit + 0.001, False)):
        best = min(float((eta * top + (1 - eta) * other).min()), float(((1 - eta) * top + eta * other).min()))
        assert (0.5**gamma * math.log(2) < best) is tie_wins


def test_stationarity_has_a_second_term() -> None:
    """At the minimum of the ordered cell, found above: exact with the term, not without it."""
    eta = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    z = torch.tensor([0.5521, 0.2945, 0.1534], dtype=torch.float64).log().requires_grad_()
    for _ in range(300):  # gradient descent to the last digits
        (gradient,) = torch.autograd.grad(dual_focal_loss(z[None], eta[None], gamma=2.0, reduction="sum"), z)
        z = (z - gradient).detach().requires_grad_()
    q = z.detach().softmax(0)
    a = 1 - q + torch.cat([q[1:], q.new_zeros(1)])
    phi = a**2 - 2 * a * q * q.log()
    below = torch.cat([q.new_zeros(1), (2 * a * q.log().abs() * eta)[:-1]])
    multiplier = eta * phi / q - below  # lambda, the same for all
    assert multiplier.tolist() == pytest.approx([float(multiplier[0])] * 3, rel=1e-6)
    assert (eta * phi / q).tolist() != pytest.approx([float(multiplier[0])] * 3, rel=0.1)


def test_the_derivative_in_the_proof() -> None:
    """Of u(v) at v = 1."""
    v = torch.ones((), dtype=torch.float64, requires_grad=True)
    c, gamma = 0.3, 0.4
    u = (1 - v + c) ** 2 + 2 * gamma * v * (1 - v + c) + gamma * v**2 * v.log()
    (slope,) = torch.autograd.grad(u, v)
    assert float(slope) == pytest.approx(-gamma - 2 * c * (1 - gamma))


@pytest.mark.parametrize("classes", [10, 100])
def test_the_penalty_of_mmce_nearly_vanishes(classes) -> None:
    logits, target = predictions(128, classes)
    entropy = cross_entropy_loss(logits, target)
    ours, theirs = (float(mmce_loss(logits, target, as_published=how) - entropy) for how in (False, True))
    assert 0 <= theirs < ours / 20


@pytest.mark.parametrize(("rate", "largest"), [(1.0, 0.09), (5.0, 0.36)])
def test_the_sample_that_adafocal_drops(rate, largest) -> None:
    changes = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        every, fewer = (AdaFocalLoss(rate=rate, drop_lowest=drop) for drop in (False, True))
        for _ in range(50):
            validation = simulated(5000, 10, generator, margin=4, spread=3)
            every.update(*validation)
            fewer.update(*validation)
            changes.append((every.gamma - fewer.gamma).abs())
    change = torch.stack(changes).amax(0)
    assert float(change[0]) == pytest.approx(largest, abs=0.005)
    assert (change[1:] == 0).all()


def test_the_floor_of_the_kernels_above_60_classes() -> None:
    logits, target = simulated(1000, 100, torch.Generator().manual_seed(0), margin=5, spread=4)
    assert kde_ece(1.5 * logits, target) == pytest.approx(0.49, abs=0.005)
    assert kde_ece(1.5 * logits, target, as_published=True) == pytest.approx(0.75, abs=0.005)


@pytest.mark.parametrize("classes_present", [60, 61])
def test_the_logarithm_of_an_empty_sum_has_no_gradient(classes_present) -> None:
    logits, target = predictions(122, 61)
    target = torch.arange(122) % classes_present
    z = logits.double().requires_grad_()
    log_k = log_dirichlet_kernels(z.log_softmax(1), 0.1)
    log_y = torch.nn.functional.one_hot(target, 61).double().log()
    log_sums = torch.stack([(log_k + log_y[:, c]).logsumexp(1) for c in range(61)], 1)
    ratio = (log_sums - log_k.logsumexp(1, keepdim=True)).exp()
    theirs = (ratio - z.softmax(1)).abs().sum(1).mean()
    ours = kde_xe_loss(z, target, 1.0, bandwidth=0.1, as_published=True) - cross_entropy_loss(z, target)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()))
    (our_gradient,), (their_gradient,) = (torch.autograd.grad(value, z, retain_graph=True) for value in (ours, theirs))
    assert our_gradient.isfinite().all()
    if classes_present == 61:
        torch.testing.assert_close(our_gradient, their_gradient)
    else:
        assert their_gradient.isnan().all()


# What is offered


@pytest.mark.parametrize("erratum", EXPRESSIONS, ids=[erratum.key for erratum in EXPRESSIONS])
def test_every_expression_can_be_evaluated(erratum) -> None:
    actual = evaluated(erratum.option)
    if isinstance(actual, Recipe):
        (name, settings) = re.fullmatch(r"preset\('(\w+)'(?:, (\[.*\]))?\)", erratum.option).groups()
        assert preset(name, eval(settings or "[]")) == actual
        options = DATASETS[actual.data].__kwdefaults__
        assert set(actual.data_options) <= set(options)
    elif isinstance(actual, torch.nn.Module):
        assert isinstance(repr(actual), str)
    elif isinstance(actual, float):
        assert math.isfinite(actual)
    else:
        assert isinstance(actual, Table | torch.Tensor | Evaluation)


@pytest.mark.parametrize("erratum", COMMANDS, ids=[erratum.key for erratum in COMMANDS])
def test_every_command_can_be_given(erratum) -> None:
    _, name, *arguments = shlex.split(erratum.option)
    command = typer.main.get_command(full_app()).commands[name]
    context = command.make_context(name, arguments)
    assert context.params["criterion"] == "ece"
    assert context.params["gamma"] == "2,3,4,5,10"


def option(key: str) -> Any:
    return evaluated(BY_KEY[key].option)


def test_what_the_options_restore() -> None:
    """And what is done without them."""
    logits, target = predictions()
    assert option("mmce-normalisation").as_published
    assert option("adafocal-variant").variant == "no_switch"
    assert option("adafocal-bins").drop_lowest
    assert not AdaFocalLoss().drop_lowest
    assert option("adadualfocal-frozen").frozen
    assert not AdaDualFocalLoss().frozen
    assert option("ablation-means").rival == "batch_mean2"
    assert float(option("loss-defaults")(logits, target)) == pytest.approx(
        float(cross_entropy_loss(logits, target, reduction="sum")), rel=1e-5
    )
    assert (DualFocalLoss().gamma, DualFocalLoss().reduction) == (5.0, "mean")
    assert option("label-smoothing-mass").spread == dualfocal.losses.LabelSmoothingLoss().spread == "others"
    assert option("temperature-zero").criterion == "ece"
    assert dualfocal.calibrators.make_calibrator("temperature").criterion == "nll"
    assert option("nll-unit") == 100 * nll(logits, target)
    assert option("rbs-root") == brier_score(logits, target)
    assert option("bin-edges") == pytest.approx(ece(logits, target), abs=1e-6)
    assert set(option("bootstrap-intervals").inference.published) == {"ece", "adaptive_ece", "classwise_ece", "mce"}


def test_adaptive_ece_leaves_out_the_lowest() -> None:
    logits, target = predictions()
    lowest_of = logits.softmax(1).amax(1).argmin()
    target[lowest_of] = (logits[lowest_of].argmax() + 1) % 10
    assert evaluated("adaptive_ece(logits, target)") != option("adaptive-ece-lowest")


def test_the_temperature_of_least_ece_is_of_the_grid() -> None:
    logits, target = predictions(500)
    fitted = option("temperature-criterion").fit(3 * logits, target)
    temperature = float(fitted.temperature)
    assert temperature == round(temperature, 1)
    assert 0.1 <= temperature <= 10


def test_the_recipes_that_are_named() -> None:
    mismatch = option("cifar100-normalisation")
    assert mismatch.data_options == {"published_test_mismatch": True}
    assert preset("cifar100_resnet50").data_options == {}
    assert (option("tiny-batch").batch_size, preset("tiny_imagenet_resnet50").batch_size) == (64, 128)
    assert option("sum-and-clip") == option("last-epoch") == preset("cifar10_resnet50")
    assert option("gamma-choice") == preset("cifar100_resnet110")
    text = option("sgd-for-all")
    assert (text.optimizer, text.weight_decay, text.clip_norm, text.weights) == ("adam", 0.0, None, "best_error")
    kde = option("kde-setting")
    assert (kde.epochs, kde.milestones, kde.seed) == (200, (150,), 0)
    assert len({round(kde.lr_at(epoch), 6) for epoch in range(kde.epochs)}) == 2
    assert option("seeds").loss_options == {"variant": "no_switch", "drop_lowest": True}
    wide = option("brier-mean")
    assert (wide.reduction, wide.epochs) == ("mean", 550)
    assert preset("cifar100_resnet110", ["loss=brier"]).epochs == 430
    assert preset("tiny_imagenet_resnet50", ["loss=brier"]).lr == 0.035


def test_the_size_of_the_nets() -> None:
    def size(net: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in net.parameters())

    assert size(option("resnet110-size")) == 45_864_522
    assert size(evaluated("make_model('resnet110_kde', num_classes=10)")) == pytest.approx(1.7e6, rel=0.03)


def test_small_gamma_has_a_finite_gradient_where_the_formula_has_none() -> None:
    z = torch.tensor([[400.0, 0.0, 0.0]], requires_grad=True)
    (ours,) = torch.autograd.grad(dual_focal_loss(z, torch.tensor([0]), gamma=0.5), z)
    assert ours.isfinite().all()
    p = z.softmax(1)
    (theirs,) = torch.autograd.grad(-((1 - p[0, 0] + p[0, 1]) ** 0.5) * p[0, 0].log(), z)
    assert theirs.isnan().any()


def test_of_rivals_that_tie_the_first_receives_the_gradient() -> None:
    z = torch.tensor([[2.0, 1.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(dual_focal_loss(z, torch.tensor([0]), gamma=5.0), z)
    assert gradient[0, 1] > gradient[0, 2]


def test_bold_print_of_studies_is_described_as_the_tables_do() -> None:
    assert "bold numbers are significantly below those of the first loss" in BY_KEY["bold-print"].ours
