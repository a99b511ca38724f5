"""ProbabilityCalibrator: in pipelines and stacks, with labels of any kind, and its agreement with scikit-learn."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import StackingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dualfocal import CALIBRATORS, TemperatureScaling, load_calibrator
from dualfocal.calibrators import make_calibrator, save_calibrator
from dualfocal.integrations.sklearn import ProbabilityCalibrator

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(600, 3))
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
SOFT = np.exp(LOGITS / 3) / np.exp(LOGITS / 3).sum(1, keepdims=True)  # the truth: PROBS are three times too sharp
TARGET = (RNG.random((600, 1)) > SOFT.cumsum(1)).sum(1)
DIGITS, DIGIT = load_digits(return_X_y=True)
DIGITS = DIGITS / 16 + 0.3 * RNG.normal(size=DIGITS.shape)
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


def digit_model() -> MLPClassifier:
    return MLPClassifier((20,), solver="lbfgs", max_iter=1000, alpha=0.1, random_state=0)


@pytest.fixture(scope="module")
def fitted_model() -> Any:
    return make_pipeline(GaussianNB()).fit(DIGITS[:600], NAMES[DIGIT[:600]])


@pytest.mark.parametrize("method", CALIBRATORS)
def test_it_is_the_calibrator_of_this_package(method: str) -> None:
    calibrator = make_calibrator(method).fit(PROBS, TARGET, input="probs")
    expected = calibrator(PROBS, input="probs").softmax(1).numpy()
    labels = np.array(["ant", "bee", "cat"])
    wrapped = ProbabilityCalibrator(method).fit(PROBS, labels[TARGET])
    np.testing.assert_array_equal(wrapped.predict_proba(PROBS), expected)
    np.testing.assert_array_equal(wrapped.transform(PROBS), expected)
    assert wrapped.predict(PROBS).tolist() == labels[expected.argmax(1)].tolist()
    assert wrapped.get_feature_names_out().tolist() == labels.tolist()
    assert wrapped.score(PROBS, labels[TARGET]) == pytest.approx((expected.argmax(1) == TARGET).mean())


@pytest.mark.parametrize("labels", [[10, 3, 7], ["cat", "ant", "bee"], [True, 5, -1]])
@pytest.mark.parametrize("method", ["temperature", "dirichlet"])
def test_classes_name_the_columns_in_any_order(method: str, labels: list[Any]) -> None:
    expected = ProbabilityCalibrator(method).fit(PROBS, TARGET).predict_proba(PROBS)
    labels = np.array(labels)
    wrapped = ProbabilityCalibrator(method, classes=labels).fit(PROBS, labels[TARGET])
    np.testing.assert_array_equal(wrapped.predict_proba(PROBS), expected)
    assert wrapped.predict(PROBS).tolist() == labels[expected.argmax(1)].tolist()
    order = np.argsort(labels)  # as scikit-learn's classifiers sort them
    by_default = ProbabilityCalibrator(method).fit(PROBS[:, order], labels[TARGET])
    assert by_default.classes_.tolist() == labels[order].tolist()
    np.testing.assert_allclose(by_default.predict_proba(PROBS[:, order]), expected[:, order], atol=1e-6)


def test_behind_a_fitted_model_it_calibrates_in_a_pipeline(fitted_model: Any) -> None:
    pipeline = make_pipeline(
        FunctionTransformer(fitted_model.predict_proba), ProbabilityCalibrator(classes=fitted_model.classes_)
    )
    pipeline.fit(DIGITS[600:1200], NAMES[DIGIT[600:1200]])
    test, truth = DIGITS[1200:], NAMES[DIGIT[1200:]]
    before, after = (log_loss(truth, model.predict_proba(test)) for model in (fitted_model, pipeline))
    assert after < before - 0.3  # naive Bayes is over-confident
    assert pipeline.classes_.tolist() == sorted(NAMES)
    assert pipeline.predict(test).tolist() == fitted_model.predict(test).tolist()
    for twin in (pickle.loads(pickle.dumps(pipeline)), copy.deepcopy(pipeline)):
        np.testing.assert_array_equal(twin.predict_proba(test), pipeline.predict_proba(test))
    prefit = StackingClassifier(
        [("model", fitted_model)], ProbabilityCalibrator(), cv="prefit", stack_method="predict_proba"
    )
    prefit.fit(DIGITS[600:1200], NAMES[DIGIT[600:1200]])
    np.testing.assert_array_equal(prefit.predict_proba(test), pipeline.predict_proba(test))
    assert prefit.predict(test).tolist() == pipeline.predict(test).tolist()


def test_a_class_without_calibration_samples_keeps_its_column(fitted_model: Any) -> None:
    kept = (DIGIT != 4) & (np.arange(len(DIGIT)) >= 600)
    probs, labels = fitted_model.predict_proba(DIGITS[kept]), NAMES[DIGIT[kept]]
    with pytest.raises(ValueError, match=r"for 10 classes, but y has the 9 labels .* pass classes="):
        ProbabilityCalibrator().fit(probs, labels)
    wrapped = ProbabilityCalibrator(classes=fitted_model.classes_).fit(probs, labels)
    numbers = np.searchsorted(fitted_model.classes_, labels)
    direct = TemperatureScaling().fit(probs, numbers, input="probs")
    np.testing.assert_array_equal(wrapped.predict_proba(probs), direct(probs, input="probs").softmax(1).numpy())


@pytest.mark.parametrize("binary", [False, True])
def test_the_temperature_is_that_of_scikit_learn(binary: bool) -> None:
    features, labels = load_breast_cancer(return_X_y=True) if binary else (DIGITS, DIGIT)
    features = features / features.max(0)
    model = digit_model().fit(features[:200], labels[:200])
    train, test = features[200:400], features[400:]
    peer = CalibratedClassifierCV(FrozenEstimator(model), method="temperature").fit(train, labels[200:400])
    ours = make_pipeline(FunctionTransformer(model.predict_proba), ProbabilityCalibrator())
    ours.fit(train, labels[200:400])
    np.testing.assert_allclose(ours.predict_proba(test), peer.predict_proba(test), atol=1e-5)
    assert abs(ours.predict_proba(test) - model.predict_proba(test)).max() > 0.01


def test_a_stack_fits_it_to_out_of_fold_predictions() -> None:
    features, labels = DIGITS[:500], NAMES[DIGIT[:500]]
    folds = StratifiedKFold(3)
    stack = StackingClassifier(
        [("model", GaussianNB())], ProbabilityCalibrator("ets"), cv=folds, stack_method="predict_proba"
    ).fit(features, labels)
    out_of_fold = cross_val_predict(GaussianNB(), features, labels, cv=folds, method="predict_proba")
    calibrator = ProbabilityCalibrator("ets").fit(out_of_fold, labels)
    model = GaussianNB().fit(features, labels)
    expected = calibrator.predict_proba(model.predict_proba(DIGITS[500:]))
    np.testing.assert_allclose(stack.predict_proba(DIGITS[500:]), expected, rtol=1e-12)
    assert stack.predict(DIGITS[500:]).tolist() == calibrator.classes_[expected.argmax(1)].tolist()
    grid = {"final_estimator__method": ["temperature", "vector"]}
    search = GridSearchCV(stack, grid, scoring="neg_log_loss", cv=2).fit(features, labels)
    assert len(set(search.cv_results_["mean_test_score"])) == 2


def test_two_classes_take_one_column_or_one_score() -> None:
    features, target = load_breast_cancer(return_X_y=True)
    labels = np.array(["no", "yes"])[target]
    model = LogisticRegression(max_iter=5000).fit(features[:100, :5], labels[:100])
    rest, truth = features[100:, :5], labels[100:]
    probs, scores = model.predict_proba(rest), model.decision_function(rest)
    expected = ProbabilityCalibrator().fit(probs, truth).predict_proba(probs)
    inputs = [(probs[:, 1], "probs"), (probs[:, 1:], "probs"), (scores, "logits"), (scores[:, None], "logits")]
    for values, kind in inputs:
        wrapped = ProbabilityCalibrator(input=kind).fit(values, truth)
        np.testing.assert_allclose(wrapped.predict_proba(values), expected, atol=1e-4)
        assert wrapped.classes_.tolist() == ["no", "yes"]


def test_logits_are_taken_as_such() -> None:
    direct = make_calibrator("vector").fit(LOGITS, TARGET, input="logits")
    wrapped = ProbabilityCalibrator("vector", input="logits").fit(LOGITS, TARGET)
    np.testing.assert_array_equal(wrapped.predict_proba(LOGITS), direct(LOGITS).softmax(1).numpy())


def test_a_given_calibrator_is_copied() -> None:
    given = TemperatureScaling("ece", num_bins=5)
    wrapped = clone(ProbabilityCalibrator(given)).fit(PROBS, TARGET)
    assert not given.is_fitted
    assert wrapped.calibrator_.arguments == given.arguments
    assert isinstance(wrapped.predict_proba(PROBS), np.ndarray)


def test_the_fitted_calibrator_can_be_saved_with_its_class_names(tmp_path: Path) -> None:
    wrapped = ProbabilityCalibrator("vector").fit(PROBS, np.array(["ant", "bee", "cat"])[TARGET])
    save_calibrator(wrapped.calibrator_, tmp_path / "cal.npz")
    loaded = load_calibrator(tmp_path / "cal.npz")
    assert loaded.class_names == ("ant", "bee", "cat")
    assert torch.equal(loaded(PROBS, input="probs"), wrapped.calibrator_(PROBS, input="probs"))
    assert ProbabilityCalibrator().fit(PROBS, TARGET).calibrator_.class_names is None


def test_few_samples_give_a_warning() -> None:
    with pytest.warns(UserWarning, match="fitted to 10 samples is mostly noise"):
        ProbabilityCalibrator().fit(PROBS[:10], TARGET[:10])


@pytest.mark.parametrize(
    ("options", "values", "labels", "message"),
    [
        ({}, 2 * PROBS, TARGET, "must sum to 1"),
        ({}, LOGITS, TARGET, "probabilities must"),
        ({"method": "temprature"}, PROBS, TARGET, "calibrator.*'temprature'"),
        ({"method": TemperatureScaling}, PROBS, TARGET, "name of dualfocal.CALIBRATORS or a Calibrator"),
        ({"input": "prob"}, PROBS, TARGET, "input must be one of 'logits', 'probs', got 'prob'"),
        ({"classes": [0, 1]}, PROBS, TARGET, "classes must be 3 different labels.* got 0, 1"),
        ({"classes": [0, 1, 1]}, PROBS, TARGET, "classes must be 3 different labels.* got 0, 1, 1"),
        ({"classes": [0, 1, 3]}, PROBS, TARGET, "y has the label 2 at [0-9]+, which is none of 0, 1, 3"),
        ({}, PROBS, TARGET[:-1], "inconsistent numbers of samples"),
        ({}, PROBS, PROBS[:, 0], "Unknown label type"),
    ],
)
def test_an_error_names_the_value_and_the_rule(options: dict[str, Any], values: Any, labels: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ProbabilityCalibrator(**options).fit(values, labels)


def test_other_columns_than_those_of_the_fit_are_an_error() -> None:
    with pytest.raises(NotFittedError):
        ProbabilityCalibrator().predict_proba(PROBS)
    with pytest.raises(ValueError, match="X has 1 columns, but this calibrator was fitted on 3"):
        ProbabilityCalibrator().fit(PROBS, TARGET).predict_proba(PROBS[:, 0])
