"""Calibrated probabilities in MAPIE: the lines of docs/conformal.md, with the coverage that conformal sets promise."""

import numpy as np
import pytest

from dualfocal.integrations.sklearn import ProbabilityCalibrator

classification = pytest.importorskip("mapie.classification")


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_sets_of_calibrated_probabilities_cover(level, method):
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((9000, 6))
    probs = np.exp(logits - logits.max(1, keepdims=True))
    target = (probs.cumsum(1) / probs.sum(1, keepdims=True) <= rng.random((9000, 1))).sum(1)
    logits *= 3  # an over-confident model
    fit, conformalize, test = slice(0, 1000), slice(1000, 5000), slice(5000, 9000)
    calibrator = ProbabilityCalibrator(method, input="logits").fit(logits[fit], target[fit])
    conformal = classification.SplitConformalClassifier(calibrator, confidence_level=level)
    prediction, sets = conformal.conformalize(logits[conformalize], target[conformalize]).predict_set(logits[test])
    assert sets.shape == (4000, 6, 1)
    assert (prediction == calibrator.predict(logits[test])).all()
    # The coverage of the sets of 4000 samples varies, and so does their measured coverage: four standard deviations.
    tolerance = 4 * np.sqrt(2 * level * (1 - level) / 4000)
    assert sets[np.arange(4000), target[test], 0].mean() == pytest.approx(level, abs=tolerance)
    assert 1 < sets.sum(1).mean() < 6
