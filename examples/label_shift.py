"""Is the model calibrated where it will be used, if the classes are much rarer there than in the test set?

    python examples/label_shift.py

Training and test set hold as many healthy people as patients with each of two diseases, because cases were collected on
purpose. Among all people who will be examined, 90 % are healthy. The shares there are known (CLINIC), but there are no
labelled samples. If a disease looks the same in both places (label shift), the labelled samples can stand for the
clinic: each counts with the weight share in the clinic / share in the test set of its class.

1. The model is calibrated on the test set, as it comes from there. For the clinic it is not: it predicts the diseases
   far too often.
2. Bayes' rule repairs this: add log(share in the clinic / share in training) to the logits. On the test set, the
   repaired model looks miscalibrated; with the weights it is calibrated.
3. The effective sample size is smaller than the number of samples, because they do not count the same.
"""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from dualfocal.metrics import compare, evaluate

CLASSES = ["healthy", "flu", "pneumonia"]
CLINIC = np.array([0.90, 0.08, 0.02])
NUM_SAMPLES, SEED = 6000, 0


def cases(rng: np.random.Generator, shares: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels with these shares, and four measurements of each person."""
    label = rng.choice(len(shares), size=number, p=shares)
    means = np.array([[0.0, 0.0, 0.0, 0.0], [1.2, 0.6, 0.0, 0.3], [1.5, 1.5, 0.9, 0.0]])
    return means[label] + rng.standard_normal((number, 4)), label


def main() -> None:
    """Evaluate a model as it is, and corrected for the shares of the classes, without and with weights."""
    rng = np.random.default_rng(SEED)
    balanced = np.full(3, 1 / 3)
    train_x, train_y = cases(rng, balanced, NUM_SAMPLES)
    x, label = cases(rng, balanced, NUM_SAMPLES)
    model = LogisticRegression(max_iter=1000).fit(train_x, train_y)

    logits = torch.from_numpy(model.decision_function(x))
    corrected = logits + torch.from_numpy(np.log(CLINIC / np.bincount(train_y) * len(train_y)))
    weight = (CLINIC / np.bincount(label) * len(label))[label]

    for name, values in (("The model", logits), ("The corrected model", corrected)):
        for place, weights in (("on the test set", None), ("in the clinic", weight)):
            result = evaluate(values, label, inference=True, sample_weight=weights)
            print(
                f"\n{name} {place}: error {100 * result.error:.1f} %, NLL {result.nll:.3f}\n{result.verdict(CLASSES)}"
            )
    difference = compare(logits, corrected, label, sample_weight=weight)
    print(f"\nIn the clinic, B = the corrected model:\n{difference.verdict()}")

    # The simulation can check what the weights promise: samples of the clinic, with labels.
    x, label = cases(rng, CLINIC, NUM_SAMPLES)
    there = torch.from_numpy(model.decision_function(x))
    print(f"\nThe model, on {NUM_SAMPLES} labelled samples of the clinic:")
    print(evaluate(there, label, inference=True).verdict(CLASSES))


if __name__ == "__main__":
    main()
