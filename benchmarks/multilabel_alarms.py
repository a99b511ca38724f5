"""Are the verdicts on multi-label predictions right? A simulation in which the truth is known.

    python benchmarks/multilabel_alarms.py [--csv FILE] [--repeats 60] [--log FILE]

The targets of L labels are drawn with the probabilities of a calibrated model: sigmoid(z), where z is normal around a
mean that falls from -0.5 to `rarest` over the labels. The uniform numbers behind the L targets of a sample come from
normal variables with correlation rho: every label keeps its probability, but the entries of a sample depend on each
other. In settings with `shift`, the logits of the rarest third of the labels are higher than the truth by this much.

For each of many data sets:

- alarms: how often the verdict calls anything miscalibrated (a label or the pooled entries, adjusted by Holm's method);
- label_alarms: how often it calls at least one label miscalibrated: family-wise, among calibrated labels;
- micro_alarms: how often the pooled test rejects at 5 %, without an adjustment; naive_micro_alarms: the same if all
  entries are treated as independent;
- macro_above: how often the macro ECE exceeds the 95 % quantile of its noise floor;
- covered: how often the 90 % interval of the pooled debiased error contains 0, the truth;
- found: the share of the miscalibrated labels that are found.

Goals where shift = 0: alarms, label_alarms and micro_alarms at most 7 %, macro_above at most 10 %, covered at least
86 %. A setting passes if the 99 % binomial interval of each rate meets its goal.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from _simulation import Part, Record, Values, means, passes, run_simulation, show_rates, split
from scipy.special import expit, ndtr

from dualfocal.metrics import evaluate

LEVEL, SIGNIFICANCE = 0.9, 0.05
CHUNK = 10  # data sets that one process draws at a time
MANY_LABELS = 20  # settings with more labels have half of the data sets
GOALS = {
    "alarms": (0.0, 0.07),
    "label_alarms": (0.0, 0.07),
    "micro_alarms": (0.0, 0.07),
    "macro_above": (0.0, 0.10),
    "covered": (0.86, 1.0),
}


class Setting(NamedTuple):
    """One setting of the simulation."""

    samples: int
    labels: int
    rho: float
    rarest: float
    shift: float = 0.0


SETTINGS = (
    Setting(500, 10, 0.0, -3.0),
    Setting(500, 10, 0.5, -3.0),
    Setting(500, 10, 0.9, -3.0),
    Setting(1000, 40, 0.5, -5.0),
    Setting(2000, 10, 0.5, -6.0),
    Setting(2000, 10, 0.5, -6.0, 0.5),
)


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits and targets."""
    shape = setting.samples, setting.labels
    logits = np.linspace(-0.5, setting.rarest, setting.labels) + rng.standard_normal(shape)
    common = rng.standard_normal((setting.samples, 1))
    normal = np.sqrt(setting.rho) * common + np.sqrt(1 - setting.rho) * rng.standard_normal(shape)
    target = (ndtr(normal) < expit(logits)).astype(np.int64)
    logits[:, shifted(setting) :] += setting.shift
    return logits, target


def shifted(setting: Setting) -> int:
    """Return the first label whose logits are shifted."""
    return setting.labels - setting.labels // 3


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each data set."""
    key = [setting.samples, setting.labels, *(round(100 * abs(x)) for x in setting[2:])]
    for repeat in repeats:
        logits, target = draw(setting, np.random.default_rng([*key, repeat]))
        result = evaluate(logits, target, input="logits", inference=True, level=LEVEL, seed=repeat, task="multilabel")
        naive = evaluate(logits.ravel(), target.ravel(), input="logits", inference=True, binary="positive", seed=repeat)
        assert result.inference is not None
        assert result.inference.clusters is not None
        assert result.macro_floor is not None
        assert naive.inference is not None
        wrong = {label.index for label in result.miscalibrated}
        truly_wrong = set(range(shifted(setting), setting.labels)) if setting.shift else set()
        yield {
            "alarms": bool(wrong) or result.p_adjusted <= SIGNIFICANCE,
            "label_alarms": bool(wrong - truly_wrong),
            "micro_alarms": result.inference.p_value <= SIGNIFICANCE,
            "macro_above": result.macro_ece > result.macro_floor.q95,
            "covered": result.inference.debiased_ece[0] <= 0,
            "naive_micro_alarms": naive.inference.p_value <= SIGNIFICANCE,
            "found": len(wrong & truly_wrong) / max(len(truly_wrong), 1),
            "design_effect": result.inference.clusters.design_effect,
        }


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts, slow ones first."""
    for setting in sorted(SETTINGS, key=lambda setting: -setting.labels):
        yield from split(setting, repeats if setting.labels <= MANY_LABELS else repeats // 2, CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    passed: bool | str = ""
    if not setting.shift:
        passed = all(passes(values[name], goal) for name, goal in GOALS.items())
    return [{**setting._asdict(), "repeats": len(values["alarms"]), "passed": passed, **means(values)}]


if __name__ == "__main__":
    show = partial(show_rates, plain=("design_effect",))
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=60, parts=parts, show=show)
