"""What holds of the paper's theory, beyond one gamma: the numbers of docs/theory.md.

    python benchmarks/theory_claims.py [--csv benchmarks/results/theory_claims.csv]

For each gamma: the grid of posteriors that `dualfocal paper theory` judges by, and random posteriors of 2 to 5 classes,
from uneven to nearly uniform. Without exact ties, is the most probable class that of the largest posterior, and is the
order of the posterior kept? Some minutes.
"""

import argparse
from pathlib import Path

import numpy as np
from _measure import Record, show
from rich.progress import track

from dualfocal_lab.theory import check_claims
from dualfocal_lab.theory._orderings import minimise_over_rankings

GAMMAS = (0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0, 12.0, 20.0)
DRAWS = {2: 2000, 3: 1500, 4: 250, 5: 40}  # number of classes: posteriors
EVENNESS = (0.3, 1.0, 20.0, 500.0)  # of Dirichlet's distribution
SMALLEST, NEAREST = 1e-7, 1e-6  # posteriors, and differences of two, that rounding would decide


def random_posteriors(num_classes: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """In descending order, (about number, K)."""
    drawn = [rng.dirichlet(np.full(num_classes, evenness), number // len(EVENNESS)) for evenness in EVENNESS]
    eta = -np.sort(-np.concatenate(drawn), axis=1)
    return eta[(eta.min(1) > SMALLEST) & (np.diff(-eta, axis=1).min(1) > NEAREST)]


def of_the_grid(gamma: float) -> Record:
    """What the command says, in numbers."""
    found = {(claim.where, claim.says): claim.numbers for claim in check_claims(gamma)}
    top = found["Theorem 1", "the most probable class is that of the largest posterior"]
    order = found["Theorem 1", "the minimiser keeps the order of the posterior strictly"]
    under = found["Section 4.2", "under-confident for q_m in [v^uc, 1)"]
    less = found["Section 4.2", "dual focal loss is under-confident less often than focal loss with the same gamma"]
    equation = found["Eq. 9", "eta_i = h(q_i) / sum_k h(q_k) at the minimiser"]
    return {
        "grid": top["of"],
        "grid_top_wrong": top["wrong"],
        "grid_order_lost": order["wrong"],
        "eq_9_off": round(float(equation["published"]), 4),
        "dual_under": less["dual_focal"],
        "focal_under": less["focal"],
        "claimed_under": under["inside"],
        "claimed_and_under": under["right"],
    }


def of_random_posteriors(gamma: float, seed: int) -> Record:
    """Over all numbers of classes; and of five."""
    rng = np.random.default_rng(seed)
    record: Record = {"random": 0, "random_top_wrong": 0}
    for num_classes, number in DRAWS.items():
        eta = random_posteriors(num_classes, number, rng)
        rankings, _, _ = minimise_over_rankings(eta, gamma)
        record["random"] += len(eta)
        record["random_top_wrong"] += sum(ranking[0] != (0,) for ranking in rankings)
        lost = sum(ranking != tuple((k,) for k in range(num_classes)) for ranking in rankings)
    return record | {"five_classes": len(eta), "five_classes_order_lost": lost}


def main() -> None:
    """Each gamma."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the table there")
    args = parser.parse_args()
    records = [
        {"gamma": gamma, **of_the_grid(gamma), **of_random_posteriors(gamma, seed)}
        for seed, gamma in enumerate(track(GAMMAS, "gammas"))
    ]
    show("What holds of the theory", records, args.csv)
    total, wrong = (sum(record[name] for record in records) for name in ("random", "random_top_wrong"))
    print(f"random posteriors: {total:,}, most probable class wrong for {wrong}")


if __name__ == "__main__":
    main()
