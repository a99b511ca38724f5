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

import argparse
import csv
import platform
from pathlib import Path

import numpy as np
import torch
from inference_coverage import passes

from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.model_choice import DECISIVE, choose_model
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rows import Rows, as_rows
from dualfocal.metrics.scan import Scan, scan

LEVEL, GOAL, POPULATION = 0.9, (0.86, 1.0), 200_000
SETTINGS = [(kind, n, models) for kind in ("equal", "different") for n in (300, 1000) for models in (2, 3, 8)]


def draw(kind: str, n: int, models: int, seed: int) -> dict[str, tuple[Rows, Scan, Evaluation]]:
    """Draw labels, and the predictions of each model."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 5, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    scored = {}
    for k in range(models):
        factor = 1 + 0.1 * k if kind == "different" else 1.0
        noisy = factor * (logits + 0.5 * torch.randn(logits.shape, generator=generator))
        rows = as_rows(noisy, target, input="logits")
        stats = scan(rows, num_bins=15, scores=True, classwise=True)
        scored[str(k)] = rows, stats, evaluate_rows(rows, stats, 15)
    return scored


def truth(kind: str, models: int) -> dict[str, np.ndarray]:
    """Return the metrics of each model in the population."""
    if kind == "equal":
        return {metric: np.zeros(models) for metric in DECISIVE}
    evaluations = [evaluation for _, _, evaluation in draw(kind, POPULATION, models, seed=0).values()]
    return {metric: np.array([getattr(e, metric) for e in evaluations]) for metric in DECISIVE}


def measure(kind: str, n: int, models: int, repeats: int) -> list[dict[str, object]]:
    """Return a row of the results for each metric."""
    true = truth(kind, models)
    covered: dict[str, list[float]] = {metric: [] for metric in DECISIVE}
    first = 10_000 * (1 + SETTINGS.index((kind, n, models)))  # settings share no random numbers
    for seed in range(first, first + repeats):
        choice = choose_model(draw(kind, n, models, seed), 15, level=LEVEL, seed=seed)
        for metric in DECISIVE:
            best = true[metric][int(choice.best)]
            covered[metric].append(
                all(
                    d[metric].low <= true[metric][int(other)] - best <= d[metric].high
                    for other, d in choice.differences.items()
                )
            )
    return [
        {
            "kind": kind,
            "samples": n,
            "models": models,
            "metric": metric,
            "repeats": repeats,
            "covered": f"{np.mean(hits):.3f}",
            "passed": passes(hits, GOAL),
        }
        for metric, hits in covered.items()
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--repeats", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for setting in SETTINGS:
        rows += measure(*setting, arguments.repeats)
        for row in rows[-len(DECISIVE) :]:
            print(*row.values(), sep="\t", flush=True)
    if arguments.csv is not None:
        versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# benchmarks/model_choice.py --repeats {arguments.repeats}; {versions}\n")
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
