"""A metric that is added to the registry: one function, one line, and everything shows it."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
from samples import draw_logits

from dualfocal import metrics as M
from dualfocal.metrics import METRICS, Metric
from dualfocal.report import write_report


@pytest.fixture
def added(monkeypatch):
    """The mean absolute residual, by another name."""
    metric = Metric("residual", meaning="mean of |confidence - correct|", compute=mean_residual)
    monkeypatch.setitem(METRICS, "residual", metric)
    return metric


def mean_residual(stats):
    return stats.mean(np.abs(stats.confidence - stats.correct))


def test_an_added_metric_is_everywhere(added, tmp_path):
    logits, target = draw_logits(300, 3)
    before = {key: value for key, value in M.evaluate(logits, target).to_dict().items() if key != "residual"}
    result = M.evaluate(logits, target, inference=True)
    confidence, predicted = logits.softmax(1).max(1)
    expected = float((confidence - (predicted == target).double()).abs().mean())
    assert result.residual == pytest.approx(expected, abs=1e-7)
    assert result.table().rows[list(METRICS).index("residual")][:2] == ["residual [%]", added.text(result.residual)]
    assert result.scalars("val/")["val/residual"] == result.residual
    content = json.loads(json.dumps(result.to_dict()))
    assert content["residual"] == result.residual
    for again in (M.Evaluation.from_dict(content), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert again.residual == result.residual
    assert math.isnan(M.Evaluation.from_dict(before).residual)  # stored before there was such a metric
    assert "residual" not in M.compare(logits, 0.5 * logits, target).differences
    write_report({"m": (logits, target)}, tmp_path / "page.html", calibrators=())
    assert "residual [%]" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_sums_do_not_know_an_added_metric(added):
    result = M.CalibrationSums.from_predictions(*draw_logits(300, 3)).evaluate()
    assert math.isnan(result.residual)
    assert "residual" not in result.scalars()
    assert "residual" not in str(result)


def test_other_names_are_no_metrics():
    with pytest.raises(AttributeError, match="'Evaluation' object has no attribute 'residual'"):
        _ = M.evaluate(*draw_logits(300, 3)).residual
