"""Does `CalibrationMonitor` keep its promise, and how soon does it notice a change? A simulation.

    python benchmarks/monitor.py [--csv FILE] [--streams 1000]

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

*Restarts*: the delay of the monitor with other rules for the investment of cash, see `dualfocal/metrics/_bets.py`,
after a past of 100 and of 1,000 days, for a tenth of the streams.

Settings that the CSV already has are not repeated; the picture beside it is drawn again. The last part measures the
speed of `update` on this machine.
"""

import argparse
import csv
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console

from dualfocal._table import Table
from dualfocal.metrics import BinStats, CalibrationMonitor, MonitorBatch
from dualfocal.metrics.monitor import _gamblers
from dualfocal.plots import save, styled
from dualfocal.plots.style import legend_below, look_of, tidy, varied

DAY = 500  # samples
FALSE_ALARM_DAYS, PAST, HORIZON = 100, 100, 600
FLOOR_DAYS = 20_000
NAIVE, STRICT = 0.95, 0.9995  # quantiles of the noise floor
SHARE_OF_DELAYS = 0.2  # of --streams
POPULATIONS = {  # Beta parameters of 1 - confidence, whose mean is the error rate
    "5 % errors": (1.0, 19.0),
    "5 % errors, sharp": (0.1, 1.9),
    "30 % errors": (1.0, 7 / 3),
    "30 % errors, sharp": (0.2, 7 / 15),
}
DELAYED = ("5 % errors", "30 % errors")
GAPS = (0.01, 0.02, 0.05)
RESTARTED, LONG_PAST, SHARE_OF_RESTARTS = ("5 % errors", 0.02), 1000, 0.1
FIELDS = ("part", "population", "gap", "past_days", "test", "streams", "alarms", "median", "q90", "one_look")


def draw(rng: np.random.Generator, population: str, gap: float) -> BinStats:
    """Return the bins of a day."""
    confidence = 1 - rng.beta(*POPULATIONS[population], DAY)
    return BinStats.from_confidence(confidence, rng.random(DAY) < np.clip(confidence - gap, 0, 1))


def quantiles_of_floor(population: str) -> dict[str, float]:
    """Return the limits of the daily ECE of the two daily tests."""
    rng = np.random.default_rng(1)
    errors = [float(draw(rng, population, 0.0).ece()) for _ in range(FLOOR_DAYS)]
    return {"naive": float(np.quantile(errors, NAIVE)), "strict": float(np.quantile(errors, STRICT))}


def first_alarms(
    seed: int, population: str, gap: float, past: int, days: int, limits: dict[str, float]
) -> dict[str, int | None]:
    """Return the day of the first alarm of each test (None: no alarm); the change is at day ``past``.

    A daily test has no memory, so its alarms before the change are left out. With a change, the stream ends when all
    tests have raised an alarm.
    """
    rng, monitor = np.random.default_rng([2, seed]), CalibrationMonitor()
    alarms: dict[str, int | None] = {"monitor": None, "naive": None, "strict": None}
    for day in range(past + days):
        bins = draw(rng, population, gap if day >= past else 0.0)
        monitor.add(MonitorBatch(bins), time="")
        error = float(bins.ece())
        if alarms["monitor"] is None and monitor.alarm is not None:
            alarms["monitor"] = day
        for name, limit in limits.items():
            if alarms[name] is None and error > limit and day >= past:
                alarms[name] = day
        if gap and None not in [alarms["monitor"], *(alarms[name] for name in limits)]:
            break
    return alarms


def simulate(population: str, gap: float, past: int, streams: int, limits: dict[str, float]) -> list[dict[str, object]]:
    """Return one row of the CSV for each test."""
    days = HORIZON if gap else FALSE_ALARM_DAYS
    every = [first_alarms(seed, population, gap, past, days, limits) for seed in range(streams)]
    rows = []
    for test in ("monitor", *limits):
        row: dict[str, object] = {
            "part": "delay" if gap else "false alarms",
            "population": population,
            "gap": gap,
            "past_days": past,
            "test": test,
            "streams": streams,
        }
        first = [alarms[test] for alarms in every]
        if gap:
            after = [DAY * (days if day is None else day - past + 1) for day in first if day is None or day >= past]
            row |= {
                "alarms": streams - len(after),
                "median": round(np.median(after)),
                "q90": round(np.quantile(after, 0.9)),
            }
            row["one_look"] = round(variance(population) * (1.645 / gap) ** 2)
        else:
            row["alarms"] = sum(day is not None for day in first)
        rows.append(row)
    return rows


def invested_at(k: int) -> int:
    """Number of the investments at 1, 2, 4, 8, ... until the k-th opportunity."""
    return int(k).bit_length()


RULES: dict[str, Callable[[int], float]] = {  # share of cash that is left after k opportunities to invest
    "1 / (1 + ln(1 + k))": lambda k: 1 / (1 + math.log1p(k)),
    "1 / (k + 1)": lambda k: 1 / (k + 1),
    "1 / (j + 1), at k = 1, 2, 4, 8, ...": lambda k: 1 / (invested_at(k) + 1),
    "no restarts": lambda k: float(k == 0),
}


def compare_restarts(past: int, streams: int) -> list[dict[str, object]]:
    """Return one row of the CSV for each rule."""
    population, gap, rows = *RESTARTED, []
    before = _gamblers.log_cash, _gamblers.log_investment
    for name, cash in RULES.items():
        _gamblers.log_cash = lambda k, cash=cash: float(np.log(max(cash(k), 1e-300)))
        _gamblers.log_investment = lambda k, cash=cash: float(np.log(max(cash(k - 1) - cash(k), 1e-300)))
        days = [first_alarms(seed, population, gap, past, HORIZON, {})["monitor"] for seed in range(streams)]
        after = [DAY * (HORIZON if day is None else day - past + 1) for day in days if day is None or day >= past]
        rows.append({"part": "restarts", "population": population, "gap": gap, "past_days": past, "test": name})
        rows[-1] |= {"streams": streams, "alarms": streams - len(after)}
        rows[-1] |= {"median": round(np.median(after)), "q90": round(np.quantile(after, 0.9))}
    _gamblers.log_cash, _gamblers.log_investment = before
    return rows


def variance(population: str) -> float:
    """Mean of p (1 - p) over the population."""
    a, b = POPULATIONS[population]
    return a * b / ((a + b) * (a + b + 1))


def speed() -> list[dict[str, object]]:
    """Rows per second of `update`, for logits of ten classes; the best of five."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1_000_000, 10, generator=generator)
    target = torch.randint(0, 10, (1_000_000,), generator=generator)
    rows: list[dict[str, object]] = []
    for name, monitor in (("top label", CalibrationMonitor()), ("classwise", CalibrationMonitor(classwise=True))):
        seconds = math.inf
        for _ in range(5):
            start = time.perf_counter()
            monitor.update(logits, target, time="")
            seconds = min(seconds, time.perf_counter() - start)
        rows.append({"part": "rows per second", "test": name, "median": round(len(target) / seconds, -4)})
    return rows


def draw_delays(rows: list[dict[str, str]]) -> Figure:
    """Draw the delay over the gap: median, and a stroke up to the 90 % quantile."""
    kinds = {  # (test, days before the change) -> label, look, horizontal shift
        ("monitor", "0"): ("monitor, change at the start", look_of("dual_focal"), -0.09),
        ("monitor", str(PAST)): (f"monitor, change after {PAST} days", varied(look_of("dual_focal"), 1), -0.03),
        ("strict", "0"): ("ECE of each day, corrected for 100 looks", look_of("flsd"), 0.03),
        ("naive", "0"): ("ECE of each day, naive: 99 % false alarms", look_of("label_smoothing"), 0.09),
    }
    with styled():
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        for axis, name in zip(figure.subplots(1, 2, sharey=True), DELAYED, strict=True):
            for (test, past), (label, look, shift) in kinds.items():
                part = [row for row in rows if (row["population"], row["test"], row["past_days"]) == (name, test, past)]
                part = [row for row in part if row["part"] == "delay"]
                place = [i + shift for i in range(len(part))]
                median, high = ([float(row[column]) for row in part] for column in ("median", "q90"))
                axis.vlines(place, median, high, color=look.colour, linewidth=1)
                axis.plot(place, median, look.marker, color=look.colour, linestyle=look.line, linewidth=1, label=label)
            ends = [f"{100 * gap:g}" for gap in GAPS]
            axis.set_xticks(range(len(GAPS)), ends)
            axis.set(title=name, xlabel="gap between confidence and accuracy [points]", yscale="log")
            tidy(axis, grid="y")
        figure.axes[0].set_ylabel("samples until the alarm\n(median to 90 % quantile)")
        legend_below(figure, *figure.axes[0].get_legend_handles_labels(), columns=2)
    return figure


def main() -> None:
    """Run what is missing in the CSV, and print it."""
    parser = argparse.ArgumentParser(description="Simulate CalibrationMonitor.")
    parser.add_argument("--csv", type=Path, default=Path(__file__).parent / "results" / "monitor.csv")
    parser.add_argument("--streams", type=int, default=1000)
    options = parser.parse_args()
    known = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    limits = {}
    plan = [(name, 0.0, 0) for name in POPULATIONS]
    plan += [(name, gap, past) for name in DELAYED for past in (0, PAST) for gap in GAPS]
    with options.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not known:
            writer.writeheader()
        for name, gap, past in plan:
            setting = ("delay" if gap else "false alarms", name, str(gap), str(past))
            if any(tuple(row[field] for field in FIELDS[:4]) == setting for row in known):
                continue
            limits[name] = limits.get(name) or quantiles_of_floor(name)
            streams = round(options.streams * (SHARE_OF_DELAYS if gap else 1))
            writer.writerows(simulate(name, gap, past, streams, limits[name]))
            file.flush()
        for past in (PAST, LONG_PAST):
            if not any((row["part"], row["past_days"]) == ("restarts", str(past)) for row in known):
                writer.writerows(compare_restarts(past, round(options.streams * SHARE_OF_RESTARTS)))
                file.flush()
        if not any(row["part"] == "rows per second" for row in known):
            writer.writerows(speed())
    rows = list(csv.DictReader(options.csv.open()))
    Console().print(Table(FIELDS, [[row[name] for name in FIELDS] for row in rows], left=(0, 1, 4)).rich())
    save(draw_delays(rows), options.csv.with_suffix(".png"), dpi=150)
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
