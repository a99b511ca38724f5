"""The paper's numbers: all there, as printed, and to be found by name."""

import json
from collections import Counter
from decimal import Decimal
from importlib import resources

import pytest

from dualfocal.losses import LOSSES
from dualfocal_lab.data import DATASETS
from dualfocal_lab.models import MODELS
from dualfocal_lab.paper.published import Cell, Table, published, published_tables

NAMES = {
    **{"table1": "ece", "table2": "error", "table3": "adafocal", "table4": "ablation", "table5": "adaptive_ece"},
    **{"table6": "classwise_ece", "table7": "mce", "table8": "nll", "table9": "ood_auroc", "table10": "kde_xe"},
    **{"table11": "rbs", "table12": "robustness", "table13": "gamma"},
}
# Rows times columns, of the paper.
COUNTS = {
    "ece": 10 * 14,
    "error": 10 * 7,
    "adafocal": 8 * 4,
    "ablation": 9 * 2,
    "adaptive_ece": 9 * 14,
    "classwise_ece": 9 * 14,
    "mce": 9 * 14,
    "nll": 9 * 14,
    "ood_auroc": 4 * 14,
    "kde_xe": 8 * 3,
    "rbs": 8 * 6,
    "robustness": 4 * 7 * 2,
    "gamma": 5 * 5,
}
BOLD = {"ece": 20, "adafocal": 8, "ablation": 2, "adaptive_ece": 18, "classwise_ece": 18, "mce": 18, "nll": 18}
ERRATA = {"adafocal": 8, "ablation": 1, "adaptive_ece": 1, "classwise_ece": 1, "mce": 5, "rbs": 48, "robustness": 16}

CIFAR = [
    (data, model)
    for data in ("cifar100", "cifar10")
    for model in ("resnet50", "resnet110", "wide_resnet26_10", "densenet121")
]
IMAGES = [*CIFAR, ("tiny_imagenet", "tiny_resnet50")]
ALL = [*IMAGES, ("20newsgroups", "text_cnn")]
SEVEN = {"cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal"}

# Read off the paper: data, model, method; before; after with its temperature. A star is bold print.
SCALED = {
    "ece": [
        ("cifar100", "resnet50", "cross_entropy", "17.52", "3.42(2.1)"),
        ("cifar100", "resnet50", "dual_focal", "*1.08", "*1.08(1.0)"),
        ("cifar100", "resnet110", "label_smoothing", "11.02", "5.89(1.1)"),
        ("cifar100", "wide_resnet26_10", "flsd", "3.03", "*1.64(1.1)"),
        ("cifar100", "densenet121", "mmce", "19.13", "3.06(2.1)"),
        ("cifar10", "resnet50", "brier", "1.82", "1.08(1.1)"),
        ("cifar10", "resnet110", "inverse_focal", "4.34", "*0.89(2.9)"),
        ("cifar10", "wide_resnet26_10", "label_smoothing", "4.26", "1.84(0.8)"),
        ("cifar10", "densenet121", "dual_focal", "*0.57", "*0.57(1.0)"),
        ("tiny_imagenet", "tiny_resnet50", "label_smoothing", "15.23", "6.51(0.7)"),
        ("20newsgroups", "text_cnn", "cross_entropy", "17.92", "2.39(2.3)"),
        ("20newsgroups", "text_cnn", "flsd", "6.92", "2.19(1.1)"),
    ],
    "adaptive_ece": [
        ("cifar100", "resnet50", "inverse_focal", "17.8", "3.70(2.3)"),
        ("cifar100", "resnet110", "cross_entropy", "19.05", "5.86(2.3)"),
        ("cifar10", "resnet50", "inverse_focal", "4.38", "2.15(1.5)"),
        ("cifar10", "wide_resnet26_10", "flsd", "1.52", "*1.38(0.9)"),
        ("cifar10", "densenet121", "label_smoothing", "4.42", "3.33(0.9)"),
        ("tiny_imagenet", "tiny_resnet50", "flsd", "*1.42", "*1.42(1.0)"),
    ],
    "classwise_ece": [
        ("cifar100", "resnet110", "mmce", "0.42", "0.22(2.3)"),
        ("cifar100", "wide_resnet26_10", "flsd", "*0.18", "0.19(1.1)"),
        ("cifar100", "densenet121", "dual_focal", "*0.20", "*0.20(1.0)"),
        ("cifar10", "resnet110", "brier", "0.59", "0.50(1.2)"),
        ("cifar10", "densenet121", "mmce", "1.04", "0.57(2.5)"),
        ("tiny_imagenet", "tiny_resnet50", "inverse_focal", "0.16", "*0.14(1.3)"),
    ],
    "mce": [
        ("cifar100", "resnet50", "flsd", "16.12", "27.18(1.1)"),
        ("cifar100", "densenet121", "inverse_focal", "53.11", "8.45(2.3)"),
        ("cifar10", "resnet50", "cross_entropy", "36.65", "20.6(2.5)"),
        ("cifar10", "wide_resnet26_10", "brier", "77.15", "77.15(1.0)"),
        ("cifar10", "densenet121", "dual_focal", "52.11", "52.11(1.0)"),
        ("tiny_imagenet", "tiny_resnet50", "brier", "8.41", "12.82(0.9)"),
    ],
    "nll": [
        ("cifar100", "resnet50", "cross_entropy", "153.67", "106.83(2.1)"),
        ("cifar100", "wide_resnet26_10", "inverse_focal", "173", "100.6(2.5)"),
        ("cifar100", "densenet121", "dual_focal", "85.82", "*85.82(1.0)"),
        ("cifar10", "resnet110", "brier", "20.44", "19.60(1.2)"),
        ("cifar10", "wide_resnet26_10", "mmce", "28.47", "16.16(2.2)"),
        ("tiny_imagenet", "tiny_resnet50", "label_smoothing", "235.04", "214.95(0.7)"),
    ],
}
# The other tables: what to ask for, and what is printed.
OTHERS: list[tuple[str, dict[str, str], str]] = [
    ("error", {"data": "cifar100", "model": "resnet50", "method": "inverse_focal"}, "22.23"),
    ("error", {"data": "cifar100", "model": "densenet121", "method": "mmce"}, "24.0"),
    ("error", {"data": "cifar10", "model": "resnet50", "method": "dual_focal"}, "5.17"),
    ("error", {"data": "cifar10", "model": "wide_resnet26_10", "method": "cross_entropy"}, "3.86"),
    ("error", {"data": "tiny_imagenet", "model": "tiny_resnet50", "method": "label_smoothing"}, "47.12"),
    ("error", {"data": "20newsgroups", "model": "text_cnn", "method": "brier"}, "27.23"),
    ("adafocal", {"data": "cifar10", "model": "resnet50", "method": "ada_dual_focal"}, "*0.43"),
    ("adafocal", {"data": "cifar10", "model": "densenet121", "method": "ada_focal"}, "0.64"),
    ("adafocal", {"data": "cifar100", "model": "resnet110", "method": "dual_focal"}, "2.9"),
    ("adafocal", {"data": "cifar100", "model": "wide_resnet26_10", "method": "flsd"}, "3.73"),
    ("adafocal", {"data": "cifar100", "model": "densenet121", "method": "dual_focal"}, "*1.79"),
    ("ablation", {"method": "flsd", "metric": "adaptive_ece"}, "1.56"),
    ("ablation", {"variant": "0.2", "metric": "ece"}, "2.10"),
    ("ablation", {"variant": "3rd", "metric": "adaptive_ece"}, "1.35"),
    ("ablation", {"variant": "mean3", "metric": "ece"}, "0.61"),
    ("ablation", {"variant": "mean_all", "metric": "adaptive_ece"}, "0.38"),
    ("ablation", {"variant": "next", "metric": "ece"}, "*0.46"),
    ("ood_auroc", {"variant": "svhn", "model": "resnet50", "method": "mmce", "stage": "after"}, "64.75"),
    ("ood_auroc", {"variant": "svhn", "model": "resnet50", "method": "dual_focal", "stage": "before"}, "94.34"),
    ("ood_auroc", {"variant": "svhn", "model": "densenet121", "method": "inverse_focal", "stage": "before"}, "74.08"),
    ("ood_auroc", {"variant": "cifar10c", "model": "resnet50", "method": "brier", "stage": "before"}, "90.21"),
    (
        "ood_auroc",
        {"variant": "cifar10c", "model": "densenet121", "method": "label_smoothing", "stage": "after"},
        "73.8",
    ),
    ("kde_xe", {"data": "cifar10", "model": "resnet110_kde", "method": "dual_focal", "metric": "ece"}, "0.4"),
    ("kde_xe", {"data": "cifar100", "model": "resnet110_kde", "method": "cross_entropy"}, "12.769"),
    ("kde_xe", {"data": "cifar100", "model": "resnet110_sd", "method": "kde_xe"}, "7.828"),
    ("kde_xe", {"model": "wide_resnet34_10", "method": "dual_focal"}, "1.04"),
    ("kde_xe", {"model": "resnet110_kde", "method": "dual_focal", "metric": "kde_ece"}, "0.153"),
    ("kde_xe", {"data": "cifar10", "model": "densenet40", "method": "kde_xe"}, "0.098"),
    ("rbs", {"data": "cifar10", "model": "resnet50", "method": "cross_entropy"}, "0.0922"),
    ("rbs", {"data": "cifar10", "model": "wide_resnet26_10", "method": "mmce"}, "0.071"),
    ("rbs", {"data": "cifar100", "model": "resnet110", "method": "brier"}, "0.3725"),
    ("rbs", {"data": "cifar100", "model": "densenet121", "method": "dual_focal"}, "0.3157"),
    ("robustness", {"method": "cross_entropy", "metric": "ece", "stage": "before", "variant": "mean"}, "4.4"),
    ("robustness", {"method": "mmce", "metric": "ece", "stage": "before", "variant": "mean"}, "1.81"),
    ("robustness", {"method": "flsd", "metric": "ece", "stage": "after", "variant": "standard_error"}, "0.08"),
    ("robustness", {"method": "label_smoothing", "metric": "adaptive_ece", "variant": "mean"}, "2.99"),
    ("robustness", {"method": "cross_entropy", "metric": "classwise_ece", "variant": "standard_error"}, "0.3"),
    ("robustness", {"method": "dual_focal", "metric": "adaptive_ece", "variant": "standard_error"}, "0.04"),
    ("gamma", {"variant": "2", "metric": "accuracy"}, "95.3"),
    ("gamma", {"variant": "2", "metric": "ece", "stage": "after"}, "0.8553"),
    ("gamma", {"variant": "3", "metric": "adaptive_ece"}, "1.991"),
    ("gamma", {"variant": "5", "metric": "ece", "stage": "before"}, "0.461"),
    ("gamma", {"variant": "10", "metric": "classwise_ece"}, "0.4406"),
]


def test_tables_in_the_papers_order() -> None:
    assert [(table.key, table.name) for table in published_tables()] == list(NAMES.items())
    for key, name in NAMES.items():
        assert published(key) is published(name)
    file = json.loads((resources.files("dualfocal_lab.paper") / "published.json").read_text("utf-8"))
    assert file["schema"] == 1
    assert "2305.13665" in file["source"]


def test_every_number_is_there() -> None:
    tables = published_tables()
    assert {table.name: len(table.cells) for table in tables} == COUNTS
    assert sum(len(table.cells) for table in tables) == 973
    assert {table.name: n for table in tables if (n := sum(cell.bold for cell in table.cells))} == BOLD
    assert {table.name: n for table in tables if (n := sum(cell.erratum is not None for cell in table.cells))} == ERRATA


def as_printed(cell: Cell) -> str:
    temperature = "" if cell.temperature is None else f"({cell.temperature:.1f})"
    return "*" * cell.bold + cell.printed + temperature


def test_cells_read_off_the_paper() -> None:
    for name, rows in SCALED.items():
        for data, model, method, *printed in rows:
            place = {"data": data, "model": model, "method": method}
            cells = [published(name).find(**place, stage=stage) for stage in ("before", "after")]
            assert [[as_printed(cell) for cell in one] for one in cells] == [[text] for text in printed], (name, place)
    for name, place, text in OTHERS:
        assert [as_printed(cell) for cell in published(name).find(**place)] == [text], (name, place)


def test_values_are_fractions_and_nats() -> None:
    for table in published_tables():
        for cell in table.cells:
            assert cell.value == float(Decimal(cell.printed) / (1 if cell.unit == "number" else 100)), cell
            in_percent = table.name != "rbs" and cell.metric not in ("nll", "kde_ece")
            assert (cell.unit == "percent") == in_percent, cell
            assert not in_percent or 0 < cell.value < 1, cell
    assert {cell.unit for cell in published("nll").cells} == {"nats x 100"}
    # In nats: guessing among Tiny-ImageNet's 200 classes costs ln 200 = 5.3.
    assert max(cell.value for cell in published("nll").cells) == 2.421 < 5.3
    assert published("ece").value(data="cifar10", model="resnet50", method="cross_entropy", stage="after") == 0.0135


@pytest.mark.parametrize(
    ("name", "rows", "methods", "stages"),
    [
        ("ece", ALL, SEVEN, ["before", "after"]),
        ("error", ALL, SEVEN, [None]),
        ("adafocal", CIFAR, {"flsd", "ada_focal", "dual_focal", "ada_dual_focal"}, ["before"]),
        *[(name, IMAGES, SEVEN, ["before", "after"]) for name in ("adaptive_ece", "classwise_ece", "mce", "nll")],
        ("rbs", CIFAR, SEVEN - {"inverse_focal"}, ["before"]),
    ],
)
def test_every_row_has_every_method(
    name: str, rows: list[tuple[str, str]], methods: set[str], stages: list[str | None]
) -> None:
    table = published(name)
    there = Counter((cell.data, cell.model, cell.method, cell.stage) for cell in table.cells)
    assert there == Counter((*row, method, stage) for row in rows for method in methods for stage in stages)
    assert set(table.headings) == methods


def test_no_two_cells_in_one_place_and_known_names() -> None:
    for table in published_tables():
        for placed in (table, table.as_meant()):
            places = Counter((c.data, c.model, c.method, c.metric, c.stage, c.variant) for c in placed.cells)
            assert max(places.values()) == 1, table.name
        for cell in table.cells:
            assert cell.data in DATASETS
            assert cell.model in MODELS
            assert cell.method in LOSSES
            assert cell.stage in ("before", "after", None)
            assert table.metric in (cell.metric, None)
            assert cell.variant is None or table.variant is not None
    assert {cell.variant for cell in published("ood_auroc").cells} <= set(DATASETS)


def test_temperatures() -> None:
    """One per model and loss in all tables, but for the slip; with 1.0 nothing changes."""
    temperatures: dict[tuple[str, str, str], set[float]] = {}
    for name in SCALED:
        for cell in published(name).cells:
            assert (cell.temperature is not None) == (cell.stage == "after")
            if cell.temperature is not None:
                temperatures.setdefault((cell.data, cell.model, cell.method), set()).add(cell.temperature)
                before = published(name).value(data=cell.data, model=cell.model, method=cell.method, stage="before")
                assert cell.temperature != 1 or cell.value == before
    assert len(temperatures) == 70
    several = {key: values for key, values in temperatures.items() if len(values) > 1}
    assert several == {("cifar10", "resnet50", "inverse_focal"): {1.5, 2.8}}
    [slip] = [cell for cell in published("adaptive_ece").cells if cell.erratum]
    assert (slip.method, slip.temperature) == ("inverse_focal", 1.5)


def test_bold_is_the_lowest_or_an_erratum() -> None:
    for name in SCALED:
        for cell in published(name).cells:
            row = published(name).find(data=cell.data, model=cell.model, stage=cell.stage)
            if cell.bold and cell.value > min(other.value for other in row):
                assert cell.erratum is not None
                assert cell.erratum.startswith("Bold")


def test_adafocal_as_meant_agrees_with_the_first_table() -> None:
    printed, meant, first = published("adafocal"), published("adafocal").as_meant(), published("ece")
    for data, model in CIFAR:
        for method in ("flsd", "dual_focal"):
            cell = {"data": data, "model": model, "method": method}
            right = first.value(**cell, stage="before")
            assert meant.value(**cell) == right
            assert (printed.value(**cell) == right) == model.startswith("resnet")
    for method in ("ada_focal", "ada_dual_focal"):
        assert meant.find(method=method) == printed.find(method=method)


def test_robustness_as_meant_is_near_the_first_table() -> None:
    asked = {"metric": "ece", "stage": "before", "variant": "mean"}
    first = {
        method: published("ece").value(data="cifar10", model="resnet50", method=method, stage="before")
        for method in SEVEN
    }
    printed, meant = published("robustness"), published("robustness").as_meant()
    for method in SEVEN:
        assert meant.value(method=method, **asked) == pytest.approx(first[method], abs=0.0011)
    for method in ("mmce", "brier"):
        assert abs(printed.value(method=method, **asked) - first[method]) > 0.02


def test_rbs_is_meant_as_the_brier_score() -> None:
    assert published("rbs").metric == "rbs"
    meant = published("rbs").as_meant()
    assert meant.metric == "brier"
    assert meant.value(data="cifar10", model="resnet50", method="dual_focal", metric="brier") == 0.0774


def test_an_ambiguous_value_is_refused_with_the_choices() -> None:
    table = published("ece")
    with pytest.raises(
        ValueError, match=r"table1 \(ece\) has 2 cells for .*method='flsd'; choose one of stage: before, "
    ):
        table.value(data="cifar10", model="resnet50", method="flsd")
    with pytest.raises(ValueError, match=r"has 140 cells for no filter; choose one of data: cifar100, cifar10, "):
        table.value()
    with pytest.raises(ValueError, match=r"0 cells for data='20newsgroups', model='resnet50'; .* model: text_cnn$"):
        table.value(data="20newsgroups", model="resnet50")
    with pytest.raises(ValueError, match=r"0 cells for data='mnist'; choose one of data: cifar100, cifar10, "):
        table.value(data="mnist")
    assert table.find(data="mnist") == []
    with pytest.raises(TypeError, match="loss"):
        table.value(loss="flsd")


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'adafocl'.* table13 \(gamma\); did you mean adafocal\?"):
        published("adafocl")
    with pytest.raises(ValueError, match=r"'table14'.* did you mean table4\?"):
        published("table14")


def test_read_once_and_frozen() -> None:
    assert published_tables() is published_tables()
    table = published("ece")
    assert isinstance(table, Table)
    assert len({*table.cells}) == 140  # hashable
    with pytest.raises(AttributeError):
        table.cells[0].value = 0.0  # type: ignore[misc]
