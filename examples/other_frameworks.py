"""Predictions of another framework: save them, evaluate them, choose a calibrator, apply it, write a report.

    python examples/other_frameworks.py [FOLDER]

The model is scikit-learn's gradient boosting, on its digits with noise. Files are written to FOLDER (other_frameworks).
Takes about ten seconds on one core. The same steps on the command line:

    dualfocal evaluate test.npz
    dualfocal evaluate val.npz --calibrate temperature,ets,vector,beta
    dualfocal calibrate val.npz --method vector --out cal.npz
    dualfocal apply cal.npz test.npz --out calibrated.npz
    dualfocal report test.npz calibrated.npz -o report.html

Any framework works whose predictions become a NumPy array; only the lines marked "the model" change:

    JAX, Flax        logits = np.asarray(model.apply(params, x))                    input="logits"
    Keras            probs = model.predict(x)             (after a softmax layer)   input="probs"
    XGBoost          probs = model.predict_proba(x)                                 input="probs"
    LightGBM         logits = booster.predict(x, raw_score=True)                    input="logits"
    TensorFlow       logits = model(x).numpy()                                      input="logits"

Nothing is guessed: say whether the values are logits or probabilities, by the name of the array (logits, probs) or by
input=. For two classes, one score per sample is enough: binary="positive" or binary="top_label" says what to score.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

from dualfocal import compare_calibrators, evaluate, load_calibrator
from dualfocal.calibrators import apply_calibrator, make_calibrator, save_calibrator
from dualfocal.predictions import load_predictions, rewrite_predictions
from dualfocal.report import write_report

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
METHODS = ["temperature", "ets", "vector", "beta"]


def predict_and_save(folder: Path) -> None:
    """Train a model and save its predictions on validation and test samples: probs, target, class_names."""
    pixels, digits = load_digits(return_X_y=True)
    pixels += 4 * np.random.default_rng(0).normal(size=pixels.shape)
    x, x_rest, y, y_rest = train_test_split(pixels, NAMES[digits], test_size=0.6, random_state=0)
    x_val, x_test, y_val, y_test = train_test_split(x_rest, y_rest, test_size=0.5, random_state=0)
    model = HistGradientBoostingClassifier(max_bins=32, random_state=0).fit(x, y)  # the model
    for name, features, labels in (("val", x_val, y_val), ("test", x_test, y_test)):
        probs = model.predict_proba(features)  # the model
        # Columns are in the order of model.classes_, here alphabetical; labels are texts, matched by name.
        np.savez(folder / f"{name}.npz", probs=probs, target=labels, class_names=model.classes_)


def main(folder: Path) -> None:
    """Run all steps."""
    folder.mkdir(exist_ok=True)
    predict_and_save(folder)

    test = load_predictions(folder / "test.npz")
    evaluation = evaluate(test.values, test.target, input=test.input, inference=True)
    print(f"{evaluation.table().text()}\n{evaluation.verdict(test.class_names)}\n")

    val = load_predictions(folder / "val.npz")  # choose and fit on validation samples, score on test samples
    comparison = compare_calibrators(val.values, val.target, METHODS, input=val.input)
    print(f"{comparison}\n")
    if comparison.recommended == "uncalibrated":
        return
    calibrator = make_calibrator(comparison.recommended).fit(val.values, val.target, input=val.input)
    calibrator.class_names = val.class_names
    save_calibrator(calibrator, folder / "cal.npz")

    applied = apply_calibrator(load_calibrator(folder / "cal.npz"), test.values, test.target, input=test.input)
    print(applied.verdict())
    rewrite_predictions(folder / "calibrated.npz", test, applied.values)

    write_report([folder / "test.npz", folder / "calibrated.npz"], folder / "report.html", calibrators=METHODS)
    print(f"Next: open {folder / 'report.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "other_frameworks"))
