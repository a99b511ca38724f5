"""Linear maps of logits or log-probabilities: vector, matrix and Dirichlet calibration."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dualfocal._tensors import check_number, wide_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._fit_report import Fit
from dualfocal.calibrators._logistic import Problem
from dualfocal.calibrators._tiles import ShiftedLogits, tile_slices
from dualfocal.calibrators.temperature import best_temperature, is_uniform
from dualfocal.metrics.samples import Samples

STRONG_PRIOR = 100.0  # initial precision of the off-diagonal entries if it is learned


class _LinearScaling(Calibrator):
    """softmax(A x + b), fitted by maximum likelihood with a Gaussian prior around the best temperature scaling.

    Features are centred and divided by that temperature, so the prior does not depend on the scale and shift of the
    logits. The precisions of the diagonal, off-diagonal and bias parameters are learned from the data (empirical
    Bayes) unless ``prior`` sets one value for all.
    """

    learned = ("weight", "bias")
    by_class = "bias"
    full = True  # whether A has entries off its diagonal
    damped = False  # whether the prior is that of features with a damped mean
    weight: Tensor  # (C, C), or (C,) for a diagonal A
    bias: Tensor  # (C,)

    def __init__(self, *, prior: float | None = None) -> None:
        if prior is not None:
            check_number("prior", prior)
            if prior == 0:
                raise ValueError("prior must be above 0, got 0: without a prior, separable data have no finite optimum")
        super().__init__()
        self.prior = prior

    def _features(self, logits: Tensor) -> Tensor:
        return logits

    def _damp_mean(self, rows: Tensor) -> Tensor:
        """If ``damped``, divide the mean of each row by sqrt(C), and keep the differences within the row."""
        return rows - (1 - rows.shape[1] ** -0.5) * rows.mean(1, keepdim=True) if self.damped else rows

    def _fit(self, samples: Samples) -> Fit:
        beta, _, scaled = best_temperature(ShiftedLogits(samples))
        wide, classes, device = wide_dtype(samples.values), samples.num_classes, samples.values.device

        def features() -> Iterator[tuple[slice, Tensor]]:
            for part in tile_slices(samples.values):
                yield part, self._features(samples.values[part].to(wide))

        total = torch.stack([x.sum(0) for _, x in features()]).sum(0)
        if not bool(total.isfinite().all()):
            k = int((~total.isfinite()).nonzero()[0])
            raise ValueError(f"{type(self).__name__} needs finite logits: class {k} has -inf; clamp the logits first")
        mean, unit = self._damp_mean(total[None]).T / len(samples), 1.0

        def tiles() -> Iterator[tuple[slice, Tensor]]:
            for part, x in features():
                yield part, (self._damp_mean(x).T - mean).mul_(unit)

        # The start, A = I and b = beta * mean, is temperature scaling; A = 0 is an infinite temperature.
        identity = torch.eye(classes, dtype=wide, device=device) if self.full else mean.new_ones(classes, 1)
        group = torch.cat([torch.where(identity == 1, 0, 2), torch.ones_like(mean, dtype=torch.int64)], dim=1)
        if is_uniform(scaled):
            spread = sum(float((x * x).sum()) for _, x in tiles()) / (len(samples) * classes)
            constant = spread <= 1e-24 * float((mean * mean).mean())  # except for rounding
            unit, start = 1.0 if constant else spread**-0.5, torch.zeros_like(group, dtype=wide)
        else:
            unit, start = beta, torch.cat([identity, beta * mean], dim=1)
        precision = mean.new_tensor([1.0, 1.0, STRONG_PRIOR] if self.prior is None else [self.prior] * 3)
        solved = Problem(tiles, samples.target, start, group, precision, learn=self.prior is None).solve()
        weight = solved.x[:, :-1] * unit if self.full else solved.x[:, 0] * unit
        bias = solved.x[:, -1] - (weight @ mean[:, 0] if self.full else weight * mean[:, 0])
        if self.damped:  # A damp(x) = damp(A) x; equal entries have no effect, and without them A = I stays I
            weight = self._damp_mean(weight - weight.mean()) + weight.mean()
        return Fit({"weight": weight, "bias": bias}, *solved[1:], notes=scaled.notes)

    def _map(self, logits: Tensor) -> Tensor:
        weight, bias = self.weight.to(logits.dtype), self.bias.to(logits.dtype)
        x = self._features(logits)
        return torch.addmm(bias, x, weight.T) if self.full else x * weight + bias


class VectorScaling(_LinearScaling):
    r"""Vector scaling: one factor and one shift per class (Guo et al., ICML 2017).

    $$q = \operatorname{softmax}(w \odot z + b)$$

    A Gaussian prior shrinks the parameters towards temperature scaling, with a strength learned from the data
    (empirical Bayes). If one temperature is enough, the 2 C parameters do no harm; absent classes and separable data
    still give finite parameters.

    Args:
        prior: precision of the Gaussian prior: of the factors (times the temperature) around 1, and of the shifts of
            centred logits around 0. Default: learned from the data.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 3, generator=generator)
    >>> target = torch.multinomial((logits + torch.tensor([1.0, 0.0, 0.0])).softmax(1), 1, generator=generator)[:, 0]
    >>> bias = VectorScaling().fit(logits, target).bias
    >>> [round(b, 1) for b in (bias - bias[2]).tolist()]
    [0.9, -0.1, 0.0]
    """

    full = False


class MatrixScaling(_LinearScaling):
    r"""Matrix scaling: a regularised linear map of the logits (Guo et al., ICML 2017).

    $$q = \operatorname{softmax}(W z + b)$$

    Like :class:`VectorScaling`, with a separate prior for the off-diagonal entries. The C (C + 1) parameters need at
    least as many samples.

    Args:
        prior: precision of all Gaussian priors. Default: each is learned from the data.
        force: fit even with fewer samples than parameters.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 3, generator=generator)
    >>> mixed = logits + logits.roll(1, 1)
    >>> target = torch.multinomial(mixed.softmax(1), 1, generator=generator)[:, 0]
    >>> report = MatrixScaling().fit(logits, target).report
    >>> round(report.nll_before, 2), round(report.nll_after, 2)
    (1.12, 0.86)
    """

    def __init__(self, *, prior: float | None = None, force: bool = False) -> None:
        super().__init__(prior=prior)
        self.force = force

    def _fit(self, samples: Samples) -> Fit:
        parameters = samples.num_classes * (samples.num_classes + 1)
        if len(samples) < parameters and not self.force:
            raise ValueError(
                f"{type(self).__name__} has {parameters:,} parameters for {samples.num_classes} classes and needs at "
                f"least as many samples, got {len(samples):,}; use vector or temperature scaling, or force the fit"
            )
        return super()._fit(samples)


class DirichletCalibration(MatrixScaling):
    r"""Dirichlet calibration: a linear map of the log-probabilities (Kull et al., NeurIPS 2019).

    $$q = \operatorname{softmax}(W \ln p + b)$$

    Like :class:`MatrixScaling`. The prior of the off-diagonal entries is the off-diagonal regularisation (ODIR) of
    that paper, with a strength learned from the data instead of by cross-validation.

    Args:
        prior: precision of all Gaussian priors. Default: each is learned from the data.
        force: fit even with fewer samples than parameters, C (C + 1).

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> probs = torch.rand(5000, 3, generator=generator)
    >>> probs = probs / probs.sum(1, keepdim=True)
    >>> target = torch.multinomial(probs.square(), 1, generator=generator)[:, 0]
    >>> DirichletCalibration().fit(probs.log(), target).weight.diagonal().mean().round().item()
    2.0
    """

    offset = "removed"
    # The mean log-probability of a sample varies much, but says little about its class. Undamped, it would make the
    # learned prior narrow for all entries of W.
    damped = True

    def _features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1)
