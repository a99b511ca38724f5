"""The search for the temperature with the lowest ECE, in single precision and interpolated where that is enough."""

import pytest
from case_loops import for_each
from samples import draw_logits

from dualfocal.calibrators import TemperatureScaling
from dualfocal.metrics import ece


@for_each(spread=[0.3, 4.0, 30.0], num_classes=[3, 70, 400])
def test_no_temperature_of_the_grid_has_a_lower_ece(num_classes, spread) -> None:
    logits, target = draw_logits(1500, num_classes, scale=spread, overconfidence=2)
    temperature = TemperatureScaling("ece").fit(logits, target).temperature.item()
    errors = {i: ece(logits.double() / (i / 10), target) for i in range(1, 101)}
    assert temperature == pytest.approx(min(errors, key=errors.__getitem__) / 10)
