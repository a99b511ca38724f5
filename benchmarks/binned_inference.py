"""Are the verdicts of `CalibrationSums.evaluate`, which keeps no rows, right? And are they those of `evaluate`?

    python benchmarks/binned_inference.py [--csv FILE] [--repeats 400] [--jobs 2]

The populations are those of `inference_coverage.py`, with known truth. For each of many samples of N:

- class_alarms: how often the class-wise test rejects at 5 %;
- alarms: how often the joint verdict at 5 % (both tests, by Holm's method) rejects;
- for one sample in ten, the same from the rows: how often the two verdicts agree, and the mean absolute difference of
  the p-values of both tests; off_aurc and off_adaptive_ece are the mean differences of these metrics, which the sums
  know from fine bins only.

Goal: alarms of calibrated models 3 to 7 %. A setting passes if the 99 % binomial interval of both rates meets the band.
N above 5,000 has a quarter of the samples.
"""

from collections.abc import Iterator

import numpy as np
from _simulation import Part, Record, Values, means, passes, run_simulation, split
from inference_coverage import ALARM_GOAL, MANY_SAMPLES, SHIFT, SIGNIFICANCE, Setting, population

from dualfocal.metrics import CalibrationSums, Evaluation, evaluate

ROWS = 10  # one sample in so many also has the verdict from the rows
CHUNK = 20
SETTINGS = [
    *(Setting("moderate", 1_000, k) for k in (2, 3, 10, 100)),
    *(Setting("moderate", 5_000, k) for k in (2, 3, 10, 100)),
    *(Setting(kind, 5_000, k) for kind in ("sharp", "imbalanced") for k in (3, 10)),
    *(Setting("moderate", 50_000, k) for k in (2, 3, 10, 100)),
    Setting("moderate", 5_000, 10, tau=1.1),
    *(Setting("class shift", 5_000, k, factor=SHIFT) for k in (3, 10)),
]


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each sample."""
    people = population(setting.kind, setting.num_classes, setting.tau, setting.factor)
    rng = np.random.default_rng([setting.n, setting.num_classes, round(1000 * setting.tau), repeats.start])
    for repeat in repeats:
        pick, label = people.draw(setting.n, rng)
        binned = CalibrationSums.from_predictions(people.logits[pick], label).evaluate(seed=repeat)
        joint, _, of_classes = p_values(binned)
        numbers: dict[str, float] = {"class_alarms": of_classes <= SIGNIFICANCE, "alarms": joint <= SIGNIFICANCE}
        if repeat % ROWS == 0:
            numbers |= compare_with_rows(people.logits[pick], label, binned, repeat)
        yield numbers


def p_values(result: Evaluation) -> tuple[float, float, float]:
    """Return the p-values of the joint verdict, of the confidence and of the classes."""
    inference = result.inference
    assert inference is not None
    assert inference.classwise is not None
    return inference.joint_p_value, inference.p_value, inference.classwise.p_value


def compare_with_rows(logits: np.ndarray, label: np.ndarray, binned: Evaluation, seed: int) -> dict[str, float]:
    """Return what differs between an evaluation of cells and of rows."""
    rows = evaluate(logits, label, inference=True, seed=seed)
    ours, theirs = p_values(binned), p_values(rows)
    off = {name: abs(getattr(binned, name) - getattr(rows, name)) for name in ("aurc", "adaptive_ece")}
    return {
        "row_alarms": float(theirs[0] <= SIGNIFICANCE),
        "agree": float((ours[0] <= SIGNIFICANCE) == (theirs[0] <= SIGNIFICANCE)),
        "p_off_confidence": abs(ours[1] - theirs[1]),
        "p_off_classes": abs(ours[2] - theirs[2]),
        **{f"off_{name}": value for name, value in off.items()},
    }


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts, slow ones first."""
    for setting in sorted(SETTINGS, key=lambda setting: -setting.n * setting.num_classes):
        yield from split(setting, max(CHUNK, repeats // 4) if setting.n > MANY_SAMPLES else repeats, CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    passed: bool | str = ""
    if setting.calibrated:
        passed = all(passes(values[name], ALARM_GOAL) for name in ("class_alarms", "alarms"))
    described = {name: getattr(setting, name) for name in ("kind", "n", "num_classes", "tau", "factor")}
    repeats = {f"{name}_repeats": len(values[name]) for name in ("class_alarms", "alarms", "agree")}
    rounded = {name: float(f"{mean:.4g}") for name, mean in means(values).items()}
    return [{**described, **repeats, "passed": passed, **rounded}]


if __name__ == "__main__":
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=400, parts=parts)
