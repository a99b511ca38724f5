"""Lists, data frames and texts give the same numbers as tensors, in every public function."""

import numpy as np
import pytest
import torch
from case_loops import for_each

from dualfocal import TemperatureScaling, compare_calibrators
from dualfocal import metrics as M
from dualfocal.metrics import evaluate_groups

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(60, 3, generator=GENERATOR, dtype=torch.float64)
TARGET = torch.multinomial(LOGITS.softmax(1), 1, generator=GENERATOR)[:, 0]
NAMES = ("emu", "cat", "dog")  # not sorted: an order of our own would be noticed
TEXTS = [NAMES[k] for k in TARGET.tolist()]
FUNCTIONS = ("ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "nll", "brier_score", "error_rate", "aurc")


class Frame:
    """Has what data frames of pandas and polars have in common."""

    columns = NAMES

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def to_numpy(self) -> np.ndarray:
        return self.values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values


class Convertible:
    """Has only numpy's protocol."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values


VALUES = {
    "list": LOGITS.tolist(),
    "tuple": tuple(map(tuple, LOGITS.tolist())),
    "frame": Frame(LOGITS.numpy()),
    "convertible": Convertible(LOGITS.numpy()),
}


@for_each(name=FUNCTIONS, kind=VALUES)
def test_lists_and_frames(name, kind) -> None:
    metric = getattr(M, name)
    assert metric(VALUES[kind], TARGET.tolist()) == metric(LOGITS, TARGET)


def test_texts_go_by_the_columns_of_a_frame() -> None:
    expected = M.evaluate(LOGITS, TARGET).to_dict()
    for texts in (TEXTS, np.array(TEXTS), np.array(TEXTS, object), np.array(TEXTS, np.dtypes.StringDType())):
        assert M.evaluate(Frame(LOGITS.numpy()), texts).to_dict() == expected
        assert M.evaluate(LOGITS, texts, class_names=NAMES).to_dict() == expected
        assert M.ece(Frame(LOGITS.numpy()), texts) == expected["ece"]
    with pytest.raises(ValueError, match=r"target 'fox' at 1 is none of the classes \(emu, cat, dog\)"):
        M.evaluate(LOGITS, ["emu", "fox"] * 30, class_names=NAMES)


def test_texts_in_other_functions() -> None:
    frame = Frame(LOGITS.numpy())
    other = Frame(LOGITS.numpy() / 2)
    expected = M.compare(LOGITS, LOGITS / 2, TARGET).to_dict()
    assert M.compare(frame, other, TEXTS).to_dict() == expected
    assert M.compare(LOGITS, LOGITS / 2, TEXTS, class_names=NAMES).to_dict() == expected
    temperature = float(TemperatureScaling().fit(LOGITS, TARGET).temperature)
    assert float(TemperatureScaling().fit(frame, TEXTS).temperature) == temperature
    fitted = TemperatureScaling().fit(LOGITS.tolist(), TEXTS, class_names=NAMES)
    assert float(fitted.temperature) == temperature
    assert torch.equal(fitted(LOGITS.tolist()), fitted(LOGITS))
    scores = [compare_calibrators(a, b, ["temperature"]).to_dict() for a, b in ((LOGITS, TARGET), (frame, TEXTS))]
    assert scores[0] == scores[1]
    groups = np.arange(60) % 2
    one, two = (evaluate_groups(a, b, groups=groups)[0].to_dict() for a, b in ((LOGITS, TARGET), (frame, TEXTS)))
    assert one == two
    metric = M.ExpectedCalibrationError()
    metric.update(frame, TEXTS)
    assert float(metric.compute()) == pytest.approx(M.ece(LOGITS, TARGET))


@pytest.mark.parametrize(
    ("values", "names", "message"),
    [
        (LOGITS, ("emu", "emu", "dog"), "3 distinct names, one per class, got emu, emu, dog"),
        (LOGITS, ("emu", "cat"), "3 distinct names, one per class, got emu, cat"),
        (Frame(LOGITS.numpy()), ("dog", "cat", "emu"), "but the columns of the predictions are emu, cat, dog"),
    ],
)
def test_names_of_classes_are_checked(values, names, message) -> None:
    for labels in (TARGET, ["dog"] * 60):
        with pytest.raises(ValueError, match=message):
            M.evaluate(values, labels, class_names=names)
        with pytest.raises(ValueError, match=message):
            TemperatureScaling().fit(values, labels, class_names=names)


def test_names_may_differ_from_those_of_the_columns() -> None:
    names = ("a", "b", "c")
    expected = M.nll(LOGITS, TARGET)
    assert M.evaluate(Frame(LOGITS.numpy()), [names[k] for k in TARGET], class_names=names).nll == expected


def test_whole_numbers_in_a_list_are_logits() -> None:
    assert M.ece([[1, 2], [5, 0]], [0, 0]) == M.ece(torch.tensor([[1.0, 2.0], [5.0, 0.0]]), torch.tensor([0, 0]))
