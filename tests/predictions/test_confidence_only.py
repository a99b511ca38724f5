"""Only the predicted class and its confidence: what they allow is what all probabilities give."""

import json

import numpy as np
import pytest
import torch

from dualfocal.cli import main
from dualfocal.metrics import Evaluation, evaluate, evaluate_groups
from dualfocal.predictions import load_predictions

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(400, 4, generator=GENERATOR, dtype=torch.float64)
TARGET = torch.multinomial(LOGITS.div(1.5).softmax(1), 1, generator=GENERATOR)[:, 0]
CONFIDENCE, PREDICTED = LOGITS.softmax(1).max(1)
NAMES = np.array(["emu", "cat", "dog", "fox"])
LEFT_OUT = {"nll", "brier", "rbs", "brier_calibration", "brier_refinement", "classwise_ece"}


@pytest.fixture
def table(text_file):
    def write(header: str = "prediction,confidence,label", names: np.ndarray = NAMES, change: float = 0.0) -> str:
        rows = zip(names[PREDICTED], (CONFIDENCE + change).tolist(), names[TARGET], strict=True)
        return text_file("\n".join([header, *(f"{a},{b!r},{c}" for a, b, c in rows)]))

    return write


def test_the_numbers_are_those_of_all_probabilities():
    full = evaluate(LOGITS, TARGET, inference=True)
    part = evaluate(CONFIDENCE, (PREDICTED == TARGET).long(), input="confidence", inference=True)
    one, other = full.to_dict(), part.to_dict()
    for name in ("error", "aurc", "ece", "adaptive_ece", "mce", "debiased_ece", "confidence", "accuracy"):
        assert other[name] == pytest.approx(one[name], abs=1e-9), name
    assert {name for name, value in other.items() if value is None and name != "convention"} == LEFT_OUT
    assert part.inference.p_value == pytest.approx(full.inference.p_value, abs=0.02)
    assert part.inference.debiased_ece == pytest.approx(full.inference.debiased_ece, abs=1e-6)
    assert set(full.inference.floors) - set(part.inference.floors) == {"classwise_ece"}
    assert "need all probabilities" in part.verdict()
    assert "Over-confident" in part.verdict()
    headings = [row[0] for row in part.table().rows]
    assert not any("NLL" in text or "Brier" in text or "classwise" in text for text in headings)
    assert Evaluation.from_dict(other).to_dict() == other
    assert str(Evaluation.from_dict(other)) == str(part)


@pytest.mark.parametrize(
    "header",
    ["prediction,confidence,label", "y_pred,max_prob,y_true", "predicted_class,score,target", "pred,conf,answer"],
)
def test_usual_names(table, header):
    data = load_predictions(table(header))
    assert (data.input, data.class_names) == ("confidence", None)
    assert data.values.tolist() == CONFIDENCE.tolist()
    assert data.target.tolist() == (PREDICTED == TARGET).long().tolist()


def test_names_by_options_and_other_kinds_of_labels(table, npz, refusal):
    path = table("a,b,c")
    assert "no column with a usual name" in refusal(path)
    data = load_predictions(path, prediction="a", confidence="b", target="c")
    assert data.target.tolist() == (PREDICTED == TARGET).long().tolist()
    assert "--prediction and --confidence together" in refusal(path, prediction="a", target="c")
    large = np.array([1234567, 1234568, 2, 3])
    assert load_predictions(table(names=large)).target.tolist() == data.target.tolist()
    arrays = {"pred": PREDICTED.numpy().astype(float), "conf": CONFIDENCE.numpy(), "y": TARGET.numpy()}
    assert load_predictions(npz(**arrays)).target.tolist() == data.target.tolist()
    arrays["y"] = np.where(np.arange(400) < 3, -100, arrays["y"])
    assert load_predictions(npz(**arrays)).target.tolist()[:3] == [-100] * 3
    assert "no value in common" in refusal(npz(**arrays | {"y": NAMES[TARGET]}))
    assert "got 400 of 'conf', 399 of 'pred'" in refusal(npz(**arrays | {"pred": arrays["pred"][1:]}))


@pytest.mark.parametrize("words", [("1", "0"), ("True", "False"), ("yes", "No"), ("1.0", "0.0"), ("correct", "wrong")])
@pytest.mark.parametrize("header", ["confidence,correct", "conf,is_correct", "score,right"])
def test_confidence_and_correct(text_file, header, words):
    right = (PREDICTED == TARGET).tolist()
    rows = [f"{confidence!r},{words[not hit]}" for confidence, hit in zip(CONFIDENCE.tolist(), right, strict=True)]
    data = load_predictions(text_file("\n".join([header, *rows])))
    assert (data.input, data.class_names) == ("confidence", None)
    assert data.target.tolist() == list(map(int, right))
    assert "which say whether predictions are right" in data.taken


def test_confidence_and_correct_by_options_and_beside_other_columns(text_file, npz, refusal):
    path = text_file("sure,ok,label\n0.9,yes,a\n0.6,no,b\n")
    assert load_predictions(path, confidence="sure", target="ok").target.tolist() == [1, 0]
    assert "no labels with a usual name" in refusal(text_file("sure,ok\n0.9,1\n"), confidence="sure")
    both = "prediction,confidence,label,correct\na,0.9,b,1\nb,0.6,b,1\n"
    assert load_predictions(text_file(both)).target.tolist() == [0, 1]  # the label decides
    assert load_predictions(text_file(both.replace("label", "note"))).target.tolist() == [1, 1]
    arrays = {"confidence": np.array([0.9, 0.6, 0.7]), "correct": np.array([1, -100, 0])}
    assert load_predictions(npz(**arrays)).target.tolist() == [1, -100, 0]
    message = refusal(text_file("confidence,correct\n0.9,1\n0.8,maybe\n"))
    assert "'correct' must say whether each prediction is right" in message
    assert "'maybe' in row 1" in message
    assert "--confidence without --logits and --probs" in refusal(path, confidence="sure", probs="sure")


def test_groups_of_confidences(npz, capsys):
    region = np.array(["north", "south"])[np.arange(400) % 2]
    file = npz(pred=PREDICTED.numpy(), conf=CONFIDENCE.numpy(), y=TARGET.numpy(), region=region)
    with pytest.raises(SystemExit):
        main(["evaluate", str(file), "--group-by", "region", "--json"])
    groups = json.loads(capsys.readouterr().out)["files"][0]["groups"]
    expected = evaluate_groups(CONFIDENCE, (PREDICTED == TARGET).long(), groups=region, input="confidence")
    assert groups == json.loads(json.dumps([one.to_dict() for one in expected]))


def test_the_score_of_class_1_is_not_the_confidence_of_the_predicted_class(text_file, refusal):
    path = text_file("prediction,score,label\n0,0.25,0\n1,0.75,1\n")
    assert "--probs score --binary positive" in refusal(path)
    assert load_predictions(path, prediction="prediction", confidence="score").target.tolist() == [1, 1]


def test_commands(table, capsys, tmp_path):
    path = str(table())
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", path, "--json"])
    result = json.loads(capsys.readouterr().out)["files"][0]
    assert (ended.value.code, result["confidence_only"], result["nll"]) == (0, True, None)
    assert result["ece"] == pytest.approx(evaluate(LOGITS, TARGET).ece, abs=1e-9)
    refused = [
        ["compare", path, path],
        ["calibrate", path, "--out", str(tmp_path / "c.npz")],
        ["evaluate", path, "--calibrate", "temperature"],
        ["report", path, "--out", str(tmp_path / "r.html")],
    ]
    for command in refused:
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert "this needs the probabilities of all classes" in capsys.readouterr().err
