"""Calibrators of multi-label predictions: one map per label, from its logit to a calibrated logit.

The logit of a label is its log-odds: the sigmoid is its probability. There is no normalisation over labels.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dualfocal._tensors import check_number, compute_dtype, wide_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._binary_logistic import MOST_START, fit_classes
from dualfocal.calibrators._fit_report import Fit, FitReport
from dualfocal.calibrators._newton import Minimum
from dualfocal.calibrators._tiles import tile_slices
from dualfocal.calibrators.binning import FLOOR, column_of, interpolate, isotonic_column, pad_rows
from dualfocal.calibrators.inputs import (
    FittedOn,
    class_columns,
    digest,
    impossible_labels,
    log_probs,
    names_of_fit,
    zero_values,
)
from dualfocal.calibrators.notes import Note
from dualfocal.checks import check_known
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.multilabel.entries import Entries, as_entries
from dualfocal.metrics.samples import SampleOptions, Samples
from dualfocal.metrics.scan import scan

FEW = 10  # positive or negative samples of a label; with fewer, its map is mostly the prior
MANY = 50  # logits; fewer can all lie in [0, 1] by chance
LEAST_SLOPE = 1e-4  # of a standardised logit, so that temperatures are finite


@dataclass(frozen=True)
class MultilabelFitReport(FitReport):
    """Summary of a fit to multi-label predictions: ``num_classes`` is the number of labels.

    NLL is the mean binary cross-entropy of the entries, ``argmax_changed`` the number of samples with an entry whose
    probability crossed 0.5.
    """

    def __str__(self) -> str:
        text = super().__str__().replace(" classes: NLL", " labels: NLL", 1)
        return text.replace("predicted classes changed", "samples have an entry that crossed 0.5", 1)


class MultilabelCalibrator(Calibrator):
    """A map of each label's logit, learned from held-out data.

    ``fit(logits, target)`` takes ``(N, L)`` logits and a target of 0 and 1, and calling the calibrator applies the map.
    See :class:`~dualfocal.calibrators.Calibrator` for the rest of the contract.
    """

    noun = "labels"
    report_type = MultilabelFitReport

    @abstractmethod
    def _fit_labels(self, z: Tensor, hit: Tensor, keep: Tensor) -> Fit:
        """Learn from logits, whether each label is true, and which entries count, (N, L) each."""

    def _fit(self, samples: Samples) -> Fit:
        raise TypeError(f"{type(self).__name__} needs a target of shape (N, L), not class indices")

    @torch.no_grad()
    def fit(
        self,
        logits: Array | Samples | Entries,
        target: Array | None = None,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Fit the calibrator to held-out predictions (not those of the training data, which are over-confident).

        Args:
            logits: log-odds of each label, ``(N, L)``. The columns of a data frame name the labels.
            target: 0 or 1 for each sample and label, ``(N, L)``; integers, booleans or floats.
            input: ``"logits"`` or ``"probs"``, whichever ``logits`` holds. None means logits, and raises an error if
                all values lie in [0, 1]. Probabilities are converted to log-odds; a probability of 0 or 1 is moved
                inwards by half of the smallest distance of the others, here and in later calls.
            ignore_index: entries with this target are ignored.
            class_names: names of the labels, for error messages.

        Returns:
            The calibrator itself, with a new ``report``.

        Raises:
            ValueError: the data do not fit the method. An earlier fit is kept.
        """
        if isinstance(logits, Entries):
            entries, names = logits, None
        else:
            options: SampleOptions = {"input": input, "ignore_index": ignore_index, "class_names": class_names}
            entries = as_entries(logits, target, options)
            names = None if isinstance(logits, Samples) else names_of_fit(logits, class_names)
        values, keep, hit = entries.values, entries.keep, entries.target == 1
        zeros, impossible = None, list[Note]()
        if entries.input == "probs":
            pooled = entries.pooled()
            zeros = zero_values(pooled)
            impossible = impossible_labels(pooled, zeros)
            nll_before = float(scan(pooled, scores=True).nll.mean())
        z = _log_odds(values, entries.input, zeros).to(wide_dtype(values))
        infinite = keep & ~z.isfinite()
        if bool(infinite.any()):
            row, label = infinite.nonzero()[0].tolist()
            raise ValueError(f"logits must be finite, got -inf in row {row}, label {label}: clamp the logits first")
        z = z.where(keep, 0.0)
        fit = self._fit_labels(z, hit, keep)
        self._store(fit, values.device)
        after = self._apply_rows(z)
        if entries.input == "logits":
            nll_before = float(entry_nll(z, hit)[keep].mean())
        self.report = MultilabelFitReport(
            num_samples=len(values),
            num_classes=values.shape[1],
            nll_before=nll_before,
            nll_after=float(entry_nll(after, hit)[keep].mean()),
            argmax_changed=int((((z > 0) != (after > 0)) & keep).any(1).sum()),
            iterations=fit.iterations,
            gradient=fit.gradient,
            converged=fit.converged,
            notes=(*fit.notes, *_rare_labels(hit & keep, keep), *impossible),
        )
        self.fitted_on, self.class_names = FittedOn(entries.input, zeros, digest(values)), names
        return self

    def forward(self, logits: Array, *, input: str | None = None) -> Tensor:
        """Apply the calibrator.

        Args:
            logits: log-odds or probabilities of each label, ``(N, L)``. The columns of a data frame may have another
                order than ``class_names``.
            input: whether ``logits`` holds ``"logits"`` or ``"probs"``. None means the kind of the fit, and raises an
                error if the values look like the other kind.

        Returns:
            Calibrated logits, ``(N, L)``, float32 or float64; their sigmoid is the calibrated probability. The labels
            have the order of the fit.

        Raises:
            RuntimeError: the calibrator is not fitted.
            ValueError: the values do not fit the calibrator.
        """
        values = class_columns(logits, self.class_names)
        if values.ndim != 2:
            raise ValueError(f"logits must have shape (N, L), one column per label, got {tuple(values.shape)}")
        return super().forward(values, input=input)

    def check_kind(self, kind: str) -> None:
        """Do nothing: the log-odds of a probability are its logit, so that both kinds of input have the same map."""

    def _look_like_probabilities(self, values: Tensor) -> bool:
        return values.numel() >= MANY and bool(((values >= 0) & (values <= 1)).all())

    def _as_rows(self, logits: Tensor, input: str) -> Tensor:
        return _log_odds(logits, input, None if self.fitted_on is None else self.fitted_on.zeros)


class MultilabelTemperature(MultilabelCalibrator):
    r"""Temperature scaling of each label: $q_l = \sigma(z_l / T_l)$, by maximum likelihood.

    The weak Gaussian prior of :class:`~dualfocal.calibrators.PlattScaling` keeps the temperature finite if a label is
    predicted without error, or has no positive samples.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 2, generator=generator)
    >>> target = torch.rand(5000, 2, generator=generator) < logits.sigmoid()
    >>> calibrator = MultilabelTemperature().fit(logits * torch.tensor([1.0, 3.0]), target)
    >>> [round(t, 1) for t in calibrator.temperature.tolist()]
    [1.0, 3.1]
    """

    learned = ("temperature",)
    by_class = "temperature"
    temperature: Tensor  # (L,)

    def _fit_labels(self, z: Tensor, hit: Tensor, keep: Tensor) -> Fit:
        count = keep.sum(0).clamp(min=1)
        scale = _or_one(((z * z).sum(0) / count).sqrt())
        start = scale.clamp(max=MOST_START)[:, None]
        solved = _logistic(lambda part: [z[part] / scale], hit, keep, start, torch.full_like(start, LEAST_SLOPE))
        slope = torch.where(keep.any(0), solved.x[:, 0] / scale, 1.0)
        return Fit({"temperature": 1 / slope}, solved.iterations, solved.gradient, solved.converged)

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits.dtype)


class MultilabelPlatt(MultilabelCalibrator):
    r"""Platt scaling of each label: $\operatorname{logit} q_l = a_l z_l + c_l$ (Platt, 1999), by maximum likelihood.

    The weak Gaussian prior of :class:`~dualfocal.calibrators.PlattScaling` (precision 0.03 on the coefficients of
    standardised logits) keeps the coefficients finite. A label without positive samples gets about the base rate of a
    quarter of a positive sample.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 2, generator=generator) - 1
    >>> target = torch.rand(5000, 2, generator=generator) < logits.sigmoid()
    >>> calibrator = MultilabelPlatt().fit(logits + torch.tensor([0.0, 2.0]), target)  # the second label is too high
    >>> [round(c) for c in calibrator.coefficients[:, 1].tolist()]
    [0, -2]
    """

    learned = ("coefficients",)
    by_class = "coefficients"
    coefficients: Tensor  # (L, 2): slope and intercept

    def _fit_labels(self, z: Tensor, hit: Tensor, keep: Tensor) -> Fit:
        count = keep.sum(0).clamp(min=1)
        mean = z.sum(0) / count
        scale = _or_one((((z - mean) ** 2 * keep).sum(0) / count).sqrt(), mean.abs())
        start = torch.stack([scale.clamp(max=MOST_START), mean.clamp(-MOST_START, MOST_START)], dim=1)
        ones = torch.ones_like(z[:1])
        solved = _logistic(lambda part: [(z[part] - mean) / scale, ones.expand_as(z[part])], hit, keep, start)
        slope = solved.x[:, 0] / scale
        learned = torch.stack([slope, solved.x[:, 1] - slope * mean], dim=1)
        learned[~keep.any(0)] = learned.new_tensor([1.0, 0.0])
        return Fit({"coefficients": learned}, solved.iterations, solved.gradient, solved.converged)

    def _map(self, logits: Tensor) -> Tensor:
        slope, constant = self.coefficients.to(logits.dtype).T
        return torch.addcmul(constant, slope, logits)


class MultilabelIsotonic(MultilabelCalibrator):
    """Isotonic regression of each label on its probability (Zadrozny and Elkan, KDD 2002).

    The map is linear between blocks of equal values, as in scikit-learn.

    Args:
        smoothing: number of pseudo-samples added to each block, distributed like the base rate of the label, so that
            no probability becomes 0 or 1. 0 disables smoothing.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 2, generator=generator)
    >>> target = torch.rand(5000, 2, generator=generator) < logits.sigmoid()
    >>> report = MultilabelIsotonic().fit(3 * logits, target).report
    >>> round(report.nll_before, 1), round(report.nll_after, 1)
    (0.8, 0.6)
    """

    learned = ("knots", "values")
    by_class = "knots"
    knots: Tensor  # (L, M), ascending; short rows are padded
    values: Tensor  # (L, M)

    def __init__(self, *, smoothing: float = 1.0) -> None:
        check_number("smoothing", smoothing)
        super().__init__()
        self.smoothing = smoothing

    def _fit_labels(self, z: Tensor, hit: Tensor, keep: Tensor) -> Fit:
        fitted = []
        for label in range(z.shape[1]):
            here = keep[:, label]
            p = z[here, label].sigmoid().cpu().numpy().astype(np.float64)
            column = column_of(p, p[hit[here, label].cpu().numpy()]) if len(p) else None
            identity = np.array([0.0, 1.0]), np.array([0.0, 1.0])
            fitted.append(identity if column is None else isotonic_column(column, self.smoothing))
        knots, values = (pad_rows(parts) for parts in zip(*fitted, strict=True))
        return Fit({"knots": knots, "values": values.clamp_(FLOOR, 1 - FLOOR)})

    def _map(self, logits: Tensor) -> Tensor:
        p = logits.to(wide_dtype(logits)).sigmoid().T.contiguous()
        q = interpolate(p, self.knots.to(p.dtype), self.values.to(p.dtype))
        return torch.where(p.isnan(), p, torch.logit(q)).T.to(logits.dtype)


# Simplest first: of two methods that score equally well, the first is recommended.
MULTILABEL_CALIBRATORS: dict[str, type[MultilabelCalibrator]] = {
    "temperature": MultilabelTemperature,
    "platt": MultilabelPlatt,
    "isotonic": MultilabelIsotonic,
}


def make_multilabel_calibrator(name: str) -> MultilabelCalibrator:
    """Create an unfitted calibrator of multi-label predictions, by its name in ``MULTILABEL_CALIBRATORS``.

    Raises:
        ValueError: the name is unknown.

    >>> make_multilabel_calibrator("platt")
    MultilabelPlatt()
    """
    check_known("the calibrator of multi-label predictions", name, MULTILABEL_CALIBRATORS)
    return MULTILABEL_CALIBRATORS[name]()


def entry_nll(z: Tensor, hit: Tensor) -> Tensor:
    """Return the binary cross-entropy of each entry."""
    return F.softplus(z) - hit * z


def _log_odds(values: Tensor, input: str, zeros: tuple[float, ...] | None) -> Tensor:
    """Logits of (N, L) logits or probabilities, float32 or float64."""
    if input == "logits":
        return values.to(compute_dtype(values))
    return log_probs(values.reshape(-1), zeros).view(values.shape)


def _or_one(scale: Tensor, size: Tensor | None = None) -> Tensor:
    """Return scales, with 1 for those of constant logits, which are 0 up to rounding."""
    least = torch.zeros_like(scale) if size is None else 1e-6 * size
    return torch.where(scale <= least, 1.0, scale)


def _rare_labels(positive: Tensor, keep: Tensor) -> list[Note]:
    fewer = torch.minimum(positive.sum(0), (keep & ~positive).sum(0))
    rare = tuple((fewer < FEW).nonzero()[:, 0].tolist())
    return [Note("rare_labels", len(rare), keep.shape[1], rare)] if rare else []


def _logistic(
    features: Callable[[slice], list[Tensor]], hit: Tensor, keep: Tensor, x: Tensor, lower: Tensor | None = None
) -> Minimum:
    """Fit the coefficients, (L, D), of the features of each label."""

    def tiles() -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
        for part in tile_slices(hit):
            yield hit[part].to(x.dtype), keep[part].to(x.dtype), features(part)

    return fit_classes(tiles, keep.sum(0).clamp(min=1).to(x.dtype), x, lower)
