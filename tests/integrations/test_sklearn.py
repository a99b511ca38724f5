"""scikit-learn, the slow part: the page docs/sklearn.md, the example with files, and data frames."""

import re
import runpy
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from dualfocal import evaluate, load_calibrator
from dualfocal.integrations.sklearn import ProbabilityCalibrator, ReliabilityDisplay
from dualfocal.predictions import load_predictions

ROOT = Path(__file__).parents[2]


def test_the_page_runs_and_its_numbers_are_those_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    text = (ROOT / "docs" / "sklearn.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(block, names)
    matplotlib.pyplot.close("all")
    printed = re.findall(r"NLL (\d\.\d+)", capsys.readouterr().out)
    shown = re.findall(r"NLL (\d\.\d+)", text)
    assert len(printed) == 4
    np.testing.assert_allclose(np.array(printed, float), np.array(shown, float), atol=0.02)  # other platforms round
    assert (tmp_path / "sklearn-reliability.png").stat().st_size > 10_000
    assert load_calibrator(tmp_path / "cal.npz").class_names == tuple(sorted(names["names"]))


def test_the_example_with_files_calibrates_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "other_frameworks.py"))["main"]
    main(tmp_path)
    output = capsys.readouterr().out
    assert "Over-confident" in output
    assert "Better than without the calibrator" in output
    calibrated = load_predictions(tmp_path / "calibrated.npz")
    original = load_predictions(tmp_path / "test.npz")
    assert calibrated.class_names == original.class_names == tuple(sorted(original.class_names or ()))
    assert (calibrated.target == original.target).all()
    assert "calibrated" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_columns_of_a_data_frame_name_the_classes() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 300)
    columns = ["wren", "crow", "emu"]  # not sorted
    labels = np.array(columns)[(rng.random((300, 1)) > probs.cumsum(1)).sum(1)]
    frame = pandas.DataFrame(probs, columns=columns)
    expected = ProbabilityCalibrator("vector", classes=columns).fit(probs, labels)
    for y in (labels, pandas.Series(labels), pandas.Series(labels).astype("category")):
        by_name = ProbabilityCalibrator("vector").fit(frame, y)
        assert by_name.classes_.tolist() == columns
        np.testing.assert_allclose(by_name.predict_proba(frame), expected.predict_proba(probs), rtol=1e-12)
        display = ReliabilityDisplay.from_predictions(y, frame, inference=False)
        assert display.evaluation.ece == evaluate(frame, labels, input="probs").ece
    assert by_name.set_output(transform="pandas").transform(frame).columns.tolist() == columns
    with pytest.raises(ValueError, match="feature names should match"):
        by_name.predict_proba(frame[sorted(columns)])
    few = labels != "emu"
    assert ProbabilityCalibrator().fit(frame[few], labels[few]).classes_.tolist() == columns
    matplotlib.pyplot.close("all")
