"""Mistakes that were made once."""

import json

import numpy as np
import pytest
import torch
from case_loops import for_each
from samples import draw_logits

from dualfocal import metrics as M
from dualfocal.calibrators import (
    Chain,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    HistogramBinning,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    compare_calibrators,
    load_calibrator,
    save_calibrator,
)
from dualfocal.cli import main


@for_each(make=[MatrixScaling, DirichletCalibration])
def test_a_matrix_undoes_a_permutation_though_no_temperature_helps(make) -> None:
    logits, target = draw_logits(5000, 4)
    calibrator = make().fit(logits, (target + 1) % 4)
    fresh, fresh_target = draw_logits(5000, 4, seed=1)
    assert M.nll(calibrator(fresh), (fresh_target + 1) % 4) < M.nll(fresh, fresh_target) + 0.01
    assert [note.kind for note in calibrator.report.notes] == ["no_help"]


def test_vector_scaling_turns_logits_that_say_the_contrary() -> None:
    logits, target = draw_logits(5000, 4)
    assert M.nll(VectorScaling().fit(-logits, target)(-logits), target) < M.nll(logits, target) + 0.01


@for_each(scale=[1.0, 300.0])
def test_certain_and_always_right_is_not_taken_for_uniform(scale) -> None:
    target = torch.randint(5, (150,))
    logits = scale * (torch.nn.functional.one_hot(target, 5) + 0.001 * torch.randn(150, 5))
    report = TemperatureScaling().fit(logits, target).report
    assert not any(note.kind == "no_help" for note in report.notes)
    # As if one label in 152 were wrong.
    assert report.nll_after == pytest.approx(-np.log(1 - 1 / 152), rel=0.05)


def test_a_component_that_vanishes_leaves_the_mixture() -> None:
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        logits = 3000 * torch.randn(1 + seed % 5, 3, generator=generator)
        target = torch.randint(3, (len(logits),), generator=generator)
        calibrator = EnsembleTemperatureScaling().fit(logits, target)
        assert calibrator.report.converged, seed
        assert calibrator.report.nll_after <= TemperatureScaling().fit(logits, target).report.nll_after + 1e-6


def test_mixtures_count_the_ties_that_rounding_makes() -> None:
    logits = torch.randn(2000, 10)
    logits[:, 5] = logits.amax(1) + 1e-6
    target = torch.randint(10, (2000,))
    calibrator = EnsembleTemperatureScaling().fit(logits, target)
    changed = int((calibrator(logits).argmax(1) != logits.argmax(1)).sum())
    assert calibrator.report.argmax_changed == changed


def test_the_recommended_method_is_the_best_or_helps_significantly() -> None:
    for seed in range(8):
        logits, _ = draw_logits(80, 3, seed=seed)
        target = torch.multinomial((logits + torch.tensor([0.8, 0.0, 0.0])).softmax(1), 1)[:, 0]
        result = compare_calibrators(logits, target, ["temperature", "platt"], repeats=1)
        advised = result[result.recommended]
        assert result.recommended in ("uncalibrated", result.methods[0].name) or advised.changes["nll"].high < 0


def test_images_without_labels_are_in_no_fold() -> None:
    logits, target = torch.randn(4, 3, 5, 5), torch.randint(3, (4, 5, 5))
    target[:2] = -100
    for seed in range(6):
        assert compare_calibrators(logits, target, ["temperature"], folds=2, repeats=1, seed=seed).refused == {}
    with pytest.raises(ValueError, match="need at least 3 of them, got 2 with labels"):
        compare_calibrators(logits, target, ["temperature"], folds=3)


def test_the_uncalibrated_ece_equals_the_metric() -> None:
    probs = torch.arange(1, 10).repeat(20) / 10
    target = (torch.rand(180) < probs).long()
    result = compare_calibrators(probs, target, ["platt"], input="probs", num_bins=10, binary="positive")
    expected = M.evaluate(probs, target, input="probs", num_bins=10, binary="positive")
    assert result["uncalibrated"].scores["ece"] == expected.ece


def test_options_of_numpy_are_saved_and_foreign_classes_refused(tmp_path) -> None:
    logits, target = draw_logits(100, 3)
    path = tmp_path / "c.npz"
    save_calibrator(HistogramBinning(np.int64(5)).fit(logits, target), path)
    assert load_calibrator(path).num_bins == 5

    class Mine(TemperatureScaling):
        pass

    for calibrator in (Mine(), Chain(TemperatureScaling(), Mine())):
        with pytest.raises(TypeError, match="only this package's calibrators can be saved, got Mine"):
            save_calibrator(calibrator.fit(logits, target), path)
    assert load_calibrator(path).num_bins == 5


def test_an_infinite_likelihood_is_saved(tmp_path) -> None:
    logits, target = draw_logits(100, 3)
    logits[0, target[0]] = -torch.inf
    path = tmp_path / "c.npz"
    calibrator = PlattScaling().fit(logits, target)
    assert calibrator.report.nll_before == np.inf
    save_calibrator(calibrator, path)
    assert load_calibrator(path).report == calibrator.report


@for_each(labelled=[True, False])
def test_apply_refuses_rows_without_a_finite_calibrated_value(tmp_path, capsys, labelled) -> None:
    logits, target = draw_logits(100, 3)
    save_calibrator(MatrixScaling().fit(logits, target), tmp_path / "c.npz")
    logits[7, 2], target[7] = -torch.inf, 0
    arrays = {"logits": logits.numpy(), **({"target": target.numpy()} if labelled else {})}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SystemExit) as ended:
        main(["apply", str(tmp_path / "c.npz"), str(tmp_path / "a.npz"), "--out", str(tmp_path / "b.npz")])
    assert ended.value.code == 2
    assert "row 7 has no finite" in capsys.readouterr().err
    assert not (tmp_path / "b.npz").exists()


@for_each(command=["calibrate", "apply"])
def test_labels_of_another_shape_are_one_line(tmp_path, capsys, command) -> None:
    np.savez(tmp_path / "a.npz", logits=np.random.randn(8, 3, 4, 5), target=np.zeros(8, dtype=np.int64))
    save_calibrator(TemperatureScaling().fit(*draw_logits(100, 3)), tmp_path / "c.npz")
    arguments = [tmp_path / "c.npz", tmp_path / "a.npz"] if command == "apply" else [tmp_path / "a.npz"]
    out = "b.npz" if command == "apply" else "d.npz"
    with pytest.raises(SystemExit) as ended:
        main([command, *map(str, arguments), "--target", "target", "--out", str(tmp_path / out)])
    assert ended.value.code == 2
    assert "must have shape (8, 4, 5)" in capsys.readouterr().err


def test_reports_are_strict_json(tmp_path, capsys) -> None:
    logits, target = draw_logits(100, 3)
    np.savez(tmp_path / "a.npz", logits=logits.numpy(), target=target.numpy())
    with pytest.raises(SystemExit):
        main(["calibrate", str(tmp_path / "a.npz"), "--out", str(tmp_path / "c.npz"), "--json"])
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["converged"] is True
