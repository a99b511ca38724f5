"""CalibrationMonitor: its definition, the martingale behind its promise, workers, restarts, words and state."""

import json
import math
from itertools import product

import metric_oracles as oracle
import numpy as np
import pytest
import torch
from case_loops import for_each
from matplotlib.colors import same_color

from dualfocal.metrics import BinStats, CalibrationMonitor, CalibrationSums
from dualfocal.metrics.monitor._bets import SHIFTS, log_cash, log_factors, log_investment
from dualfocal.plots import evidence_diagram, evidence_figure

PROBS = [[0.7, 0.3], [0.2, 0.8]]


def bet(confidence: list[float], outcomes: list[int], **options) -> np.ndarray:
    """Change of the log-wealth of each cell, (16, 16): all samples and 15 bins, by shift."""
    bins = BinStats.from_confidence(np.array(confidence), np.array(outcomes))
    return log_factors(bins[None], **{"tolerance": 0.0, "cluster_size": 1, **options})[0]


def expected(confidence: list[float], truth: list[float], function):
    """Mean of function(outcomes) over all outcomes, drawn independently with the probabilities ``truth``."""
    total = 0.0
    for outcomes in product((0, 1), repeat=len(truth)):
        probability = math.prod(q if y else 1 - q for q, y in zip(truth, outcomes, strict=True))
        total = total + probability * function(confidence, list(outcomes))
    return total


def stream(days: int, size: int, gap: float = 0.0, seed: int = 0, low: float = 0.5):
    """Yield the confidences and outcomes of some days; confidences exceed frequencies by the gap."""
    rng = np.random.default_rng(seed)
    for _ in range(days):
        confidence = rng.uniform(low, 1, size)
        yield confidence, (rng.random(size) < confidence - gap).astype(int)


def feed(monitor: CalibrationMonitor, *streams) -> CalibrationMonitor:
    for parts in streams:
        for confidence, outcomes in parts:
            monitor.update(confidence, outcomes, input="confidence", time=f"day {monitor.num_periods}")
    return monitor


# The definition


@for_each(num_bins=[1, 4, 15], tolerance=[0.0, 0.03], cluster_size=[1, 3])
def test_the_evidence_is_that_of_the_definition(num_bins, tolerance, cluster_size) -> None:
    monitor = CalibrationMonitor(num_bins=num_bins, tolerance=tolerance, cluster_size=cluster_size)
    days = [(p.tolist(), y.tolist()) for p, y in stream(6, 40, gap=0.2, low=0.1)]
    for number, (confidence, outcomes) in enumerate(days, start=1):
        monitor.update(confidence, outcomes, input="confidence")
        wanted = oracle.monitor_evidence(days[:number], num_bins, tolerance, cluster_size)
        assert math.exp(monitor.log_evidence) == pytest.approx(wanted, rel=1e-9)


def test_cash_and_investments_add_up_to_one() -> None:
    for periods in (1, 10, 1000):
        invested = math.fsum(math.exp(log_investment(k)) for k in range(1, periods + 1))
        assert invested + math.exp(log_cash(periods)) == pytest.approx(1.0, abs=1e-12)


# Validity: under the null hypothesis, wealth does not grow on average


@for_each(p=[0.0, 1e-6, 0.03, 0.4, 0.9, 0.999, 1.0])
def test_a_bet_is_fair(p) -> None:
    wealth = expected([p], [p], lambda c, y: np.exp(bet(c, y)))
    assert (wealth <= 1).all()
    assert (wealth > 1 - 1e-4).all()  # not much is lost by rounding down


def test_a_bet_from_sums_is_fair_for_different_confidences_of_a_bin() -> None:
    confidence = [0.94, 0.955, 0.97, 0.999, 0.61, 0.66]
    wealth = expected(confidence, confidence, lambda c, y: np.exp(bet(c, y)))
    assert (wealth <= 1).all()


def test_a_bet_from_sums_is_at_most_the_product_over_samples_and_almost_as_good() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(14 / 15, 1, 2000)
    outcomes = (rng.random(2000) < confidence - 0.03).astype(int)
    exact = sum(SHIFTS * y - np.log1p(p * np.expm1(SHIFTS)) for p, y in zip(confidence, outcomes, strict=True))
    sums = bet(confidence.tolist(), outcomes.tolist())[0]
    assert (sums < exact).all()
    assert sums.max() > 0.93 * exact.max() > 1


def test_the_evidence_does_not_grow_on_average() -> None:
    first, second = [0.6, 0.62, 0.95], [0.58, 0.96, 0.97]

    def evidence(confidence, outcomes):
        monitor = CalibrationMonitor()
        for part in (slice(0, 3), slice(3, 6)):
            monitor.update(confidence[part], outcomes[part], input="confidence")
        return math.exp(monitor.log_evidence)

    confidence = np.array(first + second)
    mean = expected(confidence, confidence.tolist(), lambda c, y: evidence(c, np.array(y)))
    assert 0.99 < mean <= 1


def test_the_tolerance_is_part_of_the_null_hypothesis() -> None:
    confidence = [0.62, 0.95, 0.97]
    for sign in (-1, 1):
        shifted = [min(1.0, p + sign * 0.02) for p in confidence]
        assert (expected(confidence, shifted, lambda c, y: np.exp(bet(c, y, tolerance=0.02))) <= 1).all()
        assert (expected(confidence, shifted, lambda c, y: np.exp(bet(c, y, tolerance=0.01))) > 1).any()


def test_samples_of_a_cluster_may_depend_on_each_other() -> None:
    def wealth(cluster_size):  # three samples whose outcomes are always the same
        changes = [bet([0.7] * 3, [y] * 3, cluster_size=cluster_size) for y in (0, 1)]
        return 0.3 * np.exp(changes[0]) + 0.7 * np.exp(changes[1])

    assert (wealth(3) <= 1).all()
    assert (wealth(1) > 1).any()


def test_false_alarms_are_rare_over_whole_streams_whose_days_two_workers_share() -> None:
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        monitor = CalibrationMonitor()
        for _ in range(20):
            confidence = 1 - rng.beta(1, 4, 200)
            halves = (confidence[:60], confidence[60:])
            sums = [CalibrationSums.from_confidences(half, rng.random(len(half)) < half) for half in halves]
            monitor.add(sums[0] + sums[1], time="")
        alarms += monitor.alarm is not None
    assert alarms <= 12  # 5 % are 5; more than 12 have a probability of 0.1 %


def test_certain_predictions_that_are_right_are_no_evidence_and_wrong_ones_are_finite_evidence() -> None:
    monitor = feed(CalibrationMonitor(), [(np.ones(1000), np.ones(1000, int))])
    assert monitor.log_evidence <= 0
    feed(monitor, [(np.ones(1000), np.zeros(1000, int))])
    assert 1000 < monitor.log_evidence < 4000


# Workers


def check_close(monitor: CalibrationMonitor, other: CalibrationMonitor) -> None:
    """Compare two monitors up to rounding."""
    states = monitor.to_dict(), other.to_dict()
    for name in ("num_classes", "num_periods", "num_samples", "settings"):
        assert states[0][name] == states[1][name]
    for name, values in states[0]["cells"].items():
        np.testing.assert_allclose(states[1]["cells"][name], values, rtol=1e-11, atol=1e-11, err_msg=name)
    assert [period["num_samples"] for period in states[0]["history"]] == [
        period["num_samples"] for period in states[1]["history"]
    ]
    assert (monitor.alarm is None, monitor.verdict()) == (other.alarm is None, other.verdict())


@for_each(classwise=[False, True])
def test_the_sums_of_workers_merge_to_the_state_of_one_process(classwise) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, target = torch.randn(900, 4, generator=generator), torch.randint(4, (900,), generator=generator)
    one, merged = CalibrationMonitor(classwise=classwise), CalibrationMonitor(classwise=classwise)
    for day in range(3):
        part = slice(300 * day, 300 * day + 300)
        one.update(logits[part], target[part], time=f"day {day}")
        order = torch.randperm(300, generator=generator)
        shares = [merged.collect(logits[part][i], target[part][i]) for i in order.split([1, 99, 200])]
        sent = [CalibrationSums.from_dict(json.loads(json.dumps(share.to_dict()))) for share in shares]
        merged.add(sent[2] + (sent[0] + sent[1]), time=f"day {day}")
        check_close(merged, one)


# Detection


def test_a_change_after_a_long_calibrated_past_is_noticed_soon_and_dated() -> None:
    monitor = feed(CalibrationMonitor(), stream(300, 100), stream(20, 100, gap=0.12, seed=1))
    assert monitor.alarm is not None
    assert 300 < monitor.alarm.num_periods <= 310
    source = monitor.source
    assert (source.direction, source.class_index, source.low, source.high) == ("over", None, 0.0, 1.0)
    assert abs(int(source.since.removeprefix("day ")) - 300) <= 3
    assert source.confidence - source.accuracy == pytest.approx(0.12, abs=0.03)


def test_cutting_days_into_hours_hardly_delays_the_alarm() -> None:
    days = feed(CalibrationMonitor(), stream(30, 240), stream(10, 240, gap=0.1, seed=1))
    hours = feed(CalibrationMonitor(), stream(720, 10), stream(240, 10, gap=0.1, seed=1))
    assert days.alarm is not None
    assert hours.alarm is not None
    assert hours.alarm.num_samples - 7_200 < 1.3 * (days.alarm.num_samples - 7_200)


def test_errors_of_one_bin_that_cancel_out_are_found_there() -> None:
    rng = np.random.default_rng(0)
    monitor = CalibrationMonitor()
    for day in range(10):
        confidence = np.repeat([0.7, 0.9], 300)
        truth = np.repeat([0.8, 0.8], 300)
        monitor.update(confidence, (rng.random(600) < truth).astype(int), input="confidence", time=f"day {day}")
    source = monitor.source
    assert (source.direction, round(source.low, 3), round(source.high, 3)) == ("over", 0.867, 0.933)
    assert (source.since, source.num_samples) == ("day 0", 3000)


def test_classwise_finds_what_the_top_label_hides() -> None:
    probs = torch.tensor([[0.6, 0.3, 0.1]]).repeat(400, 1)
    target = torch.tensor([0] * 240 + [1] * 40 + [2] * 120)
    top, classes = CalibrationMonitor(), CalibrationMonitor(classwise=True)
    for _ in range(5):
        top.update(probs, target, input="probs", time="day")
        classes.update(probs, target, input="probs", time="day")
    assert top.alarm is None
    assert classes.alarm is not None
    assert (classes.source.class_index, classes.source.direction) in [(1, "over"), (2, "under")]
    assert "Probabilities of class" in classes.verdict()


def test_under_confidence_is_told_from_over_confidence() -> None:
    monitor = feed(CalibrationMonitor(), stream(20, 200, gap=-0.1, low=0.4))
    assert monitor.source.direction == "under"
    assert "Under-confident" in monitor.verdict()


# The alarm


def test_the_alarm_stays_although_the_evidence_falls_and_until_a_reset() -> None:
    monitor = feed(CalibrationMonitor(), stream(10, 100, gap=0.15))
    alarm, p_value = monitor.alarm, monitor.p_value
    assert alarm is not None
    assert p_value <= 0.05
    assert alarm.num_samples == 100 * alarm.num_periods
    feed(monitor, stream(100, 400, seed=5))
    assert monitor.log_evidence < math.log(20)
    assert (monitor.alarm, monitor.p_value) == (alarm, p_value)
    assert monitor.verdict().startswith(f"Alarm: miscalibrated, noticed at {alarm.time} after")
    monitor.reset()
    assert monitor == CalibrationMonitor()


def test_the_alarm_is_the_first_period_at_one_over_alpha() -> None:
    monitor = feed(CalibrationMonitor(alpha=0.01), stream(30, 100, gap=0.1))
    limits = [period.log_evidence >= math.log(100) for period in monitor.history]
    assert monitor.alarm is not None
    assert limits.index(True) + 1 == monitor.alarm.num_periods


# Input


def test_confidences_scores_and_rows_give_the_same_evidence() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 300)
    y = (rng.random(300) < p).astype(np.int64)
    rows, positive, confidence = CalibrationMonitor(), CalibrationMonitor(binary="positive"), CalibrationMonitor()
    rows.update(np.stack([1 - p, p], 1), y, input="probs", time="")
    positive.update(p, y, input="probs", time="")
    confidence.update(p.tolist(), y.tolist(), input="confidence", time="")
    for monitor in (positive, confidence):
        assert monitor.log_evidence == pytest.approx(rows.log_evidence, rel=1e-11)


def test_dense_predictions_are_rows_without_ignored_ones() -> None:
    logits, target = torch.randn(6, 3, 5, 4), torch.randint(3, (6, 5, 4))
    target[0] = 255
    dense, flat = CalibrationMonitor(classwise=True), CalibrationMonitor(classwise=True)
    dense.update(logits, target, ignore_index=255, time="")
    flat.update(logits[1:].movedim(1, -1).reshape(-1, 3), target[1:].reshape(-1), time="")
    check_close(dense, flat)
    assert dense.num_samples == 100


BAD = {
    "bins": ({"num_bins": 0}, ValueError, "num_bins must be at least 1, got 0"),
    "classwise": ({"classwise": 3}, TypeError, "classwise must be True or False, got 3"),
    "binary": ({"binary": "yes"}, ValueError, "binary must be one of"),
    "tolerance": ({"tolerance": 1.0}, ValueError, "tolerance must be at least 0 and below 1"),
    "nan": ({"tolerance": math.nan}, ValueError, "tolerance must be .*got nan"),
    "text": ({"tolerance": "1 %"}, TypeError, "tolerance must be a number, got '1 %'"),
    "cluster": ({"cluster_size": 0.5}, TypeError, "cluster_size must be an integer, got 0.5"),
    "alpha": ({"alpha": 0}, ValueError, "alpha must be between 0 and 1, got 0"),
}


@for_each(case=BAD)
def test_bad_settings(case) -> None:
    options, error, message = BAD[case]
    with pytest.raises(error, match=message):
        CalibrationMonitor(**options)


def test_settings_may_be_numbers_of_numpy() -> None:
    settings = CalibrationMonitor(num_bins=np.int64(7), tolerance=np.float32(0.25), alpha=np.float64(0.1)).settings
    assert json.loads(json.dumps(settings)) == settings
    assert (settings["num_bins"], settings["tolerance"], settings["alpha"]) == (7, 0.25, 0.1)


def test_bad_batches_change_nothing() -> None:
    monitor = CalibrationMonitor(classwise=True)
    monitor.update(PROBS, [0, 1], input="probs", time="")
    before = monitor.to_dict()
    three = CalibrationMonitor(classwise=True).collect([[0.5, 0.3, 0.2]], [0], input="probs")
    for batch, message in (
        (three, "the sums have 3 classes, but the monitor has 2"),
        (CalibrationSums.from_confidences([0.5], [1]), "classwise=True needs the probabilities of all classes"),
        (CalibrationMonitor(num_bins=7).collect(PROBS, [0, 1], input="probs"), "have 7 bins, but the monitor has 15"),
        (CalibrationSums.from_predictions([0.3], [1], input="probs", binary="positive"), "probability of class 1, the"),
    ):
        with pytest.raises(ValueError, match=message):
            monitor.add(batch, time="")
    with pytest.raises(ValueError, match="classwise=True needs the probabilities of all classes"):
        monitor.update([0.5], [1], input="confidence", time="")
    with pytest.raises(TypeError, match="time must be a text, such as '2026-01-31', got 7"):
        monitor.update(PROBS, [0, 1], input="probs", time=7)
    with pytest.raises(ValueError, match="the monitor about the probability of class 1"):
        CalibrationMonitor(binary="positive").add(CalibrationMonitor().collect(PROBS, [0, 1], input="probs"))
    assert monitor.to_dict() == before


def test_another_number_of_classes_is_refused() -> None:
    monitor = CalibrationMonitor()
    three = monitor.collect([[0.5, 0.3, 0.2]], [0], input="probs")
    monitor.update([0.7], [1], input="confidence", time="")  # the number is not known yet
    monitor.update(PROBS, [0, 1], input="probs", time="")
    for state in (monitor, CalibrationMonitor.from_dict(json.loads(json.dumps(monitor.to_dict())))):
        with pytest.raises(ValueError, match="the sums have 3 classes, but the monitor has 2: for another model"):
            state.add(three, time="")
    monitor.reset()
    monitor.add(three, time="")
    assert monitor.num_samples == 1


# State


@for_each(classwise=[False, True])
def test_a_saved_state_goes_on_like_one_that_was_not(classwise) -> None:
    generator = torch.Generator().manual_seed(0)
    days = [(torch.randn(50, 3, generator=generator), torch.randint(3, (50,), generator=generator)) for _ in range(12)]
    kept, saved = (CalibrationMonitor(classwise=classwise, tolerance=0.01) for _ in range(2))
    for number, (logits, target) in enumerate(days):
        kept.update(logits, target, time=str(number))
        saved = CalibrationMonitor.from_dict(json.loads(json.dumps(saved.to_dict(), allow_nan=False)))
        saved.update(logits, target, time=str(number))
        assert saved == kept
    assert saved.alarm is not None


def test_the_state_does_not_grow_for_ever() -> None:
    monitor = CalibrationMonitor()
    batch = monitor.collect(PROBS, [0, 1], input="probs")
    for day in range(2048):
        monitor.add(batch, time=f"day {day}")
    assert len(monitor.history) <= 512
    assert sum(period.num_samples for period in monitor.history) == monitor.num_samples == 4096
    assert [(a.last + 1 == b.first) for a, b in zip(monitor.history, monitor.history[1:], strict=False)].count(
        False
    ) == 0
    assert monitor.history[-1].time == "day 2047"


def damage(**changes):
    """Return the content of a state with other entries; None deletes one."""
    monitor = feed(CalibrationMonitor(), stream(5, 100, gap=0.3))
    content = json.loads(json.dumps(monitor.to_dict()))
    for path, value in changes.items():
        *before, last = path.split("__")
        place = content
        for name in before:
            place = place[int(name) if isinstance(place, list) else name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return content


DAMAGED = {
    "schema": ({"schema": 2}, "has schema 2, this version of dualfocal reads schema 1"),
    "no cells": ({"cells": None}, "lacks 'cells'"),
    "unknown setting": ({"settings__colour": "red"}, "colour"),
    "bins that do not fit": ({"settings__num_bins": 7}, "log_wealth must be a list of 128 numbers"),
    "many classes": ({"num_classes": 10**9}, "must be a list of"),
    "text among numbers": ({"cells__count": ["1"] * 256}, "count must hold whole numbers only"),
    "nan": ({"cells__log_wealth": [math.nan] * 256}, "log_wealth must hold finite numbers only"),
    "large": ({"cells__count": [10**30] * 256}, "wrong entry|too large"),
    "negative": ({"num_samples": -1}, "num_samples must be at least 0"),
    "many periods": ({"num_periods": 2**70}, "must be those of the history, 5 and 500"),
    "peak": ({"log_peak": "high"}, "log_peak must be a finite number, got 'high'"),
    "history": ({"history__0__correct": 0.5}, "correct must be int, got 0.5"),
    "period": ({"history__0__first": None}, "Period must have the fields"),
    "alarm": ({"alarm": 3}, "Alarm must have the fields"),
    "source": ({"alarm__source__low": "0"}, "low must be a finite number"),
}


@for_each(case=DAMAGED)
def test_damaged_states_are_refused(case) -> None:
    changes, message = DAMAGED[case]
    CalibrationMonitor.from_dict(damage())
    with pytest.raises(ValueError, match=message):
        CalibrationMonitor.from_dict(damage(**changes))


# Words and figures


def test_the_verdict_names_numbers_and_dates() -> None:
    assert CalibrationMonitor().verdict() == "No samples yet."
    calm = feed(CalibrationMonitor(tolerance=0.01), stream(4, 250))
    assert calm.verdict().startswith(
        "No alarm: no miscalibration detected beyond the tolerance of 0.01 (1,000 samples in 4 periods)."
    )
    monitor = feed(CalibrationMonitor(), stream(30, 200), stream(10, 200, gap=0.2, seed=1))
    alarm = monitor.alarm
    assert alarm is not None
    text = monitor.verdict()
    assert f"noticed at {alarm.time} after {alarm.num_samples:,} samples in {alarm.num_periods} periods" in text
    assert "Over-confident since about day 30: mean confidence 74.5 %, right 5" in text


def test_the_figure_shows_the_evidence_the_limit_and_the_alarm() -> None:
    monitor = feed(CalibrationMonitor(tolerance=0.01), stream(30, 200), stream(10, 200, gap=0.2, seed=1))
    assert monitor.alarm is not None
    figure = evidence_figure(monitor)
    top, bottom = figure.axes
    evidence, limit, alarm = top.lines
    assert evidence.get_ydata()[-1] == pytest.approx(monitor.log_evidence / math.log(10))
    assert limit.get_ydata()[0] == pytest.approx(math.log10(20))
    assert alarm.get_xdata() == [monitor.alarm.num_periods - 1]
    assert bottom.get_legend().get_texts()[0].get_text() == "tolerance"
    assert same_color(bottom.lines[1].get_color(), evidence.get_color())
    assert bottom.lines[1].get_ydata()[-1] == pytest.approx(100 * monitor.history[-1].gap)
    for draw in (evidence_figure, evidence_diagram):
        with pytest.raises(ValueError, match="has seen no samples"):
            draw(CalibrationMonitor())
