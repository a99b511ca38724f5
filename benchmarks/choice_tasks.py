"""How often does `dualfocal evaluate --format lm-eval` call a calibrated language model miscalibrated?

    python benchmarks/choice_tasks.py [--csv FILE] [--repeats 200]

Four tasks of 200 questions: 4 options (with the test of positions), 2 options, 3 to 6 options, and 3 to 6 options with
five questions per passage, whose right answers are correlated (rho = 0.5). The right options are drawn from the
softmax of the scores times 1 / sharpness; sharpness = 1 is calibrated.

- any task: how often a task has a p-value of at most 5 % after Holm's adjustment. At most 5 % if all are calibrated;
- each task: how often its p-value, not adjusted, is at most 5 %;
- all questions: how often the test of all questions together has a p-value of at most 5 %.
"""

import warnings
from collections.abc import Iterator

import numpy as np
from _simulation import Record, Values, means, run_simulation
from numpy.typing import NDArray
from scipy.special import ndtr

from dualfocal.metrics.choices import Choices, evaluate_tasks

TASKS = {"four": (4, 4, 1), "two": (2, 2, 1), "varying": (3, 6, 1), "passages": (3, 6, 5)}  # options, per passage
NUM_QUESTIONS, RHO, SIGNIFICANCE = 200, 0.5, 0.05
SHARPNESS = (1.0, 1.3)
CHUNK = 10  # data sets that one process draws at a time


def draw(rng: np.random.Generator, low: int, high: int, per_passage: int, sharpness: float) -> Choices:
    """Draw the questions of a task. Uniform numbers of a passage come from normal variables with correlation RHO."""
    num_options = rng.integers(low, high + 1, NUM_QUESTIONS)
    shared = np.repeat(rng.normal(size=NUM_QUESTIONS // per_passage), per_passage)
    rho = RHO if per_passage > 1 else 0.0
    uniform = ndtr(np.sqrt(rho) * shared + np.sqrt(1 - rho) * rng.normal(size=NUM_QUESTIONS))
    scores, right = list[NDArray[np.float64]](), list[int]()
    for number, u in zip(num_options, uniform, strict=True):
        z = 1.5 * rng.normal(size=number)
        p = np.sort(np.exp(z / sharpness) / np.exp(z / sharpness).sum())[::-1]
        order = np.argsort(-z)  # the more probable options first, so that right answers of a passage are correlated
        right.append(int(order[min(int((p.cumsum() <= u).sum()), number - 1)]))
        scores.append(z)
    clusters = np.arange(NUM_QUESTIONS) // per_passage if per_passage > 1 else None
    return Choices(np.concatenate(scores), num_options, np.array(right), clusters)


def simulate(sharpness: float, repeats: range) -> Iterator[dict[str, float]]:
    """Yield whether each test rejects."""
    warnings.simplefilter("ignore")  # of two options, many questions have similar predictions
    for seed in repeats:
        rng = np.random.default_rng([seed, int(100 * sharpness)])
        tasks = {name: draw(rng, *task, sharpness) for name, task in TASKS.items()}
        overall, results = evaluate_tasks(tasks, inference=True, seed=seed)
        rejected = {"any task": any(result.p_adjusted <= SIGNIFICANCE for result in results.values())}
        for name, result in {**results, "all questions": overall}.items():
            inference = result.evaluation.inference
            assert inference is not None
            rejected[name] = inference.joint_p_value <= SIGNIFICANCE
        yield rejected


def summarize(sharpness: float, values: Values) -> list[Record]:
    """Return a line of the CSV file for each test."""
    repeats = len(values["any task"])
    return [
        {"sharpness": sharpness, "test": name, "repeats": repeats, "rate": rate} for name, rate in means(values).items()
    ]


if __name__ == "__main__":
    run_simulation(__doc__, SHARPNESS, simulate, summarize, repeats=200, chunk=CHUNK)
