"""Calibrators by name."""

from collections.abc import Callable
from functools import partial

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.binning import BayesianBinning, HistogramBinning, IsotonicCalibration
from dualfocal.calibrators.chain import Chain
from dualfocal.calibrators.one_vs_rest import BetaCalibration, PlattScaling
from dualfocal.calibrators.scaling import DirichletCalibration, MatrixScaling, VectorScaling
from dualfocal.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling

# Simple ones first: where two do equally well, the first is to be preferred.
CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    "temperature": TemperatureScaling,
    "temperature_ece": partial(TemperatureScaling, "ece"),
    "ets": EnsembleTemperatureScaling,
    "vector": VectorScaling,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "histogram": HistogramBinning,
    "isotonic": IsotonicCalibration,
    "bbq": BayesianBinning,
    "dirichlet": DirichletCalibration,
    "matrix": MatrixScaling,
}


def make_calibrator(name: str, *, force: bool = False) -> Calibrator:
    """An unfitted calibrator by its name in ``CALIBRATORS``; several joined by ``+`` make a :class:`Chain`.

    ``force`` is for those that refuse few samples, matrix and Dirichlet.

    >>> make_calibrator("vector")
    VectorScaling(prior=None)
    >>> len(make_calibrator("temperature+isotonic"))
    2
    """
    names = name.split("+")
    for one in names:
        if one not in CALIBRATORS:
            raise ValueError(f"there is no calibrator {one!r}; there are: {', '.join(CALIBRATORS)}")
    steps = [CALIBRATORS[one]() for one in names]
    for step in steps:
        if isinstance(step, MatrixScaling):
            step.force = force
    return steps[0] if len(steps) == 1 else Chain(*steps)


def parse_methods(text: str) -> tuple[str, ...]:
    """Names of calibrators, from ``"none"``, ``"all"`` or names separated by commas.

    >>> parse_methods("temperature, temperature+isotonic")
    ('temperature', 'temperature+isotonic')
    >>> parse_methods("none")
    ()
    """
    if text in ("none", "all"):
        return () if text == "none" else tuple(CALIBRATORS)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        make_calibrator(name)
        if names.count(name) > 1:
            raise ValueError(f"calibrators must differ, {name} is given more than once")
    return names
