"""Intervals, adjusted p-values and the bootstrap of the replication, against scipy, simulations and hand counts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_ind

from dualfocal.metrics import ece, ood_auroc
from dualfocal.metrics.groups import holm
from dualfocal_lab.paper.intervals import Estimate, crossed_bootstrap, holm_levels, prediction_interval, sample_weights
from dualfocal_lab.paper.measurements import MEASUREMENTS, MeasuredRun, weighted_auroc, weighted_ece, weighted_median
from dualfocal_lab.runs import Run

RESULTS = Path(__file__).parents[2] / "results" / "cifar10"
RNG = torch.Generator().manual_seed(0)
TARGET = torch.randint(10, (120,), generator=RNG)
LOGITS = torch.randn(120, 10, generator=RNG) + 2 * torch.nn.functional.one_hot(TARGET, 10)


# Intervals


@pytest.mark.parametrize(("n", "level"), [(5, 0.967), (3, 0.9)])
def test_one_more_run_falls_into_the_prediction_interval_as_often_as_stated(n: int, level: float) -> None:
    low, high = prediction_interval(list(range(n)), level)
    factor = (high - low) / 2 / np.std(range(n), ddof=1)  # the same for all samples of this size
    draws = np.random.default_rng(1).normal(size=(200_000, n + 1))
    ours, one_more = draws[:, :n], draws[:, n]
    covered = np.abs(one_more - ours.mean(1)) <= factor * ours.std(1, ddof=1)
    assert covered.mean() == pytest.approx(level, abs=0.002)
    assert (low + high) / 2 == pytest.approx((n - 1) / 2)


@pytest.mark.parametrize("sizes", [(5, 5), (3, 4), (2, 5)])
def test_welch_is_that_of_scipy(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    first, second = (rng.normal(scale=1 + i, size=size) for i, size in enumerate(sizes))
    difference = Estimate.of(list(first)) - Estimate.of(list(second))
    theirs = ttest_ind(first, second, equal_var=False)
    assert difference.interval(0.9) == pytest.approx(tuple(theirs.confidence_interval(0.9)))
    for direction, alternative in ((-1, "less"), (1, "greater")):
        one_sided = ttest_ind(first - 0.3, second, equal_var=False, alternative=alternative)
        assert difference.p_value(0.3, direction) == pytest.approx(one_sided.pvalue)


def test_a_known_standard_error_adds_its_variance_and_no_degrees_of_freedom() -> None:
    difference = Estimate.of([1.0, 2.0, 3.0]) - Estimate(0.5, 0.25)
    assert (difference.mean, difference.variance) == pytest.approx((1.5, 1 / 3 + 0.25))
    assert difference.df == pytest.approx((1 / 3 + 0.25) ** 2 / ((1 / 3) ** 2 / 2))


def test_runs_without_any_spread_have_a_p_value() -> None:
    difference = Estimate.of([1.0, 1.0]) - Estimate.of([2.0, 2.0])
    assert difference.interval(0.9) == (-1.0, -1.0)
    assert (difference.p_value(0.0, -1), difference.p_value(0.0, 1), difference.p_value(-1.0, -1)) == (0.0, 1.0, 1.0)


def test_holm_by_hand() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # Steps: 0.005 < 0.05 / 4, 0.01 < 0.05 / 3, but 0.03 >= 0.05 / 2, where it stops.
    assert holm_levels(p_values, 0.9) == pytest.approx([1 - 0.1 / 3, 0.95, 0.95, 1 - 0.1 / 4])


def test_holm_levels_when_all_are_rejected() -> None:
    assert holm_levels([0.002, 0.001, 0.003], 0.9) == pytest.approx([0.95, 1 - 0.1 / 3, 0.9])


# The bootstrap


def test_the_identity_draw_gives_the_numbers_of_a_real_run() -> None:
    real = Run(RESULTS / "resnet50-cross_entropy-seed1")
    run = MeasuredRun(real, real.require_result())
    checked = ["error", "ece", "nll", "ece_temperature", "ece_temperature_by_nll", "nll_temperature"]
    for name in [*checked, "nll_temperature_by_ece", "median_p_j", "mean_top_logit"]:
        statistic = MEASUREMENTS[name].statistic(run)
        assert statistic is not None
        assert statistic(np.ones(10_000)) == pytest.approx(MEASUREMENTS[name].value(run), rel=1e-6), name
    logits, target = run.test
    p = logits.double().softmax(1)
    p_k = p.gather(1, target[:, None])
    p_j = torch.where(p < p_k, p, 0.0).amax(1).numpy()
    assert MEASUREMENTS["median_p_j"].value(run) == pytest.approx(np.median(p_j), rel=1e-9)
    assert MEASUREMENTS["mean_top_logit"].value(run) == pytest.approx(float(logits.max(1).values.mean()), rel=1e-5)


def test_each_temperature_has_its_numbers() -> None:
    real = Run(RESULTS / "resnet50-cross_entropy-seed1")
    run = MeasuredRun(real, real.require_result())
    names = ("ece_temperature", "ece_temperature_by_nll", "temperature_ece", "temperature")
    assert [run.measure(name) for name in names] == pytest.approx([0.0145, 0.0119, 2.5, 2.553], abs=5e-4)
    for name, fitted_by in (("nll_temperature", "temperature"), ("nll_temperature_by_ece", "temperature_ece")):
        assert run.measure(name) == run.result.evaluation("test", fitted_by).nll


def test_weights_count_a_sample_several_times() -> None:
    weights = sample_weights(120, 1, seed=3)[0]
    assert weights.sum() == 120
    assert len(set(weights)) > 2
    times = torch.from_numpy(weights).long()
    logits, target = LOGITS.repeat_interleave(times, 0), TARGET.repeat_interleave(times)
    assert weighted_ece(LOGITS, TARGET)(weights) == pytest.approx(ece(logits, target))
    values = LOGITS[:, 0].double().numpy()
    for number in (119, 120):  # odd and even
        kept = weights[:number]
        repeated = np.repeat(values[:number], kept.astype(int))
        assert weighted_median(values[:number])(kept) == np.median(repeated)
    entropy = [torch.distributions.Categorical(logits=part.double()).entropy() for part in (LOGITS, LOGITS / 2)]
    known, foreign = (part.numpy() for part in entropy)
    auroc = ood_auroc(logits, (LOGITS / 2).repeat_interleave(times, 0))
    assert weighted_auroc(known, foreign)(weights) == pytest.approx(auroc)


def test_the_bootstrap_draws_seeds_for_each_loss() -> None:
    first, second = np.tile([0.0, 1.0], (4000, 1)), np.zeros((4000, 3))
    assert crossed_bootstrap(first, second, 0.9, seed=0) == (0.0, 1.0)  # means of 0, 1/2 and 1 in 1, 2 and 1 of 4 draws
    assert crossed_bootstrap(first, second, 0.4, seed=0) == (0.5, 0.5)


def test_the_bootstrap_draws_samples_for_all_losses_together() -> None:
    noise = np.random.default_rng(0).normal(size=(500, 1))
    first, second = noise + np.full((1, 2), 2.0), noise + np.full((1, 4), 5.0)
    assert crossed_bootstrap(first, second, 0.9, seed=0) == pytest.approx((-3.0, -3.0))
