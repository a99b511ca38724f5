"""Which runs go into a figure, and that the paper's figures show the numbers of their run folders."""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from run_results import make_result

from dualfocal.losses import LOSSES
from dualfocal.metrics import evaluate
from dualfocal_lab.paper.figures import FIGURES
from dualfocal_lab.plots.distributions import rival_probabilities
from dualfocal_lab.plots.run_groups import LABELS, Setting, group_runs
from dualfocal_lab.plots.training import exponential_average
from dualfocal_lab.runs import Recipe, Run, RunError
from dualfocal_lab.runs.layout import LOG, PREDICTIONS, RECIPE, RESULT

DIGITS = Recipe(data="digits", model="small_cnn", epochs=3, milestones=())


def fake_run(folder: Path, recipe: Recipe, sharper: float = 1.0, log: Mapping[str, list[float]] | None = None) -> Run:
    """A finished run folder, with predictions that are more or less over-confident; the parts differ."""
    folder.mkdir(parents=True)
    run, generator = Run(folder), torch.Generator().manual_seed(recipe.seed)
    run.write_json(RECIPE, recipe.to_dict())
    named, scores = {}, {}
    for part, size, sharpness in (("val", 100, 3 * sharper), ("test", 240, sharper)):
        logits = 2 * torch.randn(size, 4, generator=generator)
        target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        named |= {f"{part}_logits": sharpness * logits, f"{part}_target": target}
        scores[part] = evaluate(sharpness * logits, target, inference=True, draws=100)
    run.write_tensors(PREDICTIONS, named)
    for epoch in range(3):
        run.append({"epoch": epoch + 1, **{name: value[epoch] for name, value in (log or {}).items()}})
    run.write_result(make_result(scores))
    return run


def recipe(loss: str, seed: int = 0, **changes: object) -> Recipe:
    return dataclasses.replace(DIGITS, loss=loss, seed=seed, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two losses, two seeds each, as a study leaves them."""
    root = tmp_path_factory.mktemp("study")
    for place, loss in enumerate(("dual_focal", "cross_entropy")):
        for seed in (3, 1):
            test = [0.3 + 0.1 * seed, 0.2, 0.01 * (place + 1)]
            log = {"val_ece": [0.5, 0.5, 0.5], "test_ece": test}
            options = {"data_options": {"noise": 0.3, "split_seed": seed}}
            fake_run(root / "runs" / f"{loss}-seed{seed}", recipe(loss, seed, **options), 1 + place, log)
    return root


@pytest.fixture(scope="module")
def setting(folder: Path) -> Setting:
    [setting], left_out = group_runs([folder])
    assert left_out == {}
    return setting


def draw(name: str, setting: Setting) -> Figure:
    return FIGURES[name].draw(setting)


def words(figure: Figure) -> str:
    """The line below a figure."""
    below = figure.legends[0].get_title() if figure.legends and figure.legends[0].get_title().get_text() else None
    return below.get_text() if below is not None else figure._supxlabel.get_text()


# Which runs


def test_every_loss_has_a_label():
    assert LABELS.keys() == LOSSES.keys()
    assert len(set(LABELS.values())) == len(LABELS)


def test_runs_are_grouped_by_loss_in_the_papers_order_and_seed(setting, folder):
    assert [entry.label for entry in setting.entries] == ["Cross entropy", "Dual focal"]
    assert [list(entry.runs) for entry in setting.entries] == [[1, 3], [1, 3]]
    assert setting.entries[1].first.path == folder / "runs" / "dual_focal-seed1"
    assert (setting.title, setting.stem) == ("digits, noise 0.3, small_cnn, 3 epochs", "digits-small_cnn")
    assert setting.seeds == "seed 1 (one of 2 seeds)"
    assert setting.numbers_of_seeds == "2 seeds each"


def test_a_run_given_twice_counts_once(setting, folder):
    [again], _ = group_runs([folder, folder / "runs" / "dual_focal-seed1"])
    assert [len(entry.runs) for entry in again.entries] == [2, 2]


def test_entries_of_one_loss_say_in_what_they_differ(tmp_path):
    for gamma in (2.0, 5.0):
        fake_run(tmp_path / f"g{gamma}", recipe("dual_focal", loss_options={"gamma": gamma}))
    fake_run(tmp_path / "default", recipe("dual_focal", lr=0.2))
    fake_run(tmp_path / "ls", recipe("label_smoothing", loss_options={"alpha": 0.1}))
    [actual], _ = group_runs([tmp_path])
    assert [entry.label for entry in actual.entries] == [
        "LS-0.1",
        "Dual focal, gamma 2, lr 0.1",
        "Dual focal, gamma 5, lr 0.1",
        "Dual focal, gamma default, lr 0.2",
    ]
    assert len({(look.colour, look.line) for look in actual.looks.values()}) == 4
    assert len({look.colour for look in actual.looks.values()}) == 2  # of a loss one colour


def test_entries_of_one_loss_are_in_the_order_of_their_numbers(tmp_path):
    for gamma in (10.0, 2.5, 2.0):
        fake_run(tmp_path / f"g{gamma}", recipe("dual_focal", loss_options={"gamma": gamma}))
    [actual], _ = group_runs([tmp_path])
    assert [entry.label for entry in actual.entries] == [f"Dual focal, gamma {gamma}" for gamma in ("2", "2.5", "10")]


def test_looks_are_those_of_the_losses(setting):
    from dualfocal.plots import LOOKS

    assert setting.looks == {"Cross entropy": LOOKS["cross_entropy"], "Dual focal": LOOKS["dual_focal"]}


def test_data_sets_and_models_are_not_mixed(tmp_path):
    fake_run(tmp_path / "a", recipe("focal"))
    fake_run(tmp_path / "b", recipe("focal", model="resnet50"))
    fake_run(tmp_path / "c", recipe("focal", data="cifar10"))
    actual, _ = group_runs([tmp_path])
    assert sorted(setting.stem for setting in actual) == ["cifar10-small_cnn", "digits-resnet50", "digits-small_cnn"]
    fake_run(tmp_path / "d", recipe("focal", data_options={"noise": 0.9}))
    with pytest.raises(ValueError, match=r"digits.*noise 0\.9"):
        group_runs([tmp_path])


def test_two_runs_of_one_seed_are_refused(tmp_path):
    for name in "ab":
        fake_run(tmp_path / name, recipe("focal", test_each_epoch=name == "a"))
    with pytest.raises(ValueError, match=r"a and .*b .*seed"):
        group_runs([tmp_path])


def test_unfinished_runs_are_reported(tmp_path):
    fake_run(tmp_path / "a", recipe("focal"))
    (tmp_path / "a" / RESULT).unlink()
    assert group_runs([tmp_path]) == ([], {tmp_path / "a": "is stopped, not finished"})


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="run folder"):
        group_runs([tmp_path])
    with pytest.raises(ValueError, match="run folder"):
        group_runs([tmp_path / "nowhere"])


# What is drawn


def test_reliability_is_that_of_the_first_seed(setting):
    figure = draw("reliability", setting)
    tops = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in tops] == ["Cross entropy, N = 240", "Dual focal, N = 240"]
    for axis, entry in zip(tops, setting.entries, strict=True):
        test = entry.runs[1].result.to_dict()["test"]
        floor = test["inference"]["floors"]["ece"]["mean"]
        text = f"ECE {100 * test['ece']:.1f} %\nnoise floor {100 * floor:.1f} %"
        assert axis.texts[0].get_text() == text
    assert "seed 1 (one of 2 seeds)" in words(figure)


def test_corp_is_that_of_the_first_seed(setting):
    axis = draw("corp", setting).axes[0]
    logits, target = setting.entries[0].first.predictions()
    p, label = logits.double().softmax(1).max(1)
    assert f"Brier {((p - (label == target).double()) ** 2).mean():.4f}" in axis.texts[0].get_text()


def test_metrics_over_seeds(setting):
    figure = draw("metrics", setting)

    def places(entry):
        return [len(setting.entries) - 1 - setting.entries.index(entry)]

    assert [axis.get_xlabel() for axis in figure.axes] == ["ECE [%]", "AdaECE [%]", "classwise ECE [%]"]
    for axis, metric in zip(figure.axes, ("ece", "adaptive_ece", "classwise_ece"), strict=True):
        widths = [bar.get_width() for bar in axis.patches][::2]
        whiskers = [line.get_xdata() for line in axis.lines if line.get_marker() == "|"]
        for entry, width, whisker in zip(setting.entries, widths, whiskers, strict=True):
            values = [100 * getattr(run.result.parts["test"], metric) for run in entry.runs.values()]
            assert width == pytest.approx(statistics.mean(values))
            reach = 6.313752 * statistics.stdev(values) / math.sqrt(2)  # t(0.95; 1 degree of freedom)
            np.testing.assert_allclose(whisker, [max(width - reach, 0), width + reach], rtol=1e-6)
            arrow = [line for line in axis.lines if line.get_marker() == "<" and line.get_ydata()[0] in places(entry)]
            assert len(arrow) == (width < reach)
            floors = [run.result.floor(metric, "test") for run in entry.runs.values()]
            ticks = {line.get_xdata()[0] for line in axis.lines if np.ptp(line.get_ydata()) > 0.5}
            assert any(tick == pytest.approx(100 * statistics.mean(floors)) for tick in ticks)
    assert "2 seeds each." in words(figure)
    assert "90 % confidence interval of the mean over seeds" in [
        text.get_text() for text in figure.legends[0].get_texts()
    ]


def test_metrics_of_single_runs_have_the_interval_that_exists(folder):
    [setting], _ = group_runs([folder / "runs" / "dual_focal-seed3", folder / "runs" / "cross_entropy-seed3"])
    figure = draw("metrics", setting)
    *plain, debiased = figure.axes
    assert debiased.get_xlabel() == "debiased RMS error [%]"
    assert not [line for axis in plain for line in axis.lines if line.get_marker() == "|"]
    whiskers = [line.get_xdata() for line in debiased.lines if line.get_marker() == "|"]
    for entry, whisker in zip(setting.entries, whiskers, strict=True):
        interval = entry.first.result.parts["test"].inference.debiased_ece
        np.testing.assert_allclose(whisker, 100 * np.array(interval))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "90 % confidence interval of the debiased RMS error" in legend


def test_metrics_of_one_run_and_of_several_say_which(folder):
    [setting], _ = group_runs(
        [folder / "runs" / "dual_focal-seed3", *sorted((folder / "runs").glob("cross_entropy-*"))]
    )
    figure = draw("metrics", setting)
    assert len(figure.axes) == 3
    assert "1 to 2 seeds each. No interval for a single run: Dual focal." in words(figure)


def test_results_without_inference_are_reported(tmp_path):
    run = fake_run(tmp_path / "a", recipe("focal"), log={"val_ece": [0.3, 0.2, 0.1]})
    result = run.result.to_dict()
    run.write_json(RESULT, result | {part: result[part] | {"inference": None} for part in ("val", "test")})
    [setting], _ = group_runs([tmp_path])
    with pytest.raises(RunError, match=r"a/result.json: .*ece"):
        draw("metrics", setting)
    assert not draw("training", setting).axes[0].patches
    assert "noise floor" not in draw("reliability", setting).axes[0].texts[0].get_text()


def test_training_is_smoothed_from_the_log(setting):
    figure = draw("training", setting)
    [axis] = figure.axes
    means = [statistics.mean(run.result.floor("ece") for run in entry.runs.values()) for entry in setting.entries]
    [band] = axis.patches
    assert band.get_y() == pytest.approx(100 * min(means))
    assert band.get_y() + band.get_height() == pytest.approx(100 * max(means))
    assert axis.get_ylabel() == "test ECE [%]"
    for place, (line, entry) in enumerate(zip(axis.lines, setting.entries, strict=True)):
        assert line.get_label() == entry.label
        last = 0.01 * (2 - place)  # cross entropy was written second
        seeds = [exponential_average([0.3 + 0.1 * seed, 0.2, last]) for seed in (1, 3)]
        np.testing.assert_allclose(line.get_ydata(), 100 * np.mean(seeds, axis=0))
    assert "s(t) = 0.5 s(t-1) + 0.5 x(t)" in words(figure)


def test_training_without_the_test_split_is_labelled(tmp_path):
    fake_run(tmp_path / "a", recipe("focal"), log={"val_ece": [0.3, 0.2, 0.1]})
    fake_run(tmp_path / "b", recipe("dual_focal"), log={})
    [setting], _ = group_runs([tmp_path])
    figure = draw("training", setting)
    assert figure.axes[0].get_ylabel() == "validation ECE [%]"
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [30, 25, 17.5])
    assert "The test split was not logged" in words(figure)
    assert "Not logged by 1 run of Dual focal." in words(figure)
    lines = (tmp_path / "a" / LOG).read_text().splitlines(keepends=True)
    (tmp_path / "a" / LOG).write_text("".join(lines[:2]))  # a copy that lost its end
    with pytest.raises(RunError, match="test_ece or val_ece"):
        draw("training", setting)


def test_logits_and_rival_are_those_of_the_test_part(setting):
    logits, target = setting.entries[0].first.predictions("test")
    axis = draw("logits", setting).axes[0]
    medians = [line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1]
    assert medians[0] == pytest.approx(float(np.median(logits.double().amax(1).numpy())))
    box = draw("rival", setting).axes[0].patches[0].get_path().vertices[:, 0]
    quartiles = np.quantile(rival_probabilities(logits, target), [0.25, 0.75])
    assert (box.min(), box.max()) == pytest.approx(tuple(quartiles))


@pytest.mark.parametrize("name", ["corp", "logits", "rival"])
def test_figures_that_need_predictions_name_the_run(tmp_path, name):
    fake_run(tmp_path / "a", recipe("focal"))
    (tmp_path / "a" / PREDICTIONS).unlink()
    [setting], _ = group_runs([tmp_path])
    with pytest.raises(RunError, match=r"a .*predictions\.safetensors"):
        draw(name, setting)
    draw("reliability", setting)  # the result has its bins
