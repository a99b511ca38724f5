"""Does the rounding of probabilities raise false alarms? A simulation in which the truth is known.

    python benchmarks/rounded_probabilities.py [--csv FILE] [--repeats 200] [--log FILE]

Labels are drawn from softmax(z / tau), tau = 1 is calibrated. The evaluation gets softmax(z), rounded to a number of
decimals (0: not rounded). Rows of which all probabilities are rounded to 0 are left out. For each of many data sets:

- called: how often the verdict calls the model miscalibrated: the false-alarm rate where tau = 1, the power elsewhere;
- alarms: how often the joint p-value, which does not know of the rounding, is at most 5 %; its weights of the two
  tests are not those of the verdict;
- off: share of the rows that do not sum to 1 within .01, the tolerance for other probabilities;
- bias: what rounding adds to the confidence, if the missing sum is spread over all classes (or taken from all that are
  not 0), as `evaluate` does: the mean over the samples of |mean confidence - mean true confidence| in the bin of the
  ECE; signed_bias: over all samples, with sign;
- divided_bias: the bias if rows were divided by their sum;
- limit: the largest error that the verdict names.

Larger data sets are fewer, see ``SHARES``. The committed results are from ``--repeats 40``.

Goal: the verdict calls at most 7 % of calibrated models miscalibrated. A setting passes if the 99 % binomial interval
of its rate meets the goal.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from _simulation import (
    Part,
    Record,
    Values,
    binned_errors,
    draw_labels,
    means,
    passes,
    run_simulation,
    show_rates,
    softmax,
    split,
)

from dualfocal.metrics import evaluate
from dualfocal.metrics.scan import SUM_TOLERANCE

SCALE = {2: 1.5, 5: 2.0, 10: 3.0, 100: 4.0}  # of the logits, by number of classes: confidences of the whole range
SIZES, DECIMALS = (1_000, 10_000, 100_000), (0, 1, 2, 3)
OVERCONFIDENT = 1.3  # tau
CALLED = ("Over-confident", "Under-confident", "Miscalibrated in both directions", ": miscalibrated (")
SIGNIFICANCE, GOAL = 0.05, (0.0, 0.07)
SHARES = {1_000: 0.5, 10_000: 1.0, 100_000: 0.15}  # of the data sets, by number of samples
SHARE_OF_MANY_CLASSES, SHARE_OF_OVERCONFIDENT = 0.3, 0.25
CHUNK = 10  # data sets that one process draws at a time


class Setting(NamedTuple):
    """One setting of the simulation."""

    num_classes: int
    num_samples: int
    decimals: int
    tau: float = 1.0


def settings() -> list[Setting]:
    """Return all settings."""
    calibrated = [Setting(c, n, decimals) for c in SCALE for n in SIZES for decimals in DECIMALS]
    return calibrated + [Setting(c, 10_000, decimals, OVERCONFIDENT) for c in SCALE for decimals in DECIMALS]


def spread_evenly(rounded: np.ndarray) -> np.ndarray:
    """Make up the missing sum of each row in equal parts, or take the excess from the entries that are not 0."""
    total, positive = rounded.sum(1, keepdims=True), rounded > 0
    more = rounded + (1 - total) / rounded.shape[1]
    less = rounded - positive * (total - 1) / positive.sum(1, keepdims=True)
    spread: np.ndarray = np.where(total <= 1, more, less)
    return spread


def biases(truth: np.ndarray, rounded: np.ndarray) -> dict[str, float]:
    """Return what rounding adds to the confidence."""
    row, top = np.arange(len(rounded)), rounded.argmax(1)
    confidence, right = spread_evenly(rounded)[row, top], truth[row, top]
    return {
        "bias": binned_errors(confidence, right)[1],
        "signed_bias": float((confidence - right).mean()),
        "divided_bias": binned_errors((rounded / rounded.sum(1, keepdims=True))[row, top], right)[1],
    }


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each data set."""
    for repeat in repeats:
        rng = np.random.default_rng([setting.num_classes, setting.num_samples, repeat])
        logits = SCALE[setting.num_classes] * rng.standard_normal((setting.num_samples, setting.num_classes))
        probs = softmax(logits)
        label = draw_labels(softmax(logits / setting.tau), rng.random(setting.num_samples))
        rounded = probs.round(setting.decimals) if setting.decimals else probs
        total = rounded.sum(1)
        kept = total > 0
        result = evaluate(rounded[kept], label[kept], input="probs", inference=True, seed=repeat)
        assert result.inference is not None
        assert (result.rounding is None) == (setting.decimals == 0)
        verdict = result.verdict()
        yield {
            "called": any(words in verdict for words in CALLED),
            "alarms": result.inference.joint_p_value <= SIGNIFICANCE,
            "off": float((np.abs(total - 1) > SUM_TOLERANCE + 1e-6).mean()),
            "lost_rows": float((~kept).mean()),
            **biases(probs[kept], rounded[kept]),
            "limit": 0.0 if result.rounding is None else result.rounding.error,
            "ece": result.ece,
            "debiased_ece": result.debiased_ece,
        }


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts, slow ones first."""
    for setting in sorted(settings(), key=lambda setting: -setting.num_samples * setting.num_classes):
        share = SHARES[setting.num_samples] if setting.tau == 1 else SHARE_OF_OVERCONFIDENT
        if setting.num_classes == max(SCALE):
            share *= SHARE_OF_MANY_CLASSES
        yield from split(setting, max(1, round(share * repeats)), CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file; power has no goal."""
    passed = passes(values["called"], GOAL) if setting.tau == 1 else ""
    return [{**setting._asdict(), "repeats": len(values["called"]), "passed": passed, **means(values)}]


def show(records: list[Record]) -> None:
    """Print the rates of every setting, and the mean false-alarm rate by number of decimals."""
    show_rates(records)
    for decimals in DECIMALS:
        chosen = [record for record in records if record["decimals"] == decimals and record["tau"] == 1]
        repeats = [record["repeats"] for record in chosen]
        called, alarms = (
            100 * np.average([record[name] for record in chosen], weights=repeats) for name in ("called", "alarms")
        )
        print(f"{decimals or 'all'} decimals, all calibrated settings: called {called:.1f} %, tests {alarms:.1f} %")


if __name__ == "__main__":
    run_simulation(__doc__, settings(), simulate, summarize, repeats=200, parts=parts, show=show)
