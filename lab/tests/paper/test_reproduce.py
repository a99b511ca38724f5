"""A table planned and run from Python."""

from pathlib import Path

import pytest

from dualfocal_lab.paper import reproduce, trainings
from dualfocal_lab.paper.reproduce import plan

ONE = {"dataset": ["cifar10"], "model": ["resnet50"], "method": ["dual_focal"]}


def test_a_shorter_schedule_and_a_changed_recipe_have_names_of_their_own(tmp_path: Path) -> None:
    planned = plan("table1", only=ONE, seeds=[3], epochs_scale=0.2, settings=["lr=0.05"], out=tmp_path)
    assert planned.study.title.endswith("SHORTENED to 0.2 of the paper's epochs, CHANGED: lr=0.05")
    [folder] = planned.study.folders(tmp_path).values()
    assert folder.name.startswith("cifar10_resnet50_dual_focal_x0.2_set-")
    assert folder.name.endswith("-seed3")
    assert [file.suffix for file in planned.files()] == [".md", ".json"]
    assert all(file.name.startswith("table1-x0.2-set-") for file in planned.files())
    assert [(t.recipe.epochs, t.recipe.lr) for t in planned.trainings.values()] == [(70, 0.05)]


def test_extras_are_trained_on_request_only() -> None:
    assert len(plan("table1").trainings) == 70
    assert len(plan("table1", extras=True).trainings) == len(plan("table1").every) == 88


def test_the_cost_counts_what_has_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "STEP_TIMES", {"resnet50": 6.0, "wide_resnet26_10": 11.0, "densenet121": 12.0})
    planned = plan("table1", only={"dataset": ["cifar10"], "method": ["dual_focal"]}, seeds=[1, 2])
    hours = [training.hours for training in planned.trainings.values()]
    assert hours.count(None) == 1  # ResNet-110
    assert f"Total left: {2 * sum(filter(None, hours)):.1f} hours, plus 1 training " in planned.cost()
    assert [row[-1] for row in planned.as_table().rows].count("?") == 1


def test_hours_follow_from_the_table_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainings, "STEP_TIMES", dict.fromkeys(("resnet50", "tiny_resnet50", "text_cnn"), 10.0))
    hours = {name: training.hours for name, training in plan("table1").trainings.items()}
    assert hours["cifar10 resnet50 dual_focal"] == pytest.approx(350 * 352 * 0.01 / 3600, abs=0.005)
    assert hours["tiny_imagenet tiny_resnet50 dual_focal"] == pytest.approx(100 * 704 * 0.01 / 3600, abs=0.005)
    assert hours["20newsgroups text_cnn dual_focal"] == pytest.approx(50 * 117 * 0.01 / 3600, abs=0.005)


def test_refusals() -> None:
    for arguments, words in (
        (
            {"only": {"data": ["cifar10"]}},
            "only.*dataset, model, method, variant.*'data'; did you mean dataset",
        ),
        ({"only": {"model": ["resnet5"]}}, "model.*'resnet5'; did you mean resnet50"),
        ({"seeds": []}, "one or more different numbers, got none"),
        ({"seeds": [1, 2, 1]}, "different numbers, got 1, 2, 1"),
        ({"settings": ["seed=3"]}, "cannot change seed"),
    ):
        with pytest.raises(ValueError, match=words):
            plan("table1", **arguments)


def test_a_run_writes_the_table_and_returns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "run_study", lambda *_, **__: {})
    planned = plan("table1", only=ONE, out=tmp_path)
    reproduction = planned.run()
    assert [row.published.printed for row in reproduction.rows if row.published] == ["0.46", "0.46"]
    assert planned.files()[0].read_text() == reproduction.markdown()
    assert reproduction.as_table().headings == ["training", "number", "published", "ours", "seeds"]  # the rest is empty
