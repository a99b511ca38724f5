"""How often does the class table of a report flag a class of a calibrated model? A simulation.

    python benchmarks/class_totals.py [--csv FILE] [--repeats 400] [--log FILE]

Labels are drawn from the probabilities of the model, so that no class is off. Samples have equal weights, or those of
``weight_coverage.py``; each is there ``copies`` times, as a cluster. ``alarms`` is the share of data sets in which
any p-value of :func:`dualfocal.metrics.classwise.class_gaps`, adjusted for all classes, is 5 % or less;
``independent_alarms`` the same for samples that are taken as independent and of equal weight. Goal: at most 7 %; a
setting passes if the 99 % binomial interval of its rate meets the goal.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from _simulation import Record, Values, means, passes, run_simulation
from weight_coverage import Setting as Weighted
from weight_coverage import draw

from dualfocal.metrics import Samples
from dualfocal.metrics.classwise import class_gaps
from dualfocal.metrics.scan import scan
from dualfocal.metrics.units import unit_sums

SIGNIFICANCE, GOAL, CHUNK = 0.05, (0.0, 0.07), 50


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    num_classes: int
    weights: str
    copies: int
    effective: int


STRUCTURES = (("random.5", 1), ("covariate", 1), ("label", 1), ("both", 1), ("equal", 4), ("label", 4))
SETTINGS = sorted(
    Setting(kind, num_classes, weights, copies, effective)
    for kind, num_classes, effective, (weights, copies) in product(
        ("moderate", "sharp"), (3, 10), (200, 1000), STRUCTURES
    )
)


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each data set."""
    key = [setting.num_classes, setting.effective, setting.copies, *map(ord, setting.kind + setting.weights)]
    rng = np.random.default_rng([*key, repeats.start])
    for _ in repeats:
        weights = "random.9" if setting.weights == "equal" else setting.weights
        arrays = draw(Weighted(setting.kind, setting.num_classes, weights, setting.effective), rng)
        logits, label, weight = (np.concatenate([array] * setting.copies) for array in arrays)
        clusters = None if setting.copies == 1 else np.tile(np.arange(len(arrays[1])), setting.copies)
        weight = None if setting.weights == "equal" else weight
        samples = Samples.from_arrays(logits, label, input="logits", sample_weight=weight, clusters=clusters)
        stats = scan(samples, classwise=True)
        gaps = class_gaps(stats.classes, unit_sums(stats, stats.bins(15), rows=samples), setting.copies)
        independent = class_gaps(scan(Samples.from_arrays(logits, label, input="logits"), classwise=True).classes)
        yield {
            "alarms": min(gap.p_value for gap in gaps) <= SIGNIFICANCE,
            "independent_alarms": min(gap.p_value for gap in independent) <= SIGNIFICANCE,
        }


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    passed = passes(values["alarms"], GOAL)
    return [{**setting._asdict(), "repeats": len(values["alarms"]), "passed": passed, **means(values)}]


if __name__ == "__main__":
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=400, chunk=CHUNK)
