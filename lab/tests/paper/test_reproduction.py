"""The trainings and recipes of the tables, and our numbers beside the published ones."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_results import make_result
from safetensors.torch import load_file, save_file
from scipy import stats

from dualfocal.metrics import Evaluation, evaluate, kde_ece, ood_auroc
from dualfocal_lab.data import DataSet
from dualfocal_lab.models import make_model
from dualfocal_lab.paper import ood
from dualfocal_lab.paper.ood import OODScores
from dualfocal_lab.paper.published import published, published_tables
from dualfocal_lab.paper.rows import Row, rows_of, value_of
from dualfocal_lab.paper.trainings import shortened, trainings, with_defaults
from dualfocal_lab.runs import Recipe, Run, RunError
from dualfocal_lab.runs.layout import MODEL, PREDICTIONS, RECIPE
from dualfocal_lab.runs.result import Scaled

COUNTS = {  # trainings of each table; AdaFocal has four columns of eight, the KDE table lacks three
    **{"ece": 70, "error": 70, "adafocal": 32, "ablation": 9, "adaptive_ece": 63, "classwise_ece": 63, "mce": 63},
    **{"nll": 63, "ood_auroc": 14, "kde_xe": 21, "rbs": 48, "robustness": 7, "gamma": 5},
}


# Trainings


def test_tables_share_their_trainings() -> None:
    """A run that is trained for one table is not trained again for another."""
    names: dict[str, set[str]] = {}
    recipes: dict[str, set[str]] = {}
    first = trainings(published("table1"))
    for table in published_tables():
        every = trainings(table.as_meant(), extras=True)
        planned = {name: training for name, training in every.items() if not training.extra}
        assert len(planned) == COUNTS[table.name], table.name
        if table.name in ("error", "adaptive_ece", "classwise_ece", "mce", "nll", "ood_auroc", "rbs", "robustness"):
            assert all(training.recipe == first[name].recipe for name, training in planned.items()), table.name
        for name, training in every.items():
            assert training.recipe.test_each_epoch, name  # so that it can be drawn over its epochs
            text = json.dumps(with_defaults(training.recipe).to_dict(), sort_keys=True)
            names.setdefault(text, set()).add(name)
            recipes.setdefault(name, set()).add(json.dumps(training.recipe.to_dict(), sort_keys=True))
    assert [item for item in names.values() if len(item) > 1] == []
    assert [name for name, item in recipes.items() if len(item) > 1] == []


@pytest.mark.parametrize(("table", "variant"), [("gamma", "5"), ("ablation", "next")])
def test_a_variant_that_is_the_method_itself_is_its_run(table: str, variant: str, tmp_path: Path) -> None:
    name = "cifar10 resnet50 dual_focal"
    actual = trainings(published(table).as_meant())
    assert actual[name].variant == variant
    assert actual[name].label == f"{name} {variant}"
    assert actual[name].recipe == trainings(published("ece"))[name].recipe
    fake(tmp_path / "1")
    rows = rows_of(published(table).as_meant(), {name: actual[name]}, {(name, 1): tmp_path / "1"})
    assert {row.variant for row in rows} == {variant}
    assert all(row.ours for row in rows)


RECIPES: list[tuple[str, str, dict[str, Any]]] = [
    ("ece", "cifar10 resnet50 cross_entropy", {"weight_decay": 5e-4, "epochs": 350, "milestones": (150, 250)}),
    ("ece", "cifar10 resnet50 label_smoothing", {"loss_options": {}, "reduction": "sum", "clip_norm": 2.0}),
    ("ece", "cifar10 wide_resnet26_10 brier", {"epochs": 550, "reduction": "mean"}),
    ("ece", "cifar100 resnet110 brier", {"epochs": 430, "data_options": {"published_test_mismatch": True}}),
    ("ece", "tiny_imagenet tiny_resnet50 brier", {"lr": 0.035, "epochs": 100, "milestones": (40, 60)}),
    ("ece", "tiny_imagenet tiny_resnet50 dual_focal", {"loss_options": {"gamma": 2.3}, "lr": 0.1}),
    ("ece", "20newsgroups text_cnn dual_focal", {"optimizer": "adam", "loss_options": {"gamma": 3}}),
    ("adafocal", "cifar10 resnet50 ada_focal", {"loss_options": {"variant": "no_switch", "drop_lowest": True}}),
    ("adafocal", "cifar10 resnet110 ada_dual_focal", {"loss_options": {"gamma": 7, "frozen": True}}),
    ("ablation", "cifar10 resnet50 dual_focal 0.2", {"loss_options": {"gamma": 5, "rival": 0.2}}),
    ("ablation", "cifar10 resnet50 dual_focal mean2", {"loss_options": {"gamma": 5, "rival": "batch_mean2"}}),
    ("ablation", "cifar10 resnet50 dual_focal 3rd", {"loss_options": {"gamma": 5, "rival": "3rd"}}),
    ("gamma", "cifar10 resnet50 dual_focal 10", {"loss_options": {"gamma": 10}}),
    ("kde_xe", "cifar100 resnet110_sd kde_xe", {"loss_options": {"strength": 0.5}, "weight_decay": 1e-4}),
    ("kde_xe", "cifar10 densenet40 dual_focal", {"epochs": 200, "milestones": (150,), "seed": 0}),
]


def test_recipes() -> None:
    tables = {table: trainings(published(table).as_meant()) for table, _, _ in RECIPES}
    for table, name, expected in RECIPES:
        recipe = tables[table][name].recipe
        assert {field: getattr(recipe, field) for field in expected} == expected, (table, name)


def test_exceptions_are_named() -> None:
    actual = trainings(published("table1"))
    named = {name: training.special for name, training in actual.items() if training.special}
    assert named == {
        "cifar10 wide_resnet26_10 brier": "epochs 550",
        "cifar100 resnet110 brier": "epochs 430",
        "tiny_imagenet tiny_resnet50 brier": "lr 0.035",
    }


def test_extras_are_added_after_the_plan() -> None:
    plain, more = (trainings(published("adafocal").as_meant(), extras=extras) for extras in (False, True))
    assert list(more)[: len(plain)] == list(plain)
    working = more["cifar10 resnet50 ada_dual_focal working"]
    assert working.extra
    assert working.recipe.loss_options == {"gamma": 6, "frozen": False}
    assert more["cifar10 resnet50 ada_focal switch"].recipe.loss_options == {"variant": "switch", "drop_lowest": True}
    decays = trainings(published("table1"), extras=True)
    assert decays["cifar10 resnet50 cross_entropy decay 1e-3"].recipe.weight_decay == 1e-3
    assert len(decays) == 70 + 2 * 9


def test_the_authors_own_net_has_their_number_beside_it(tmp_path: Path) -> None:
    """In the comparison with KDE-XE their ResNet-110 was the larger one."""
    table = published("kde_xe").as_meant()
    actual = trainings(table, extras=True)
    name = "cifar10 resnet110_kde dual_focal as run"
    assert actual[name].recipe.model == "resnet110"
    assert len(actual) == COUNTS["kde_xe"] + 2
    rows = rows_of(table, {name: actual[name]}, {})
    right = table.find(data="cifar10", model="resnet110_kde", method="dual_focal")
    assert [row.published for row in rows] == right


def test_a_shorter_schedule_is_the_same_in_small() -> None:
    recipe = Recipe(data="cifar10", model="resnet50")
    assert shortened(recipe, 1.0) == recipe
    assert (shortened(recipe, 0.2).epochs, shortened(recipe, 0.2).milestones) == (70, (30, 50))
    assert (shortened(recipe, 0.001).epochs, shortened(recipe, 0.001).milestones) == (1, (1,))
    for wrong in (0, -1, 1.5, math.nan):
        with pytest.raises(ValueError, match="epochs_scale must be above 0 and at most 1"):
            trainings(published("table1"), epochs_scale=wrong)


# Numbers


@functools.cache
def scored(seed: int, sharper: float) -> tuple[torch.Tensor, torch.Tensor, Evaluation, Evaluation]:
    """Logits that are too sharp, labels, and the evaluations before and after scaling."""
    rng = torch.Generator().manual_seed(seed)
    logits = sharper * torch.randn(300, 10, generator=rng)
    target = torch.multinomial((logits / sharper).softmax(1), 1, generator=rng)[:, 0]
    before, after = (evaluate(values, target, inference=True) for values in (logits, logits / sharper))
    return logits, target, before, after


def fake(folder: Path, *, seed: int = 0, sharper: float = 2.0, precision: str = "auto") -> Run:
    """A finished run of small_cnn with known predictions."""
    folder.mkdir(parents=True)
    run = Run(folder)
    recipe = Recipe(data="cifar10", model="small_cnn", seed=seed, precision=precision)
    logits, target, before, after = scored(seed, sharper)
    named = {
        f"{part}_{name}": item.clone()
        for part in ("val", "test")
        for name, item in (("logits", logits), ("target", target))
    }
    run.write_json(RECIPE, recipe.to_dict())
    save_file(named, folder / PREDICTIONS)
    torch.manual_seed(0)
    save_file(make_model("small_cnn", num_classes=10, in_channels=3).state_dict(), folder / MODEL)
    scaled = {"temperature_ece": Scaled(sharper, {"test": after, "val": after})}
    run.write_result(make_result({"test": before}, scaled))
    return run


def test_numbers_are_read_off_a_run(tmp_path: Path) -> None:
    run = fake(tmp_path / "run")
    logits, target = run.predictions()
    right = evaluate(logits, target)
    for metric in ("ece", "adaptive_ece", "classwise_ece", "mce", "nll", "error", "brier", "rbs"):
        assert value_of(run, metric, "before") == pytest.approx(getattr(right, metric))
        assert value_of(run, metric, None) == pytest.approx(getattr(right, metric))
        assert value_of(run, metric, "after") == pytest.approx(getattr(evaluate(logits / 2, target), metric))
    assert value_of(run, "accuracy", None) == pytest.approx(1 - right.error)
    assert value_of(run, "kde_ece", None) == pytest.approx(kde_ece(logits, target))


@pytest.mark.parametrize("stage", ["before", "after"])
def test_a_result_that_lacks_a_number_is_named(stage: str, tmp_path: Path) -> None:
    run = fake(tmp_path / "run")
    run.write_result(make_result({}))
    with pytest.raises(RunError, match=r"run/result\.json: has no (metrics of a test part|temperature_ece)"):
        value_of(run, "ece", stage)


@pytest.fixture
def small_data(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Twenty images for each data set; what was asked for."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, root: object = None, **options: Any) -> DataSet:
        asked.append((name, options))
        rng = torch.Generator().manual_seed(len(name) + options.get("severity", 5))
        images = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8, generator=rng)
        scale = torch.nn.Module() if name != "cifar10" else _Scale()
        classes = tuple(map(str, range(10)))
        return DataSet(
            **{"name": name, "class_names": classes, "inputs": images, "target": torch.arange(20) % 10},
            **{"splits": {"test": torch.arange(20)}, "encoder": scale},
        )

    monkeypatch.setattr(ood, "load_data", load)
    return asked


class _Scale(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float() / 255


def test_foreign_images_are_encoded_like_the_training_data(tmp_path: Path, small_data: list[Any]) -> None:
    """Encoded by the encoder of the data it was trained on; by both scores; kept in the run folder."""
    run = fake(tmp_path / "run")
    actual = OODScores().scores(run, "svhn")
    images, _ = ood.load_data("svhn").part("test")
    with torch.no_grad():
        foreign = run.model()(images.float() / 255)
    known, _ = run.predictions()
    for score in ("entropy", "max_prob"):
        assert actual["auroc"]["before"][score] == pytest.approx(ood_auroc(known, foreign, score=score))
        assert actual["auroc"]["after"][score] == pytest.approx(ood_auroc(known / 2, foreign / 2, score=score))
    assert value_of(run, "ood_auroc", "after", "svhn") == actual["auroc"]["after"]["entropy"]
    assert value_of(run, "ood_auroc_max_prob", "before", "svhn") == actual["auroc"]["before"]["max_prob"]
    assert ("svhn", {"only_test": True}) in small_data
    number = len(small_data)
    assert OODScores().scores(run, "svhn") == actual
    assert len(small_data) == number  # nothing was read again


@pytest.mark.parametrize("precision", ["float64", "bfloat16", "tf32"])
def test_foreign_images_are_scored_in_the_precision_of_the_weights(
    precision: str, tmp_path: Path, small_data: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device that is asked for, whatever the training was done on, and with progress."""
    run = fake(tmp_path / "run", precision=precision)
    wide = precision == "float64"
    save_file(
        {name: item.double() if wide else item for name, item in load_file(run.path / MODEL).items()}, run.path / MODEL
    )
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(ood, "BATCH", 8)
    actual = OODScores(device="cpu", progress=lambda *item: calls.append(item)).scores(run, "svhn")
    images, _ = ood.load_data("svhn").part("test")
    with torch.no_grad():
        foreign = run.model()((images.float() / 255).to(torch.float64 if wide else torch.float32))
    known, _ = run.predictions()
    assert actual["auroc"]["before"]["entropy"] == pytest.approx(ood_auroc(known, foreign), abs=1e-12)
    assert calls == [("run, svhn", done, 20) for done in (0, 8, 16)]
    with pytest.raises(ValueError, match="is not available to this process"):
        OODScores(device="cuda:99").scores(fake(tmp_path / "other"), "svhn")


@pytest.mark.parametrize("content", ["", "{}", '{"auroc": {"before": {}}}'])
def test_damaged_scores_are_refused(content: str, tmp_path: Path) -> None:
    run = fake(tmp_path / "run")
    (run.path / "foreign-svhn.json").write_text(content)
    with pytest.raises(RunError, match=r"run/foreign-svhn\.json: is empty or damaged .*; delete it"):
        value_of(run, "ood_auroc", "after", "svhn")


def test_corrupted_images_are_scored_at_each_severity(tmp_path: Path, small_data: list[Any]) -> None:
    actual = OODScores().scores(fake(tmp_path / "run"), "cifar10c")
    assert list(actual["severities"]) == [1, 2, 3, 4, 5]
    assert set(actual["severities"][3]["after"]) == {"error", "ece", "nll"}
    assert len({item["before"]["nll"] for item in actual["severities"].values()}) == 5


def test_rows_stand_beside_the_published_cells(tmp_path: Path) -> None:
    table = published("table1")
    wanted = {"cifar10 resnet50 dual_focal": trainings(table)["cifar10 resnet50 dual_focal"]}
    runs = {("cifar10 resnet50 dual_focal", seed): tmp_path / str(seed) for seed in (1, 2, 3)}
    for seed in (1, 2):
        fake(tmp_path / str(seed), seed=seed)
    before, after = rows_of(table, wanted, runs)
    assert (before.published.printed, after.published.printed) == ("0.46", "0.46")
    assert [before.stage, after.stage] == ["before", "after"]
    assert before.ours == [Run(tmp_path / str(seed)).result.parts["test"].ece for seed in (1, 2)]
    assert after.temperatures == [2.0, 2.0]
    results = [Run(tmp_path / str(seed)).result for seed in (1, 2)]
    scaled = [result.calibrated["temperature_ece"].parts["test"].to_dict() for result in results]
    assert before.floors == [result.floor("ece") for result in results]
    assert after.floors == [item["inference"]["floors"]["ece"]["mean"] for item in scaled]
    assert before.cells()[4] == f"{100 * sum(before.floors) / 2:.2f}"


def test_an_error_has_no_floor(tmp_path: Path) -> None:
    table, name = published("error"), "cifar10 resnet50 dual_focal"
    fake(tmp_path / "1")
    (row,) = rows_of(table, {name: trainings(table)[name]}, {(name, 1): tmp_path / "1"})
    assert row.ours
    assert row.floors == []


def test_the_brier_table_has_both_readings(tmp_path: Path) -> None:
    table = published("rbs").as_meant()
    name = "cifar10 resnet50 dual_focal"
    fake(tmp_path / "1")
    rows = rows_of(table, {name: trainings(table)[name]}, {(name, 1): tmp_path / "1"})
    assert [row.metric for row in rows] == ["brier", "rbs"]
    assert rows[0].ours[0] == pytest.approx(rows[1].ours[0] ** 2)


def test_the_ablation_has_the_columns_that_its_text_promises(tmp_path: Path) -> None:
    table = published("ablation")
    name = "cifar10 resnet50 dual_focal mean3"
    fake(tmp_path / "1")
    rows = rows_of(table, {name: trainings(table)[name]}, {(name, 1): tmp_path / "1"})
    assert [(row.metric, row.stage, row.published is None) for row in rows] == [
        *(("ece", "before", False), ("adaptive_ece", "before", False)),
        *(("ece", "after", True), ("classwise_ece", "before", True)),
    ]
    assert [row.published.printed for row in rows[:2]] == ["0.61", "0.5"]


def test_robustness_is_mean_and_standard_error(tmp_path: Path) -> None:
    table = published("robustness").as_meant()
    name = "cifar10 resnet50 dual_focal"
    runs = {(name, seed): tmp_path / str(seed) for seed in (1, 2, 3)}
    for seed in (1, 2, 3):
        fake(tmp_path / str(seed), seed=seed)
    rows = rows_of(table, {name: trainings(table)[name]}, runs)
    assert len(rows) == 4  # ECE before and after, AdaECE, classwise ECE
    for row in rows:
        assert row.variant == "mean"
        assert row.published_error.variant == "standard_error"
        assert (row.published_error.metric, row.published_error.stage) == (row.metric, row.stage)
        assert row.standard_error == pytest.approx(np.std(row.ours, ddof=1) / math.sqrt(3))
        assert row.agrees is None  # a mean is no run


def test_the_interval_is_that_of_one_more_run() -> None:
    training = trainings(published("table1"))["cifar10 resnet50 dual_focal"]
    cell = published("table1").find(data="cifar10", model="resnet50", method="dual_focal", stage="before")[0]
    values = [0.004, 0.006, 0.005]
    row = Row(training, "ece", "before", None, cell, values, [])
    half = stats.t.ppf(0.95, 2) * np.std(values, ddof=1) * math.sqrt(1 + 1 / 3)
    assert row.interval == pytest.approx((0.005 - half, 0.005 + half))
    assert row.agrees
    assert Row(training, "ece", "before", None, cell, [0.001, 0.009], []).interval[0] == 0  # no ECE is negative
    assert not Row(training, "ece", "before", None, cell, [0.5, 0.51], []).agrees
    assert Row(training, "ece", "before", None, cell, [0.5], []).agrees is None
    assert Row(training, "ece", "before", None, None, values, []).agrees is None


@pytest.mark.parametrize(("metric", "largest"), [("ece", 1), ("ood_auroc", 1), ("accuracy", 1), ("brier", 2)])
def test_one_more_run_stays_where_numbers_can_be(metric: str, largest: float) -> None:
    """And where it could be anywhere, nothing is said to agree."""
    training = trainings(published("table1"))["cifar10 resnet50 dual_focal"]
    cell = published("table1").find(data="cifar10", model="resnet50", method="dual_focal", stage="before")[0]
    anywhere = Row(training, metric, "before", None, cell, [0.3 * largest, 0.6 * largest], [])
    assert anywhere.interval == (0, largest)
    assert anywhere.agrees is None
    high = Row(training, metric, "before", None, cell, [0.95 * largest, 0.96 * largest], [])
    assert high.interval[0] > 0
    assert high.interval[1] == largest
    assert high.agrees is False
    assert Row(training, "nll", "before", None, cell, [3.0, 9.0], []).interval[1] > 20


def test_a_row_of_some_seeds() -> None:
    training = trainings(published("table1"))["cifar10 resnet50 dual_focal"]
    row = Row(
        training, "ece", "after", None, None, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], None, (1, 4, 7), [0.01, 0.02, 0.03]
    )
    some = row.of_seeds([7, 1])
    assert (some.ours, some.temperatures, some.seeds) == ([0.1, 0.3], [1.0, 3.0], (1, 7))
    assert some.floors == [0.01, 0.03]


def test_coverage_of_the_interval() -> None:
    """One more draw of a normal falls into it nine times in ten."""
    rng = np.random.default_rng(0)
    training = trainings(published("table1"))["cifar10 resnet50 dual_focal"]
    inside = 0
    for _ in range(2000):
        *values, one_more = rng.normal(100, size=4)  # far from 0, below which it is cut
        low, high = Row(training, "nll", None, None, None, list(values), []).interval
        inside += low <= one_more <= high
    assert 0.88 < inside / 2000 < 0.92
