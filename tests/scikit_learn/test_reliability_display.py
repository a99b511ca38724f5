"""ReliabilityDisplay: the numbers it draws, labels, the positive class, and axes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from dualfocal import evaluate
from dualfocal.integrations.sklearn import ReliabilityDisplay

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet(np.ones(3), 500)
TARGET = (RNG.random((500, 1)) > PROBS.cumsum(1)).sum(1)
NAMES = np.array(["ant", "bee", "cat"])
CHANCE = RNG.random(2000)
SPAM = np.where(RNG.random(2000) < CHANCE, "spam", "ham")


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_it_draws_the_evaluation_of_the_predictions() -> None:
    expected = evaluate(PROBS, TARGET, input="probs", num_bins=10, inference=True)
    display = ReliabilityDisplay.from_predictions(NAMES[TARGET], PROBS, n_bins=10, name="$model$")
    assert display.evaluation.to_dict() == expected.to_dict()
    assert display.ax_.get_title() == r"\$model\$"
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("confidence", "accuracy")
    bars = [bar.get_height() for bar in display.ax_.containers[0]]
    np.testing.assert_allclose(bars, np.nan_to_num(expected.bins.accuracy))
    assert "90 % range of a calibrated model, per bin" in display.ax_.get_legend_handles_labels()[1]
    assert f"noise floor {100 * expected.inference.floors['ece'].mean:.1f} %" in display.ax_.texts[0].get_text()
    without = ReliabilityDisplay.from_predictions(TARGET, PROBS, n_bins=10, inference=False)
    assert without.evaluation.inference is None
    assert (without.evaluation.ece, without.ax_.get_title()) == (expected.ece, "")


def test_quantile_bins_are_those_of_scikit_learn() -> None:
    display = ReliabilityDisplay.from_predictions(SPAM, CHANCE, pos_label="spam", n_bins=8, strategy="quantile")
    frequency, mean = calibration_curve(SPAM, CHANCE, pos_label="spam", n_bins=8, strategy="quantile")
    np.testing.assert_allclose([bar.get_height() for bar in display.ax_.containers[0]], frequency, atol=0.01)
    np.testing.assert_allclose(display.evaluation.bins.mean_confidence, mean, atol=0.01)
    assert f"noise floor {100 * display.evaluation.inference.floors['adaptive_ece'].mean:.1f} %" in (
        display.ax_.texts[0].get_text()
    )


def test_an_estimator_gives_the_order_of_the_classes() -> None:
    features, labels = load_iris(return_X_y=True)
    names = np.array(["c", "a", "b"])[labels]
    model = make_pipeline(StandardScaler(), GaussianNB()).fit(features[::2], names[::2])
    kept = names != "a"  # the samples need not contain each class
    display = ReliabilityDisplay.from_estimator(model, features[kept], names[kept])
    target = np.searchsorted(["a", "b", "c"], names[kept])
    expected = evaluate(model.predict_proba(features[kept]), target, input="probs", inference=True)
    assert display.evaluation.to_dict() == expected.to_dict()
    assert display.ax_.get_title() == "Pipeline"


@pytest.mark.parametrize("pos_label", ["spam", "ham"])
def test_the_positive_class_gives_the_calibration_curve_of_scikit_learn(pos_label: str) -> None:
    chance = CHANCE if pos_label == "spam" else 1 - CHANCE
    frequency, mean = calibration_curve(SPAM, chance, n_bins=10, pos_label=pos_label)
    for probs in (chance, np.stack([1 - CHANCE, CHANCE], axis=1)):  # one column, or one for each of ham and spam
        display = ReliabilityDisplay.from_predictions(SPAM, probs, n_bins=10, pos_label=pos_label)
        np.testing.assert_allclose(display.evaluation.bins.accuracy, frequency)
        np.testing.assert_allclose(display.evaluation.bins.mean_confidence, mean)
        assert display.ax_.get_xlabel() == f"probability of {pos_label}"
        assert display.ax_.get_ylabel() == f"frequency of {pos_label}"


def test_without_a_positive_class_two_classes_have_a_predicted_class() -> None:
    columns = np.stack([1 - CHANCE, CHANCE], axis=1)
    expected = evaluate(columns, (SPAM == "spam").astype(int), input="probs", inference=True)
    assert expected.bins.count[:7].sum() == 0  # confidences are at least 1/2
    for probs in (columns, CHANCE, CHANCE[:, None]):
        assert ReliabilityDisplay.from_predictions(SPAM, probs).evaluation.ece == pytest.approx(expected.ece)


def test_it_draws_on_given_axes_and_draws_again() -> None:
    figure, axes = plt.subplots(1, 2)
    display = ReliabilityDisplay.from_predictions(TARGET, PROBS, name="first", ax=axes[0])
    assert display.ax_ is axes[0]
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    assert display.plot(ax=axes[1], name="second") is display
    assert [axis.get_title() for axis in axes] == ["first", "second"]
    display.plot()
    assert display.figure_ is not figure
    assert len(display.figure_.legends) == 1


@pytest.mark.parametrize(
    ("y", "probs", "options", "message"),
    [
        (TARGET, 2 * PROBS, {}, "must sum to 1"),
        (TARGET, PROBS[:, :2], {}, "for 2 classes, but y has the 3 labels 0, 1, 2: pass labels="),
        (TARGET, PROBS, {"labels": [0, 1, 3]}, "y has the label 2"),
        (TARGET, PROBS, {"pos_label": 1}, "pos_label=1 needs two classes, but the predictions are for 3"),
        (SPAM, CHANCE, {"pos_label": "eggs"}, "pos_label='eggs' must be one of 'ham', 'spam'"),
        (SPAM[1:], CHANCE, {}, "inconsistent numbers of samples"),
        (SPAM, SPAM, {}, "y_prob must hold probabilities, as predict_proba returns them, got the text '(ham|spam)'"),
        (TARGET, PROBS, {"n_bins": 0}, "num_bins must be at least 1, got 0"),
    ],
)
def test_an_error_names_the_value_and_the_rule(y: Any, probs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReliabilityDisplay.from_predictions(y, probs, **options)
    assert plt.get_fignums() == []


def test_an_estimator_must_be_fitted_and_have_probabilities() -> None:
    features, labels = load_breast_cancer(return_X_y=True)
    with pytest.raises(NotFittedError):
        ReliabilityDisplay.from_estimator(GaussianNB(), features, labels)
    with pytest.raises(ValueError, match="LinearSVC has no predict_proba"):
        ReliabilityDisplay.from_estimator(LinearSVC(), features, labels)
