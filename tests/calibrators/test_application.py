"""apply_calibrator: values keep their kind, labels give scores, bad values are errors."""

import pytest
import torch
from calibrator_cases import sample
from case_loops import for_each

from dualfocal.calibrators import (
    Note,
    TemperatureScaling,
    VectorScaling,
    apply_calibrator,
    load_calibrator,
    save_calibrator,
)
from dualfocal.metrics import evaluate

LOGITS, TARGET = sample()
NEW, NEW_TARGET = sample(100, seed=3)


@for_each(input=["logits", "probs"])
def test_values_keep_their_kind(input) -> None:
    given, new = (LOGITS, NEW) if input == "logits" else (LOGITS.softmax(1), NEW.softmax(1))
    calibrator = VectorScaling().fit(given, TARGET, input=input)
    applied = apply_calibrator(calibrator, new, NEW_TARGET, input=input)
    logits = calibrator(new, input=input)
    assert torch.equal(applied.values, logits if input == "logits" else logits.softmax(1))
    assert applied.num_samples == 100
    assert applied.argmax_changed == int((logits.argmax(1) != new.argmax(1)).sum())
    for name, values in (("before", new), ("after", applied.values)):
        assert applied.scores[name].to_dict() == evaluate(values, NEW_TARGET, input=input).to_dict()


def test_the_data_of_the_fit_are_known_again_but_for_ignored_samples() -> None:
    target = TARGET.clone()
    target[:40] = 9
    calibrator = TemperatureScaling().fit(LOGITS, target, ignore_index=9)
    assert calibrator.fitted_on.matches(LOGITS, target, input="logits", ignore_index=9)
    assert calibrator.fitted_on.matches(LOGITS[40:], None, input="logits")
    assert not calibrator.fitted_on.matches(LOGITS, None, input="logits")
    assert not calibrator.fitted_on.matches(LOGITS[40:].softmax(1), None, input="probs")
    assert not apply_calibrator(calibrator, NEW, NEW_TARGET).on_fit_data


def test_labels_that_do_not_fit_are_left_out_or_an_error() -> None:
    calibrator = TemperatureScaling().fit(LOGITS, TARGET)
    applied = apply_calibrator(calibrator, NEW, NEW_TARGET + 1)
    assert (applied.target, applied.scores) == (None, {})
    assert "out of range" in applied.unusable_labels
    with pytest.raises(IndexError, match="out of range"):
        apply_calibrator(calibrator, NEW, NEW_TARGET + 1, require_labels=True)


def test_notes_read_the_same_when_they_come_back_from_disk(tmp_path) -> None:
    calibrator = VectorScaling().fit(LOGITS, TARGET.clamp(max=2))
    [note] = calibrator.report.notes
    assert note == Note("absent_classes", count=1, total=4, values=(3,))
    save_calibrator(calibrator, tmp_path / "c.npz")
    [back] = load_calibrator(tmp_path / "c.npz").report.notes
    assert (back.kind, str(back)) == ("saved", str(note))
    assert back == note
