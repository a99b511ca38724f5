"""Do the intervals of the best model against all others hold? A simulation in which the truth is known.

    python benchmarks/model_choice.py [--csv FILE] [--repeats 300]

Labels are drawn from softmax(z), 5 classes. Each model sees z with noise of its own. Kinds of models:

  equal      the same amount of noise, so that all true differences are 0: whoever is best is best by chance
  different  also sharpened, by 1, 1.1, 1.2, ... times: the true differences come from 200,000 other samples

For each of many data sets, `metrics.model_choice.choose_model` finds the model with the lowest NLL on the samples and
compares it with each other one. `covered` is the share of data sets in which ALL intervals of a metric contain the true
difference; with two models the intervals are those of `compare`. Goal: at least 86 % of the nominal 90 %, up to the
99 % binomial interval of the rate.

A first run, with 60 data sets per setting and the seeds 0 to 59 in all of them, had nine rows of 48 below the goal, the
lowest at 75 %. On these seeds a plain t-test of paired differences covered 80 %, too, and 90 % on 400 others: the data
were unlucky. The settings now have seeds of their own.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from _simulation import Record, Values, passes, run_simulation

from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.model_choice import DECISIVE, choose_model
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan, scan

LEVEL, GOAL, POPULATION = 0.9, (0.86, 1.0), 200_000
CHUNK = 10  # data sets that one process draws at a time


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    samples: int
    models: int


SETTINGS = [Setting(kind, n, models) for kind in ("equal", "different") for n in (300, 1000) for models in (2, 3, 8)]


def draw(kind: str, n: int, models: int, seed: int) -> dict[str, tuple[Samples, Scan, Evaluation]]:
    """Draw labels, and the predictions of each model."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 5, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    scored = {}
    for k in range(models):
        factor = 1 + 0.1 * k if kind == "different" else 1.0
        noisy = factor * (logits + 0.5 * torch.randn(logits.shape, generator=generator))
        samples = Samples.from_arrays(noisy, target, input="logits")
        stats = scan(samples, num_bins=15, scores=True, classwise=True)
        scored[str(k)] = samples, stats, evaluate_samples(samples, stats, 15)
    return scored


@lru_cache
def truth(kind: str, models: int) -> dict[str, np.ndarray]:
    """Return the metrics of each model in the population."""
    if kind == "equal":
        return {metric: np.zeros(models) for metric in DECISIVE}
    evaluations = [evaluation for _, _, evaluation in draw(kind, POPULATION, models, seed=0).values()]
    return {metric: np.array([getattr(e, metric) for e in evaluations]) for metric in DECISIVE}


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield whether all intervals of a metric contain the truth."""
    true = truth(setting.kind, setting.models)
    first = 10_000 * (1 + SETTINGS.index(setting))  # settings share no random numbers
    for seed in range(first + repeats.start, first + repeats.stop):
        choice = choose_model(draw(*setting, seed), 15, level=LEVEL, seed=seed)
        covered = dict.fromkeys(DECISIVE, True)
        for other, differences in choice.differences.items():
            for metric in DECISIVE:
                difference = true[metric][int(other)] - true[metric][int(choice.best)]
                covered[metric] &= bool(differences[metric].low <= difference <= differences[metric].high)
        yield covered


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return a line of the CSV file for each metric."""
    return [
        {
            **setting._asdict(),
            "metric": metric,
            "repeats": len(covered),
            "covered": f"{np.mean(covered):.3f}",
            "passed": passes(covered, GOAL),
        }
        for metric, covered in values.items()
    ]


if __name__ == "__main__":
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=300, chunk=CHUNK)
