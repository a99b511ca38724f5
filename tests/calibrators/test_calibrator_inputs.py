"""Inputs of calibrators: probabilities with zeros, logits or probabilities, and the data of the fit again."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from calibrator_cases import NAMES, forced, sample, texts
from case_loops import for_each
from torch import Tensor

from dualfocal.calibrators import (
    TemperatureScaling,
    VectorScaling,
    compare_calibrators,
    load_calibrator,
    log_probs,
    make_calibrator,
    save_calibrator,
)
from dualfocal.metrics import nll

SEES_OFFSET = ("vector", "matrix", "temperature+vector", "temperature+temperature+matrix")


def rounded(n: int = 2000, decimals: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of ten classes, 1.5 times too sharp, before and after rounding; labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(n, 10, generator=generator, dtype=torch.float64)
    target = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator)[:, 0]
    probs = logits.softmax(1)
    return probs, probs.round(decimals=decimals), target


# Zeros


def test_zeros_that_rounding_made_do_not_dominate_the_fit() -> None:
    exact, probs, target = rounded()
    new_exact, new, new_target = rounded(seed=1)
    assert (probs.gather(1, target[:, None]) == 0).sum() > 5
    best = TemperatureScaling().fit(exact, target, input="probs")
    calibrator = TemperatureScaling().fit(probs, target, input="probs")
    assert best.temperature == pytest.approx(1.5, rel=0.05)
    assert calibrator.temperature == pytest.approx(float(best.temperature), rel=0.1)
    worst = TemperatureScaling().fit(log_probs(probs), target)
    pairs = ((best, new_exact), (calibrator, new), (worst, new))
    losses = [nll(fitted(p, input="probs"), new_target) for fitted, p in pairs]
    assert losses[1] < losses[0] + 0.03
    assert losses[2] > losses[0] + 0.1  # there was something to mend


def test_a_zero_is_half_of_the_smallest_other_number() -> None:
    _, probs, target = rounded()
    calibrator = TemperatureScaling().fit(probs, target, input="probs")
    assert calibrator.fitted_on.zeros == (0.0005,)
    given = torch.tensor([[0.9, 0.1, *[0.0] * 8]], dtype=torch.float64)
    torch.testing.assert_close(
        calibrator(given, input="probs") * calibrator.temperature,
        given.clamp(min=calibrator.fitted_on.zeros[0]).log(),
        rtol=1e-12,
        atol=0,
    )
    # with more digits than in the fit, a 0 must stay below the other probabilities
    given = torch.tensor([[1 - 1e-9, 1e-9, *[0.0] * 8]], dtype=torch.float64)
    assert torch.equal(calibrator(given, input="probs").argsort(1, descending=True)[0, :2], torch.tensor([0, 1]))


def test_zeros_of_certain_predictions_and_of_many_classes_stay_small() -> None:
    certain = torch.eye(40, dtype=torch.float64)
    target = torch.arange(40).roll(1).where(torch.arange(40) < 4, torch.arange(40))
    calibrator = TemperatureScaling().fit(certain, target, input="probs")
    assert calibrator.fitted_on.zeros == (1 / 1600,)
    assert calibrator(certain, input="probs").softmax(1).diagonal().mean() == pytest.approx(0.9, abs=1e-6)


def test_true_classes_of_probability_0_are_noted() -> None:
    _, probs, target = rounded()
    report = TemperatureScaling().fit(probs, target, input="probs").report
    count = int((probs.gather(1, target[:, None]) == 0).sum())
    [note] = report.notes
    assert (note.kind, note.count, note.total) == ("impossible_labels", count, 2000)
    assert str(note).endswith("replaces 0 by 0.0005")
    assert report.nll_before == math.inf  # like evaluate
    assert math.isfinite(report.nll_after)
    exact = TemperatureScaling().fit(rounded()[0], target, input="probs").report
    assert exact.notes == ()
    assert math.isfinite(exact.nll_before)


@for_each(dtype=[torch.float32, torch.float64], name=NAMES)
def test_without_zeros_probabilities_equal_their_logarithms(name, dtype) -> None:
    logits, target = sample()
    probs = logits.double().softmax(1).to(dtype)
    plain, from_probs = forced(name).fit(log_probs(probs), target), forced(name).fit(probs, target, input="probs")
    assert torch.equal(from_probs(probs, input="probs"), plain(log_probs(probs)))
    assert from_probs.report.nll_before == pytest.approx(plain.report.nll_before, rel=1e-7)
    assert replace(from_probs.report, nll_before=plain.report.nll_before) == plain.report


@for_each(name=["temperature", "vector"])
def test_one_score_per_sample(name) -> None:
    generator = torch.Generator().manual_seed(0)
    odds = 6 * torch.randn(500, generator=generator, dtype=torch.float64)
    target = torch.bernoulli((odds / 2).sigmoid(), generator=generator).long()
    p = odds.sigmoid()
    plain, from_probs = (
        make_calibrator(name).fit(log_probs(p), target),
        make_calibrator(name).fit(p, target, input="probs"),
    )
    assert torch.equal(from_probs(p, input="probs"), plain(log_probs(p)))
    assert torch.equal(from_probs(odds, input="logits"), plain(odds))  # log-odds have no offset
    coarse = p.round(decimals=2)  # 0 and 1: both sides have zeros
    calibrator = make_calibrator(name).fit(coarse, target, input="probs")
    assert calibrator.fitted_on.zeros == (pytest.approx(0.005), pytest.approx(0.005))
    assert calibrator(coarse, input="probs").abs().max() < 6
    near = TemperatureScaling().fit(coarse, target, input="probs").temperature
    assert near == pytest.approx(float(TemperatureScaling().fit(p, target, input="probs").temperature), rel=0.2)


def test_each_side_of_one_score_has_separate_zeros() -> None:
    # In float32, 1 - p is rounded to 0 much earlier than p is.
    p = torch.tensor([1e-20, 0.3, 0.5, 0.7, 1 - 2**-20, 1.0], dtype=torch.float32)
    zeros = TemperatureScaling().fit(p, torch.tensor([0, 1, 0, 1, 1, 0]), input="probs").fitted_on.zeros
    assert zeros == (pytest.approx(2**-21, rel=1e-6), pytest.approx(5e-21, rel=1e-6))


def test_ignored_samples_say_nothing_of_zeros() -> None:
    _, probs, target = rounded(200)
    padded = torch.cat([probs, torch.full((5, 10), 1e-9).double(), torch.full((5, 10), math.nan).double()])
    labels = torch.cat([target, target.new_full((10,), 255)])
    calibrator = TemperatureScaling().fit(padded, labels, input="probs", ignore_index=255)
    plain = TemperatureScaling().fit(probs, target, input="probs")
    assert (calibrator.temperature, calibrator.fitted_on, calibrator.report) == (
        plain.temperature,
        plain.fitted_on,
        plain.report,
    )


def test_dense_probabilities_are_rows() -> None:
    _, probs, target = rounded(120)
    dense, labels = probs.view(2, 6, 10, 10).permute(0, 3, 1, 2), target.view(2, 6, 10)
    one, two = (VectorScaling().fit(*data, input="probs") for data in ((dense, labels), (probs, target)))
    assert one.fitted_on == two.fitted_on
    got = one(dense, input="probs").permute(0, 2, 3, 1).reshape(-1, 10)
    torch.testing.assert_close(got, two(probs, input="probs"), rtol=0, atol=0)


@for_each(
    "bad, message",
    [
        (torch.tensor([[0.5, 0.6]]), "sum to 1"),
        (torch.tensor([[2.0, -1.0]]), "lie in"),
        (torch.tensor([0.5, 2.0]), "lie in"),
    ],
)
def test_values_that_are_not_probabilities_are_an_error(bad, message) -> None:
    with pytest.raises(ValueError, match=message):
        TemperatureScaling().fit(bad, torch.zeros(len(bad), dtype=torch.int64), input="probs")
    with pytest.raises(ValueError, match="input"):
        TemperatureScaling().fit(bad, torch.zeros(len(bad), dtype=torch.int64), input="probabilities")


def test_cross_validation_ranks_rounded_probabilities_as_exact_ones() -> None:
    exact, probs, target = rounded(1000)
    methods = ["temperature", "isotonic"]
    one, two = (compare_calibrators(p, target, methods, input="probs", repeats=1) for p in (exact, probs))
    assert one.recommended == two.recommended == "temperature"
    assert two["uncalibrated"].scores["nll"] == math.inf
    assert two["temperature"].scores["nll"] < one["temperature"].scores["nll"] + 0.03
    [note] = texts(two["temperature"].notes)
    assert "true classes have probability 0" in note
    assert "0.0005" in note  # half of the smallest probability above 0


def test_zeros_kind_and_digest_come_back_from_disk(tmp_path) -> None:
    _, probs, target = rounded()
    calibrator = VectorScaling().fit(probs, target, input="probs")
    save_calibrator(calibrator, path := tmp_path / "c.npz")
    back = load_calibrator(path)
    assert back.fitted_on == calibrator.fitted_on
    assert back.report == calibrator.report
    assert torch.equal(back(probs, input="probs"), calibrator(probs, input="probs"))


# Kind of input


@for_each(name=SEES_OFFSET)
def test_maps_that_see_an_offset_refuse_the_other_kind(name) -> None:
    logits, target = sample()
    probs = logits.softmax(1)
    calibrator = forced(name).fit(logits, target)
    with pytest.raises(
        ValueError, match=r"was fitted on logits, but got probabilities: .* or fit a calibrator on probabilities"
    ):
        calibrator(probs, input="probs")
    calibrator.fit(probs, target, input="probs")
    with pytest.raises(ValueError, match="was fitted on probabilities, but got logits"):
        calibrator(logits)
    calibrator(probs, input="probs")


@for_each(name=[*(name for name in NAMES if name not in SEES_OFFSET), "isotonic+vector"])
def test_the_others_take_both_and_give_the_same(name) -> None:
    logits, target = sample(dtype=torch.float64)
    calibrator = forced(name).fit(logits, target)
    expected = calibrator(logits + 3.0).softmax(1)
    torch.testing.assert_close(calibrator(logits.softmax(1), input="probs").softmax(1), expected, rtol=0, atol=1e-9)


@for_each(name=NAMES)
def test_a_call_takes_the_kind_of_the_fit(name) -> None:
    logits, target = sample()
    probs = logits.softmax(1)
    calibrator = forced(name).fit(probs, target, input="probs")
    assert torch.equal(calibrator(probs), calibrator(probs, input="probs"))
    assert torch.equal(calibrator.sensitivity(probs), calibrator.sensitivity(probs, input="probs"))
    with pytest.raises(ValueError, match="was fitted on probabilities, but got"):
        calibrator(logits)
    with pytest.raises(ValueError, match="was fitted on probabilities, but got"):
        calibrator.sensitivity(logits)
    calibrator.fit(logits, target)
    assert torch.equal(calibrator(logits), calibrator(logits, input="logits"))
    with pytest.raises(ValueError, match=r"takes logits, but the values look like probabilities: .* input="):
        calibrator(probs)
    with pytest.raises(ValueError, match="takes logits, but the values look like probabilities"):
        calibrator.sensitivity(probs)
    assert calibrator(probs, input="logits").isfinite().all()  # as the caller says


def test_a_call_with_one_score_per_sample_takes_the_kind_of_the_fit(tmp_path) -> None:
    logits, target = sample(num_classes=2)
    p = (logits[:, 1] - logits[:, 0]).sigmoid()
    calibrator = TemperatureScaling().fit(p, target, input="probs")
    assert torch.equal(calibrator(p), calibrator(p, input="probs"))
    save_calibrator(calibrator, path := tmp_path / "c.npz")
    assert torch.equal(load_calibrator(path)(p), calibrator(p))
    with pytest.raises(ValueError, match=r'got the value -?[0-9.]+: pass probabilities, or input="logits"'):
        calibrator(logits[:, 0])


def test_one_row_of_logits_that_sums_to_1_by_chance_is_no_error() -> None:
    calibrator, row = TemperatureScaling().fit(*sample(num_classes=2)), torch.tensor([[0.25, 0.75]])
    torch.testing.assert_close(calibrator(row), row / calibrator.temperature.float())


def test_two_columns_are_not_one_score() -> None:
    logits, target = sample(num_classes=2)
    with pytest.raises(ValueError, match="fitted on logits, but got one score per sample"):
        VectorScaling().fit(logits, target)(logits[:, 1] - logits[:, 0])


def test_a_state_dict_knows_no_kind() -> None:
    logits, target = sample()
    bare = VectorScaling()
    bare.load_state_dict(VectorScaling().fit(logits, target).state_dict())
    assert torch.equal(bare(logits.softmax(1), input="probs"), bare(log_probs(logits.softmax(1))))


# Data frames


class Frame:
    """Has what data frames of pandas and polars have in common."""

    def __init__(self, values: Tensor, columns: object) -> None:
        self.values, self.columns = values, list(columns)

    def to_numpy(self) -> np.ndarray:
        return self.values.numpy()


@for_each(name=["temperature", "vector", "temperature+isotonic"])
def test_columns_of_a_data_frame_are_put_into_the_order_of_the_fit(name, tmp_path) -> None:
    logits, target = sample(num_classes=4)
    labels = ["abcd"[k] for k in target.tolist()]
    calibrator = forced(name).fit(Frame(logits, "abcd"), labels)
    assert calibrator.class_names == tuple("abcd")
    expected = calibrator(logits)
    assert torch.equal(calibrator(Frame(logits, "abcd")), expected)
    assert torch.equal(calibrator(Frame(logits.flip(1), "dcba")), expected)
    save_calibrator(calibrator, path := tmp_path / "c.npz")
    assert torch.equal(load_calibrator(path)(Frame(logits.flip(1), "dcba")), expected)
    with pytest.raises(ValueError, match=r"columns a, b, c, x, not a, b, c, d as in the fit: rename the columns"):
        calibrator(Frame(logits, "abcx"))


def test_class_names_are_those_of_the_last_fit() -> None:
    logits, target = sample(num_classes=4)
    assert TemperatureScaling().fit(logits, target, class_names=list("abcd")).class_names == tuple("abcd")
    assert TemperatureScaling().fit(Frame(logits, range(4)), target).class_names is None  # no names
    calibrator = TemperatureScaling().fit(Frame(logits, "abcd"), target).fit(logits, target)
    assert calibrator.class_names is None
    assert torch.equal(calibrator(Frame(logits, "dcba")), calibrator(logits))  # by position


# The same data again


def test_digests_distinguish_data() -> None:
    logits, target = sample(5000, 3)
    same = VectorScaling().fit(logits.numpy(), target.numpy()).fitted_on.digest
    assert same == TemperatureScaling().fit(logits, target.roll(1)).fitted_on.digest
    changed = (logits[1:], target[1:]), (logits[:, :2], target % 2), (logits + 1e-3, target), (logits.flip(0), target)
    others = [TemperatureScaling().fit(*data).fitted_on.digest for data in changed]
    assert len({same, *others}) == 5
