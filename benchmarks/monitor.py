"""Does `CalibrationMonitor` keep its promise, and how soon does it notice a change? A simulation.

    python benchmarks/monitor.py [--csv FILE] [--repeats 1000] [--log FILE]

A stream is a sequence of days with 500 predictions each. 1 - confidence is drawn from a Beta distribution whose mean is
the error rate of a calibrated model; the outcome is drawn with probability confidence - gap. All tests look at the end
of each day:

  monitor    alarm when the evidence reaches 20
  naive      alarm when the ECE of the day exceeds the 95 % quantile of its noise floor (20,000 calibrated days)
  strict     the same with the 99.95 % quantile, a correction for 100 looks: not valid for longer streams

*False alarms*: gap 0 for 100 days; the share of streams with an alarm on any day. At most 5 % are promised.
*Delay*: the gap starts on the first day, or after 100 calibrated days. Number of samples from then on to the alarm,
median and 90 % quantile of a fifth of the streams; those with an alarm before the change are left out, and counted. An
alarm later than 600 days counts as 600 days. `one look` is the number of samples for which a one-sided z-test of
the mean, made once and only of samples after the change, finds the gap with probability one half.

*Restarts*: the delay of the monitor with other rules for the investment of cash, see
`dualfocal/metrics/monitor/_bets.py`, after a past of 100 and of 1,000 days, for a tenth of the streams.

A picture of the delays is drawn beside the CSV. The last part measures the speed of `update` on this machine.
"""

import math
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from _measure import show
from _simulation import Part, Record, Values, read_options, simulate_parts, split, write_records
from matplotlib.figure import Figure

from dualfocal.metrics import CalibrationMonitor, CalibrationSums
from dualfocal.metrics.monitor import _gamblers
from dualfocal.plots import save, styled
from dualfocal.plots.style import legend_below, look_of, tidy, varied

DAY = 500  # samples
FALSE_ALARM_DAYS, PAST, HORIZON = 100, 100, 600
FLOOR_DAYS = 20_000
NAIVE, STRICT = 0.95, 0.9995  # quantiles of the noise floor
SHARES = {"false alarms": 1.0, "delay": 0.2, "restarts": 0.1}  # of --repeats
CHUNK = 10  # streams that one process draws at a time
POPULATIONS = {  # Beta parameters of 1 - confidence, whose mean is the error rate
    "5 % errors": (1.0, 19.0),
    "5 % errors, sharp": (0.1, 1.9),
    "30 % errors": (1.0, 7 / 3),
    "30 % errors, sharp": (0.2, 7 / 15),
}
DELAYED = ("5 % errors", "30 % errors")
GAPS = (0.01, 0.02, 0.05)
RESTARTED, LONG_PAST = ("5 % errors", 0.02), 1000


def invested_at(k: int) -> int:
    """Return the number of investments at 1, 2, 4, 8, ... until the k-th opportunity."""
    return int(k).bit_length()


RULES: dict[str, Callable[[int], float]] = {  # share of cash that is left after k opportunities to invest
    "1 / (1 + ln(1 + k))": lambda k: 1 / (1 + math.log1p(k)),
    "1 / (k + 1)": lambda k: 1 / (k + 1),
    "1 / (j + 1), at k = 1, 2, 4, 8, ...": lambda k: 1 / (invested_at(k) + 1),
    "no restarts": lambda k: float(k == 0),
}


class Setting(NamedTuple):
    """One setting of the simulation; ``rule`` is the key of RULES if restarts are compared."""

    part: str
    population: str
    gap: float
    past_days: int
    rule: str = ""


SETTINGS = [
    *(Setting("false alarms", name, 0.0, 0) for name in POPULATIONS),
    *(Setting("delay", name, gap, past) for name in DELAYED for past in (0, PAST) for gap in GAPS),
    *(Setting("restarts", *RESTARTED, past, rule) for past in (PAST, LONG_PAST) for rule in RULES),
]


def draw(rng: np.random.Generator, population: str, gap: float) -> CalibrationSums:
    """Return the sums of a day."""
    confidence = 1 - rng.beta(*POPULATIONS[population], DAY)
    return CalibrationSums.from_confidences(confidence, rng.random(DAY) < np.clip(confidence - gap, 0, 1))


@lru_cache
def quantiles_of_floor(population: str) -> dict[str, float]:
    """Return the limits of the daily ECE of the two daily tests."""
    rng = np.random.default_rng(1)
    errors = [float(draw(rng, population, 0.0).top.ece()) for _ in range(FLOOR_DAYS)]
    return {"naive": float(np.quantile(errors, NAIVE)), "strict": float(np.quantile(errors, STRICT))}


def first_alarms(setting: Setting, seed: int, limits: dict[str, float]) -> dict[str, float]:
    """Return the day of the first alarm of each test (NaN: no alarm); the change is at day ``past_days``.

    A daily test has no memory, so its alarms before the change are left out. With a change, the stream ends when all
    tests have raised an alarm.
    """
    rng, monitor = np.random.default_rng([2, seed]), CalibrationMonitor()
    alarms = dict.fromkeys(["monitor", *limits], math.nan)
    past = setting.past_days
    for day in range(past + (HORIZON if setting.gap else FALSE_ALARM_DAYS)):
        sums = draw(rng, setting.population, setting.gap if day >= past else 0.0)
        monitor.add(sums, time="")
        raised = {"monitor": monitor.alarm is not None}
        if day >= past:
            error = float(sums.top.ece())
            raised |= {name: error > limit for name, limit in limits.items()}
        for name in raised:
            if raised[name] and math.isnan(alarms[name]):
                alarms[name] = day
        if setting.gap and not any(map(math.isnan, alarms.values())):
            break
    return alarms


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the first alarms of each stream."""
    if not setting.rule:
        limits = quantiles_of_floor(setting.population)
        yield from (first_alarms(setting, seed, limits) for seed in repeats)
        return
    cash = RULES[setting.rule]
    rule = {
        "log_cash": lambda k: float(np.log(max(cash(k), 1e-300))),
        "log_investment": lambda k: float(np.log(max(cash(k - 1) - cash(k), 1e-300))),
    }
    with mock.patch.multiple(_gamblers, **rule):
        yield from (first_alarms(setting, seed, {}) for seed in repeats)


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts."""
    for setting in SETTINGS:
        yield from split(setting, round(SHARES[setting.part] * repeats), CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return a line of the CSV file for each test."""
    records = []
    for test, days in values.items():
        record = setting._asdict() | {"test": setting.rule or test, "streams": len(days)}
        del record["rule"]
        if setting.gap:
            past = setting.past_days
            after = [DAY * (HORIZON if math.isnan(day) else day - past + 1) for day in days if not day < past]
            record["alarms"] = len(days) - len(after)
            record |= {"median": round(np.median(after)), "q90": round(np.quantile(after, 0.9))}
        else:
            record |= {"alarms": sum(not math.isnan(day) for day in days), "median": "", "q90": ""}
        one_look = round(variance(setting.population) * (1.645 / setting.gap) ** 2) if setting.part == "delay" else ""
        records.append(record | {"one_look": one_look})
    return records


def variance(population: str) -> float:
    """Return the mean of p (1 - p) over the population."""
    a, b = POPULATIONS[population]
    return a * b / ((a + b) * (a + b + 1))


def speed() -> list[Record]:
    """Return the rows per second of `update`, for logits of ten classes; the best of five."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1_000_000, 10, generator=generator)
    target = torch.randint(0, 10, (1_000_000,), generator=generator)
    records = []
    for name, monitor in (("top label", CalibrationMonitor()), ("classwise", CalibrationMonitor(classwise=True))):
        seconds = math.inf
        for _ in range(5):
            start = time.perf_counter()
            monitor.update(logits, target, time="")
            seconds = min(seconds, time.perf_counter() - start)
        records.append({"part": "rows per second", "test": name, "median": round(len(target) / seconds, -4)})
    return records


def draw_delays(records: list[Record]) -> Figure:
    """Draw the delay over the gap: median, and a stroke up to the 90 % quantile."""
    kinds = {  # (test, days before the change) -> label, look, horizontal shift
        ("monitor", 0): ("monitor, change at the start", look_of("dual_focal"), -0.09),
        ("monitor", PAST): (f"monitor, change after {PAST} days", varied(look_of("dual_focal"), 1), -0.03),
        ("strict", 0): ("ECE of each day, corrected for 100 looks", look_of("flsd"), 0.03),
        ("naive", 0): ("ECE of each day, naive: 99 % false alarms", look_of("label_smoothing"), 0.09),
    }
    with styled():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        for axis, name in zip(figure.subplots(1, 2, sharey=True), DELAYED, strict=True):
            for (test, past), (label, look, shift) in kinds.items():
                wanted = {"part": "delay", "population": name, "test": test, "past_days": past}
                delays = [record for record in records if wanted.items() <= record.items()]
                place = [i + shift for i in range(len(delays))]
                median, high = ([record[column] for record in delays] for column in ("median", "q90"))
                axis.vlines(place, median, high, color=look.colour, linewidth=1)
                axis.plot(place, median, look.marker, color=look.colour, linestyle=look.line, linewidth=1, label=label)
            ends = [f"{100 * gap:g}" for gap in GAPS]
            axis.set_xticks(range(len(GAPS)), ends)
            axis.set(title=name, xlabel="gap between confidence and accuracy [points]", yscale="log")
            tidy(axis, grid="y")
        figure.axes[0].set_ylabel("samples until the alarm\n(median to 90 % quantile)")
        legend_below(figure, *figure.axes[0].get_legend_handles_labels(), columns=2)
    return figure


if __name__ == "__main__":
    options = read_options(__doc__, repeats=1000)
    values = simulate_parts(simulate, list(parts(options.repeats)), options)
    records = [record for setting in SETTINGS if setting in values for record in summarize(setting, values[setting])]
    show("Alarms of CalibrationMonitor", records, None)
    torch.set_num_threads(1)
    speeds = speed()
    print(speeds)
    if options.csv:
        write_records(records + speeds, options)
        save(draw_delays(records), options.csv.with_suffix(".png"), dpi=150)
