"""What a study plans to train, what its table shows, and that the sentence below the table is true."""

import html
import json
import math
import shutil
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
from dualfocal.study import PAPER_LOSSES, Study, Summary, choose_gamma, make_study, summarize
from dualfocal.study.summary import LOWEST, NAMES, Interval

# What is trained


def test_the_default_is_the_papers_first_table() -> None:
    study = make_study()
    assert study.entries == list(PAPER_LOSSES)
    assert len(study.entries) == 7
    assert study.seeds == [0, 1, 2]
    first = study.recipes[study.entries[0]]
    for entry, by_seed in study.recipes.items():
        for seed, recipe in by_seed.items():
            assert (recipe.data, recipe.model, recipe.loss, recipe.seed) == ("digits", "small_cnn", entry, seed)
            assert recipe.data_options == {"noise": 0.3, "split_seed": seed}
            differences = {text.partition(":")[0] for text in first[seed].differences(recipe)}
            assert differences <= {"loss", "loss_options"}, entry


def test_the_recipe_is_described_in_one_line() -> None:
    digits = make_study(["focal"], settings=["epochs=7"]).recipe
    for words in ("digits, noise 0.3; small_cnn; sgd, lr 0.05 (cosine), momentum 0.9", "7 epochs", "mean of the loss"):
        assert words in digits
    cifar = make_study(["focal"], dataset="cifar10").recipe
    for words in ("lr 0.1 (times 0.1 after 150 and 250)", "batches of 128", "sum of the loss", "norm clipped to 2"):
        assert words in cifar


def test_a_data_set_of_the_paper_brings_its_recipe(tmp_path: Path) -> None:
    recipe = make_study(["cross_entropy", "dual_focal"], dataset="cifar10", seeds=[4]).recipes["dual_focal"][4]
    assert (recipe.model, recipe.loss_options, recipe.epochs) == ("resnet50", {"gamma": 5}, 350)
    for model, settings, epochs in (("densenet121", ["epochs=9"], 9), ("densenet40", [], 350)):
        study = make_study(["dual_focal"], dataset="cifar10", model=model, settings=settings)
        recipe = study.recipes["dual_focal"][0]
        assert (recipe.data, recipe.model, recipe.epochs) == ("cifar10", model, epochs)
    custom = make_study(["focal"], dataset=str(tmp_path), seeds=[1]).recipes["focal"][1]
    assert (custom.epochs, custom.schedule, custom.reduction, custom.clip_norm) == (30, "cosine", "mean", None)
    assert (custom.data, custom.model) == (str(tmp_path), "small_cnn")


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
        ({"losses": ["focal"], "gammas": [2.0, 2.0000001]}, "gammas must differ .* got 2.0, 2.0000001"),
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


# Tables


def made(
    scores: dict[str, dict[str, list[float]]],
    differences: dict[str, dict[str, Interval]],
    behind_best: dict[str, dict[str, Interval]] | None = None,
) -> Summary:
    recipe = Recipe(data="digits", model="small_cnn")
    number = len(next(iter(scores.values()))["ece"])
    study = Study("a title", {entry: dict.fromkeys(range(number), recipe) for entry in scores})
    filled = {entry: {name: values.get(name, [0.5] * number) for name in NAMES} for entry, values in scores.items()}
    behind = {name: {} for name in LOWEST} | (behind_best or {})
    return Summary(study, filled, {"ece": dict.fromkeys(scores, 0.02)}, differences, behind, {})


def test_a_table_has_the_means_and_bold_numbers_that_are_significantly_lower() -> None:
    scores = {"a": {"ece": [0.10, 0.20], "error": [0.1, 0.1]}, "b": {"ece": [0.02, 0.04], "error": [0.1, 0.1]}}
    differences = {"b": {name: Interval(-0.12, 0.01) for name in ("error", "nll", "nll_t", "ece", "ece_t")}}
    differences["b"]["error"] = Interval(-0.12, 0.13)
    summary = made(scores, differences, {"ece": {"a": Interval(0.12, 0.01)}})
    table = summary.table()
    assert table.headings == ["", "error %", "NLL", "NLL, T", "ECE %", "ECE %, T", "T", "AdaECE %", "cw ECE %", "MCE %"]
    assert [row[0] for row in table.rows] == ["floor", "a", "b"]
    assert [row[4] for row in table.rows] == ["2.0", "15.0", "3.0"]
    assert table.rows[0][5:8] == ["", "", ""]
    assert [row[6] for row in table.rows[1:]] == ["0.50", "0.50"]
    assert [name for name in NAMES if summary.better("b", name)] == ["nll", "nll_t", "ece", "ece_t"]
    assert not any(summary.better("a", name) for name in NAMES)
    text = summary.to_markdown()
    assert "| b | 10.0 |" in text
    assert "**3.0**" in text
    assert "**15.0**" not in text
    assert "| b | -12.0 ± 13.0 | -0.120 ± 0.010 |" in text
    printed = str(summary)
    places = [
        printed.index(part) for part in ("a title", "Recipe: ", "AdaECE", "*: signif", "minus a", summary.reading())
    ]
    assert places == sorted(places)
    assert "  3.0*" in printed
    assert "15.0*" not in printed
    page = summary._repr_html_()
    assert "<td>3.0*</td>" in page
    assert f"<b>{html.escape(summary.reading())}</b>" in page
    assert page.count("<table>") == 2
    lines = summary.to_csv().splitlines()
    assert lines[0].startswith("entry,seed,error,nll,nll_t,ece")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("ece", "difference", "lowest", "significant"),
    [
        (0.02, Interval(-0.08, 0.03), "b, 2.0 %", "better than a: b in ECE."),
        (0.08, Interval(-0.02, 0.03), "b, 8.0 %", ""),
        (0.30, Interval(0.20, 0.03), "a, 10.0 %", "worse than a: b in NLL after temperature scaling and ECE."),
        (0.12, Interval(0.02, 0.03), "a, 10.0 %", ""),
    ],
)
def test_the_reading_claims_only_what_is_significant(
    ece: float, difference: Interval, lowest: str, significant: str
) -> None:
    others = {"error": Interval(0.01, 0.02), "nll": Interval(0.0, 0.1), "ece_t": Interval(-0.01, 0.02)}
    scores = {"a": {"ece": [0.1, 0.1]}, "b": {"ece": [ece, ece]}}
    behind = {"ece": {"b" if ece > 0.1 else "a": Interval(abs(difference.mean), difference.half_width)}}
    reading = made(scores, {"b": {"ece": difference, "nll_t": Interval(0.05, 0.02), **others}}, behind).reading()
    rest = "significantly below all others" if difference.significant else "not significantly different: "
    assert f"Lowest ECE: {lowest} (noise floor 2.0 %); {rest}" in reading
    assert f"Significantly {significant}" in reading
    assert "Significantly worse than a: b in NLL after temperature scaling" in reading
    assert " error" not in reading


def test_one_seed_allows_no_conclusion() -> None:
    significant = dict.fromkeys(("error", "nll", "nll_t", "ece", "ece_t"), Interval(-0.1, 0.01))
    summary = made({"a": {"ece": [0.2]}, "b": {"ece": [0.1]}}, {"b": significant}, {"ece": {"a": Interval(0.1, 0.01)}})
    assert summary.reading().startswith("No conclusion: with one seed, ")
    assert "**" not in summary.to_markdown()
    assert "not of the training" in summary.explanation()


def test_without_an_interval_nothing_is_called_significant() -> None:
    unknown = dict.fromkeys(("error", "nll", "nll_t", "ece", "ece_t"), Interval(-0.1, None))
    summary = made(
        {"a": {"ece": [0.2] * 2}, "b": {"ece": [0.1] * 2}}, {"b": unknown}, {"ece": {"a": Interval(0.1, None)}}
    )
    assert "Lowest ECE: b, 10.0 % (noise floor 2.0 %); confidence interval unknown: a." in summary.reading()
    assert "Nothing is significantly different from a." in summary.reading()


def test_an_entry_that_lacks_a_run_is_not_compared() -> None:
    summary = made({"a": {"ece": [0.1, 0.3]}, "b": {"ece": [0.05, math.nan]}}, {})
    assert summary.complete == ["a"]
    assert not summary.better("b", "ece")
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


@pytest.fixture(scope="module")
def faked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """Three entries on the same test samples: over-confident, calibrated, and almost calibrated."""
    out = tmp_path_factory.mktemp("faked")
    recipe = Recipe(data="digits", model="small_cnn")
    study = Study("t", {entry: dict.fromkeys((0, 1), recipe) for entry in ("gamma 1", "gamma 2", "gamma 3")})
    for (entry, seed), folder in study.folders(out).items():
        sharper = {"gamma 1": 2.0, "gamma 2": 1.0, "gamma 3": 1.005}[entry]
        fake_run(folder, *predictions(seed, sharper), temperature=sharper)
    return study, out


@pytest.fixture
def copied(faked: tuple[Study, Path], tmp_path: Path) -> tuple[Study, Path]:
    """A copy of the runs, which a test may change."""
    return faked[0], shutil.copytree(faked[1], tmp_path / "copy")


def test_differences_are_paired_and_know_of_the_samples(faked: tuple[Study, Path]) -> None:
    study, out = faked
    study = Study("t", {entry: study.recipes[entry] for entry in ("gamma 1", "gamma 2")})
    summary = summarize(study, out)
    ece = summary.differences["gamma 2"]["ece"]
    apart = [b - a for a, b in zip(summary.scores["gamma 1"]["ece"], summary.scores["gamma 2"]["ece"], strict=True)]
    assert ece.mean == pytest.approx(sum(apart) / 2)
    assert ece.significant
    assert ece.half_width > 6.31 * abs(apart[0] - apart[1]) / 2  # more than the seeds alone leave open
    assert not summary.differences["gamma 2"]["nll_t"].significant
    assert "Lowest ECE: gamma 2, " in summary.reading()
    better = "Significantly better than gamma 1: gamma 2 in NLL and ECE."
    assert better in summary.reading()


def test_one_seed_has_the_noise_of_the_samples(faked: tuple[Study, Path]) -> None:
    study, out = faked
    study = Study("t", {entry: {0: study.recipes[entry][0]} for entry in ("gamma 1", "gamma 2")})
    nll = summarize(study, out).differences["gamma 2"]["nll"]
    assert nll.half_width is not None
    assert nll.significant


@pytest.mark.parametrize(
    ("damage", "use", "words"),
    [
        (lambda result: result.pop("calibrated"), summarize, "has no temperature"),
        (lambda result: result.pop("test"), summarize, "has no metrics of a test part"),
        (lambda result: result["calibrated"]["temperature"]["test"].pop("mce"), summarize, "damaged: .*lacks 'mce'"),
        (lambda result: result.pop("val"), choose_gamma, "has no metrics of a val part"),
    ],
    ids=["calibrated", "test", "mce", "val"],
)
def test_an_incomplete_result_is_named(
    damage: Callable[[dict[str, Any]], object], use: Callable[..., object], words: str, copied: tuple[Study, Path]
) -> None:
    study, out = copied
    path = study.folders(out)["gamma 2", 1] / RESULT
    content = json.loads(path.read_text())
    damage(content)
    del content["crc32"]
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match=rf"gamma_2-seed1/result\.json: .*{words}"):
        use(study, out)


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
    lines = str(both).splitlines()
    assert [line.split()[:2] for line in lines[1:-1]] == [["gamma", number] for number in "123"]
    assert lines[-1] == both.sentence()
    assert both._repr_html_().endswith(f"<p><b>{html.escape(both.sentence())}</b></p>")


def test_a_gamma_without_all_its_runs_is_not_chosen(copied: tuple[Study, Path]) -> None:
    study, out = copied
    for entry in ("gamma 2", "gamma 3"):
        (study.folders(out)[entry, 0] / RESULT).unlink()
    assert choose_gamma(study, out).chosen == "gamma 1"
    assert choose_gamma(study, out).sentence().endswith(": gamma 2, gamma 3.")
    (study.folders(out)["gamma 1", 1] / RESULT).unlink()
    with pytest.raises(ValueError, match="no gamma has finished runs for all seeds"):
        choose_gamma(study, out)
    with pytest.raises(ValueError, match="criterion must be one of 'nll', 'ece', got 'brier'"):
        choose_gamma(study, out, "brier")
