"""Calibrators by name, and chains of calibrators."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._fit_report import Fit
from dualfocal.calibrators.binning import BayesianBinning, HistogramBinning, IsotonicCalibration
from dualfocal.calibrators.one_vs_rest import BetaCalibration, PlattScaling
from dualfocal.calibrators.scaling import DirichletCalibration, MatrixScaling, VectorScaling
from dualfocal.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling
from dualfocal.checks import check_known
from dualfocal.metrics.samples import Samples

# Simplest first: of two methods that score equally well, the first is recommended.
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
    """Create an unfitted calibrator.

    Args:
        name: a key of ``CALIBRATORS``, or several of them joined by ``+`` for a :class:`Chain`.
        force: let matrix and Dirichlet calibration fit with fewer samples than parameters.

    Raises:
        ValueError: the name is unknown.

    >>> make_calibrator("vector")
    VectorScaling(prior=None)
    >>> len(make_calibrator("temperature+isotonic"))
    2
    """
    parts = name.split("+")
    for part in parts:
        check_known("calibrator", part, CALIBRATORS)
    steps = [CALIBRATORS[part]() for part in parts]
    for step in steps:
        if isinstance(step, MatrixScaling):
            step.force = force
    return steps[0] if len(steps) == 1 else Chain(*steps)


def parse_methods(text: str) -> tuple[str, ...]:
    """Parse ``"none"``, ``"all"`` or comma-separated calibrator names into a tuple of names.

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
            raise ValueError(f"each calibrator may be given only once, got {name} {names.count(name)} times")
    return names


class Chain(Calibrator):
    """Apply several calibrators in sequence. Each one is fitted on the output of the previous ones.

    All steps are fitted on the same data, so later steps can overfit;
    :func:`~dualfocal.calibrators.compare_calibrators` shows whether they help on held-out data.

    Args:
        steps: unfitted calibrators, in the order of application.

    >>> import torch
    >>> from dualfocal.calibrators import IsotonicCalibration, TemperatureScaling
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(2000, 3, generator=generator)
    >>> target = torch.multinomial(logits.div(3).softmax(1), 1, generator=generator)[:, 0]
    >>> chain = Chain(TemperatureScaling(), IsotonicCalibration()).fit(logits, target)
    >>> torch.equal(chain(logits), chain[1](chain[0](logits)))
    True
    """

    learned = ()

    def __init__(self, *steps: Calibrator) -> None:
        if others := [type(step).__name__ for step in steps if not isinstance(step, Calibrator)]:
            raise TypeError(f"Chain takes calibrators, got {others[0]}")
        if not steps or len(set(steps)) < len(steps):
            raise ValueError("Chain needs at least one calibrator, and each object only once")
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.keeps_argmax = all(step.keeps_argmax for step in steps)
        self.offset = next((step.offset for step in steps if step.offset != "kept"), "kept")

    def __getitem__(self, index: int) -> Calibrator:
        step = self.steps[index]
        assert isinstance(step, Calibrator)
        return step

    def __iter__(self) -> Iterator[Calibrator]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def is_fitted(self) -> bool:
        """Whether all steps are fitted."""
        return all(step.is_fitted for step in self)

    @property
    def num_classes(self) -> int | None:
        """Number of classes of the first step that depends on it; None if no step does."""
        return next((step.num_classes for step in self if step.num_classes is not None), None)

    @property
    def arguments(self) -> dict[str, Any]:
        """Empty: ``repr`` shows the steps instead."""
        return {}

    def _fit(self, samples: Samples) -> Fit:
        steps = [module for module in self.modules() if isinstance(module, Calibrator)]
        before = [(step, dict(step._buffers), step.report, step.fitted_on) for step in steps]
        logits = samples.values
        try:
            for step in self:
                logits = step.fit(logits, samples.target, input="logits")(logits, input="logits")
        except BaseException:
            for step, buffers, report, fitted_on in before:
                step._buffers.update(buffers)
                step.report, step.fitted_on = report, fitted_on
            raise
        reports = [step.report for step in self if step.report is not None]
        iterations = [report.iterations for report in reports if report.iterations is not None]
        return Fit(
            {},
            iterations=sum(iterations) if iterations else None,
            gradient=max((report.gradient for report in reports if report.gradient is not None), default=None),
            converged=all(report.converged for report in reports),
            notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        )

    def _map(self, logits: Tensor) -> Tensor:
        for step in self:
            logits = step._map(logits)
        return logits

    def _sensitivity(self, logits: Tensor, margin: float) -> Tensor:
        total = super()._sensitivity(logits, margin)
        for step in self:
            total = total + step._sensitivity(logits, margin)
            logits = step._map(logits)
        return total
