"""What a study trains, what its table says, and that the sentence below it is true."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_results import make_result
from torch import Tensor

from dualfocal.metrics import evaluate
from dualfocal.runs import Recipe, Run, RunError
from dualfocal.runs.layout import PREDICTIONS, RECIPE, RESULT
from dualfocal.runs.result import Scaled
from dualfocal.study import PAPER_LOSSES, Study, Summary, make_study, run_study, summarize
from dualfocal.study.gammas import choose_gamma
from dualfocal.study.summary import NAMES, Interval

# What is trained


def test_the_default_is_the_papers_first_table() -> None:
    study = make_study()
    assert study.entries == list(PAPER_LOSSES)
    assert len(study.entries) == 7
    assert study.seeds == [0, 1, 2]
    for entry, by_seed in study.recipes.items():
        for seed, recipe in by_seed.items():
            assert (recipe.data, recipe.model, recipe.loss, recipe.seed) == ("digits", "small_cnn", entry, seed)
            assert recipe.data_options == {"noise": 0.3, "split_seed": seed}


def test_the_recipe_is_said_in_a_line() -> None:
    assert make_study(["focal"], settings=["epochs=7"]).recipe == (
        "digits, noise 0.3; small_cnn; sgd, lr 0.05 (cosine), momentum 0.9, weight decay 0.0005, 7 epochs, batches of "
        "100, mean of the loss"
    )
    assert make_study(["focal"], dataset="cifar10").recipe == (
        "cifar10; resnet50; sgd, lr 0.1 (times 0.1 after 150 and 250), momentum 0.9, weight decay 0.0005, 350 epochs, "
        "batches of 128, sum of the loss, gradient norm clipped to 2"
    )


def test_recipes_differ_in_their_loss_only() -> None:
    first, *others = (by_seed[1] for by_seed in make_study().recipes.values())
    for recipe in others:
        assert {text.partition(":")[0] for text in first.differences(recipe)} <= {"loss", "loss_options"}


def test_a_data_set_of_the_paper_brings_its_recipe() -> None:
    recipes = make_study(["cross_entropy", "dual_focal"], dataset="cifar10", seeds=[4]).recipes
    assert (recipes["dual_focal"][4].model, recipes["dual_focal"][4].loss_options) == ("resnet50", {"gamma": 5})
    assert recipes["dual_focal"][4].epochs == 350
    recipe = make_study(["dual_focal"], dataset="cifar10", model="densenet121", settings=["epochs=9"]).recipes
    assert (recipe["dual_focal"][0].model, recipe["dual_focal"][0].epochs) == ("densenet121", 9)
    other = make_study(["dual_focal"], dataset="cifar10", model="densenet40").recipes["dual_focal"][0]
    assert (other.model, other.data) == ("densenet40", "cifar10")


def test_data_of_ones_own(tmp_path: Path) -> None:
    recipe = make_study(["focal"], dataset=str(tmp_path), seeds=[1]).recipes["focal"][1]
    assert (recipe.data, recipe.model) == (str(tmp_path), "small_cnn")


def test_gammas() -> None:
    study = make_study(["focal"], gammas=[0.5, 2, 10])
    assert study.entries == ["gamma 0.5", "gamma 2", "gamma 10"]
    assert [by_seed[0].loss_options for by_seed in study.recipes.values()] == [
        {"gamma": 0.5},
        {"gamma": 2},
        {"gamma": 10},
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"losses": ["dual_fokal"]}, r"'dual_fokal'.*; did you mean dual_focal\?"),
        ({"losses": []}, "a study needs at least one loss and one seed"),
        ({"seeds": []}, "a study needs at least one loss and one seed"),
        ({"losses": ["focal", "focal"]}, "losses must not repeat, got focal, focal"),
        ({"seeds": [1, 1]}, "seeds must not repeat, got 1, 1"),
        (
            {"losses": ["focal"], "gammas": [2.0, 2.0000001]},
            "gammas must differ in their first six significant digits, got 2.0, 2.0000001",
        ),
        ({"gammas": [1.0]}, "gammas need exactly one loss, got cross_entropy, brier"),
        ({"dataset": "cifar1"}, r"unknown data set 'cifar1'; .* did you mean cifar10\?"),
        ({"settings": ["seed=3"]}, "--set cannot change seed .* use --seeds"),
        ({"settings": ["loss=focal"]}, "--set cannot change loss .* use --losses"),
        ({"settings": ["epoch=3"]}, "a recipe has no field 'epoch'"),
    ],
)
def test_refusals(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_study(**changed)


# Training


def test_runs_are_made_once_and_go_on(tmp_path: Path) -> None:
    """Two processes; what is there is left alone, what is missing is trained."""
    settings = ["epochs=2", "data.val_size=100"]
    told: list[tuple[int, int, int]] = []
    study = make_study(["cross_entropy"], seeds=[0, 1], settings=settings)
    assert run_study(study, tmp_path, jobs=2, device="cpu", progress=lambda *of: told.append(of)) == {}
    assert told[0] == (0, 4, 0)
    assert told[-1] == (4, 4, 2)
    runs = {seed: Run(tmp_path / "runs" / f"cross_entropy-seed{seed}") for seed in (0, 1)}
    assert [run.state for run in runs.values()] == ["finished", "finished"]
    assert runs[0].result.sessions[0]["threads"] == 1
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    more = make_study(["cross_entropy", "focal"], seeds=[0, 1], settings=settings)
    assert run_study(more, tmp_path, jobs=1, device="cpu") == {}
    assert {path: path.stat().st_mtime_ns for path in before} == before
    summary = summarize(more, tmp_path)
    for entry in more.entries:
        for place, seed in enumerate((0, 1)):
            result = Run(more.folders(tmp_path)[entry, seed]).result.to_dict()
            assert summary.scores[entry]["ece"][place] == result["test"]["ece"]
            scaled = result["calibrated"]["temperature"]
            assert summary.scores[entry]["nll_t"][place] == scaled["test"]["nll"]
            assert summary.scores[entry]["temperature"][place] == scaled["temperature"]
    other = make_study(["cross_entropy"], seeds=[0], settings=["epochs=3"])
    with pytest.raises(RunError, match="was made by another recipe"):
        run_study(other, tmp_path, device="cpu")


def test_a_loss_that_explodes_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    study = make_study(["cross_entropy"], seeds=[0], settings=["epochs=1", "lr=1e30", "data.val_size=100"])
    failed = run_study(study, tmp_path, jobs=1, device="cpu")
    assert list(failed) == [("cross_entropy", 0)]
    assert "in epoch 1" in failed["cross_entropy", 0]
    summary = summarize(study, tmp_path, failed)
    assert summary.table().rows[1][1] == "failed"
    assert summary.reading().startswith("No comparison: ")
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False))["failed"]


def test_data_without_a_validation_part_are_refused_before_training(tmp_path: Path) -> None:
    study = make_study(["cross_entropy"], seeds=[0], settings=["data.val_size=0"])
    with pytest.raises(ValueError, match=r"data digits has no val split, .* set data\.val_size"):
        run_study(study, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        run_study(make_study(), tmp_path, jobs=0)


# Tables


def made(
    scores: dict[str, dict[str, list[float]]],
    differences: dict[str, dict[str, Interval]],
    behind_best: dict[str, Interval] | None = None,
) -> Summary:
    recipe = Recipe(data="digits", model="small_cnn")
    number = len(next(iter(scores.values()))["ece"])
    study = Study("a title", {entry: dict.fromkeys(range(number), recipe) for entry in scores})
    filled = {entry: {name: values.get(name, [0.5] * number) for name in NAMES} for entry, values in scores.items()}
    return Summary(study, filled, {"ece": dict.fromkeys(scores, 0.02)}, differences, behind_best or {}, {})


def test_a_table_has_the_means_and_the_best_in_bold() -> None:
    scores = {"a": {"ece": [0.10, 0.20], "error": [0.1, 0.1]}, "b": {"ece": [0.02, 0.04], "error": [0.1, 0.1]}}
    differences = {"b": {name: Interval(-0.12, 0.01) for name in ("error", "nll", "nll_t", "ece", "ece_t")}}
    summary = made(scores, differences, {"a": Interval(0.12, 0.01)})
    table = summary.table()
    assert table.headings == ["", "error %", "NLL", "NLL, T", "ECE %", "ECE %, T", "T", "AdaECE %", "cw ECE %", "MCE %"]
    assert [row[0] for row in table.rows] == ["floor", "a", "b"]
    assert [row[4] for row in table.rows] == ["2.0", "15.0", "3.0"]
    assert table.rows[0][5:8] == ["", "", ""]
    assert [row[6] for row in table.rows[1:]] == ["0.50", "0.50"]
    assert summary.best("ece") == {"b"}
    assert summary.best("error") == {"a", "b"}
    text = summary.to_markdown()
    assert "| b | **10.0** |" in text
    assert "**3.0**" in text
    assert "**15.0**" not in text
    assert "| b | -12.0 ± 1.0 | -0.120 ± 0.010 |" in text
    lines = summary.to_csv().splitlines()
    assert lines[0].startswith("entry,seed,error,nll,nll_t,ece")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("ece", "difference", "conclusion"),
    [
        (0.02, Interval(-0.08, 0.03), "b has the lowest ECE, 2.0 % (noise floor 2.0 %), 8.0 ± 3.0 points below a."),
        (
            0.08,
            Interval(-0.02, 0.03),
            "b has the lowest ECE, 8.0 % (noise floor 2.0 %), not significantly different from a.",
        ),
        (0.30, Interval(0.20, 0.03), "a has the lowest ECE, 10.0 % (noise floor 2.0 %)."),
        (
            0.12,
            Interval(0.02, 0.03),
            "a has the lowest ECE, 10.0 % (noise floor 2.0 %), not significantly different from b.",
        ),
    ],
)
def test_the_reading_says_what_the_numbers_bear(ece: float, difference: Interval, conclusion: str) -> None:
    after = {"nll": Interval(0.0, 0.1), "nll_t": Interval(0.05, 0.02), "ece_t": Interval(-0.01, 0.02)}
    scores = {"a": {"ece": [0.1, 0.1], "error": [0.2, 0.2]}, "b": {"ece": [ece, ece], "error": [0.21, 0.21]}}
    worse = "b" if ece > 0.1 else "a"
    behind = {worse: Interval(abs(difference.mean), difference.half_width)}
    after["error"] = Interval(0.01, 0.02)
    reading = made(scores, {"b": {"ece": difference, **after}}, behind).reading()
    before, after_scaling = reading.split(" After temperature scaling, ")
    assert before.endswith(conclusion)
    assert "the NLL of b is 0.050 ± 0.020 nats above a's and" in after_scaling
    assert "its ECE is not significantly different from a's (-1.0 ± 2.0 points)" in after_scaling
    assert after_scaling.endswith("error is not significantly different from a's (+1.0 ± 2.0 points).")


def test_what_is_not_known_is_not_said() -> None:
    """One seed each, on other samples each: there is nothing to tell noise by."""
    unknown = dict.fromkeys(("error", "nll", "nll_t", "ece", "ece_t"), Interval(-0.1, None))
    summary = made({"a": {"ece": [0.2]}, "b": {"ece": [0.1]}}, {"b": unknown}, {"a": Interval(0.1, None)})
    assert "significant" not in summary.reading()
    assert summary.reading().count("confidence interval unknown") == 3


def test_an_entry_that_lacks_a_run_is_not_compared() -> None:
    summary = made({"a": {"ece": [0.1, 0.3]}, "b": {"ece": [0.05, math.nan]}}, {})
    assert summary.complete == ["a"]
    assert summary.best("ece") == set()
    assert summary.reading().startswith("No comparison: ")
    assert [row[0] for row in summary.table().rows[1:]] == ["a", "b (1 of 2)"]


def test_a_run_that_failed_is_left_out_of_the_means() -> None:
    summary = made({"a": {"ece": [0.1, math.nan]}, "b": {"ece": [math.nan, math.nan]}}, {})
    assert summary.mean("a", "ece") == 0.1
    assert summary.table().rows[2][4] == "failed"
    assert summary.to_dict()["entries"]["a"]["by_seed"]["ece"] == [0.1, None]


# Runs that were not trained: known predictions.


def fake_run(folder: Path, logits: Tensor, target: Tensor, temperature: float = 1.0) -> None:
    folder.mkdir(parents=True)
    run = Run(folder)
    run.write_json(RECIPE, Recipe(data="digits", model="small_cnn").to_dict())
    named = {"logits": logits, "target": target}
    tensors = {f"{part}_{name}": tensor.clone() for part in ("val", "test") for name, tensor in named.items()}
    run.write_tensors(PREDICTIONS, tensors)
    parts = dict.fromkeys(("val", "test"), evaluate(logits, target, inference=True))
    scaled = dict.fromkeys(("val", "test"), evaluate(logits / temperature, target, inference=True))
    run.write_result(make_result(parts, {"temperature": Scaled(temperature, scaled)}))


def predictions(seed: int, sharper: float) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1500, 5, generator=rng)
    target = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]
    noise = 0.05 * torch.randn(1500, 5, generator=torch.Generator().manual_seed(seed + 1))
    return sharper * logits + noise, target


@pytest.fixture
def faked(tmp_path: Path) -> tuple[Study, Path]:
    """Three entries on the same test samples: over-confident, calibrated, and calibrated by a hair less."""
    recipe = Recipe(data="digits", model="small_cnn")
    study = Study("t", {entry: dict.fromkeys((0, 1), recipe) for entry in ("gamma 1", "gamma 2", "gamma 3")})
    for (entry, seed), folder in study.folders(tmp_path).items():
        sharper = {"gamma 1": 2.0, "gamma 2": 1.0, "gamma 3": 1.005}[entry]
        fake_run(folder, *predictions(seed, sharper), temperature=sharper)
    return study, tmp_path


def test_differences_are_paired_and_know_of_the_samples(faked: tuple[Study, Path]) -> None:
    summary = summarize(*faked)
    ece = summary.differences["gamma 2"]["ece"]
    apart = [b - a for a, b in zip(summary.scores["gamma 1"]["ece"], summary.scores["gamma 2"]["ece"], strict=True)]
    assert ece.mean == pytest.approx(sum(apart) / 2)
    assert ece.significant
    assert ece.half_width > 6.31 * abs(apart[0] - apart[1]) / 2  # more than the seeds alone leave open
    assert not summary.differences["gamma 2"]["nll_t"].significant
    assert summary.reading().startswith("Before temperature scaling, gamma ")


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        (lambda result: result.pop("calibrated"), "has no temperature"),
        (lambda result: result.pop("test"), "has no metrics of a test part"),
        (lambda result: result["calibrated"]["temperature"]["test"].pop("mce"), "is damaged: it lacks 'mce'"),
    ],
    ids=["calibrated", "test", "mce"],
)
def test_a_result_that_lacks_something_is_named(
    damage: Callable[[dict[str, Any]], object], missing: str, faked: tuple[Study, Path]
) -> None:
    study, out = faked
    path = study.folders(out)["gamma 2", 1] / RESULT
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match=rf"gamma_2-seed1/result\.json: {missing}"):
        summarize(study, out)


def test_gamma_needs_the_validation_part(faked: tuple[Study, Path]) -> None:
    study, out = faked
    path = study.folders(out)["gamma 2", 1] / RESULT
    content = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in content.items() if name != "val"}))
    with pytest.raises(RunError, match=r"gamma_2-seed1/result\.json: has no metrics of a val part"):
        choose_gamma(study, out)


def test_gamma_is_chosen_with_all_that_cannot_be_told_from_it(faked: tuple[Study, Path]) -> None:
    for criterion in ("nll", "ece"):
        choice = choose_gamma(*faked, criterion)
        assert choice.chosen in ("gamma 2", "gamma 3")
        assert "gamma 1" not in choice.within
        assert choice.behind[choice.chosen] == (0.0, 0.0)
        by, error = choice.behind["gamma 1"]
        assert by > 3 * error > 0
        assert choice.chosen in choice.sentence()
    both = choose_gamma(*faked, "nll")
    means = {entry: [] for entry in faked[0].entries}
    for (entry, _), folder in faked[0].folders(faked[1]).items():
        means[entry].append(Run(folder).result.parts["val"].nll)
    assert both.means == pytest.approx({entry: sum(values) / 2 for entry, values in means.items()})
    assert "| gamma 1 |" in both.markdown()


def test_a_gamma_without_all_its_runs_is_not_chosen(faked: tuple[Study, Path]) -> None:
    study, out = faked
    for entry in ("gamma 2", "gamma 3"):
        (study.folders(out)[entry, 0] / RESULT).unlink()
    assert choose_gamma(study, out).chosen == "gamma 1"
    assert choose_gamma(study, out).sentence().endswith(": gamma 2, gamma 3.")
    (study.folders(out)["gamma 1", 1] / RESULT).unlink()
    with pytest.raises(ValueError, match="no gamma has finished runs for all seeds"):
        choose_gamma(study, out)


def test_one_seed_has_the_noise_of_the_samples(faked: tuple[Study, Path]) -> None:
    study, out = faked
    one = Study("t", {entry: {0: by_seed[0]} for entry, by_seed in study.recipes.items()})
    d = summarize(one, out).differences["gamma 2"]["nll"]
    assert d.half_width is not None
    assert d.significant
