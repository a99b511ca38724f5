"""Temperature scaling, softmax(z / T), and ensemble temperature scaling."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._ece_grid import search_grid
from dualfocal.calibrators._fit_report import Fit
from dualfocal.calibrators._newton import Minimum, minimise
from dualfocal.calibrators._tiles import ShiftedLogits, exponent_floor
from dualfocal.calibrators.notes import Note
from dualfocal.checks import check_choice, check_count
from dualfocal.metrics.samples import Samples

CRITERIA = ("nll", "ece")
SUBSAMPLE = 1 << 21  # number of elements used for the initial guess
LEAST_SHARE = 1e-3  # minimum weight of the scaled prediction in a mixture
UNIFORM = 1e-6  # predictions count as uniform if the variance of the scaled logits is lower
TOLERANCE = 1e-12  # nats; stop when a step is expected to gain less
RESOLUTION = 1e-12  # width of the final bracket of log T
MOST_STEP, MOST_ITERATIONS = 2.0, 200


class TemperatureScaling(Calibrator):
    r"""Temperature scaling: divide all logits by one temperature T > 0 (Guo et al., ICML 2017).

    $$q = \operatorname{softmax}(z / T)$$

    Args:
        criterion: quantity that T minimises on the data of the fit. ``"nll"``: the negative log-likelihood, which is
            convex in 1 / T and therefore has a single minimum. ``"ece"``: the first minimum of the ECE over
            T = 0.1, 0.2, ..., 10.0, as in the dual focal loss paper.
        num_bins: number of bins of that ECE.

    Two kinds of data have no finite optimum. If all samples are predicted correctly, the likelihood favours T = 0;
    each label is then treated as wrong with probability 1 / (N + 2) (rule of succession). If the logits do not help to
    predict the labels, the likelihood favours T = infinity; T is then chosen so that predictions are uniform within
    0.1 %. ``report.notes`` mentions both cases.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(5000, 10, generator=generator)
    >>> target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    >>> calibrator = TemperatureScaling().fit(3 * logits, target)  # three times too sharp
    >>> round(calibrator.temperature.item(), 1), calibrator.report.converged
    (2.9, True)
    >>> torch.allclose(calibrator(3 * logits), 3 * logits / calibrator.temperature.float())
    True
    """

    learned = ("temperature",)
    keeps_argmax = True
    offset = "kept"
    temperature: Tensor

    def __init__(self, criterion: str = "nll", *, num_bins: int = 15) -> None:
        check_choice("criterion", criterion, CRITERIA)
        check_count("num_bins", num_bins)
        super().__init__()
        self.criterion, self.num_bins = criterion, num_bins

    def _fit(self, samples: Samples) -> Fit:
        if self.criterion == "ece":
            temperature, before, after = search_grid(samples, self.num_bins)
            notes = (Note("end_of_grid", values=(temperature,)),) if temperature in (0.1, 10.0) else ()
            learned = {"temperature": torch.tensor(temperature, dtype=torch.float64)}
            return Fit(learned, notes=notes, nll=(before, after))
        data = ShiftedLogits(samples)
        _, nll, fit = best_temperature(data)
        return replace(fit, nll=(-float(data.log_likelihood(1.0).mean()), nll))

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits.dtype)


class EnsembleTemperatureScaling(Calibrator):
    r"""Ensemble temperature scaling (Zhang, Kailkhura and Han, ICML 2020).

    $$q = w_1 \operatorname{softmax}(z / T) + w_2 \operatorname{softmax}(z) + w_3 / C$$

    T is the temperature of :class:`TemperatureScaling`. The non-negative weights sum to 1 and minimise the NLL (the
    authors minimise the squared error). The output is log-probabilities.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(5000, 4, generator=generator)
    >>> target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    >>> target[::5] = torch.randint(4, (1000,), generator=generator)  # a fifth of the labels is random
    >>> calibrator = EnsembleTemperatureScaling().fit(logits, target)
    >>> round(calibrator.weights[2].item(), 1)
    0.2
    """

    learned = ("temperature", "weights")
    keeps_argmax = True
    offset = "removed"
    temperature: Tensor
    weights: Tensor

    def _fit(self, samples: Samples) -> Fit:
        shifted = ShiftedLogits(samples)
        beta, _, fit = best_temperature(shifted)
        solved = Minimum(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64), 0, 0.0, True)
        if not is_uniform(fit):  # otherwise the uniform part would hide the predicted class
            solved = self._mix(shifted, beta)
        weights = solved.x[0] / solved.x[0].sum()
        if weights[2] > 1 - LEAST_SHARE:  # for the same reason
            weights = torch.tensor([LEAST_SHARE, 0.0, 1 - LEAST_SHARE], dtype=torch.float64)
        return Fit(
            fit.learned | {"weights": weights.double()},
            iterations=(fit.iterations or 0) + solved.iterations,
            gradient=max(fit.gradient or 0.0, solved.gradient),
            converged=fit.converged and solved.converged,
            notes=fit.notes,
        )

    def _mix(self, shifted: ShiftedLogits, beta: float) -> Minimum:
        log_p = [shifted.log_likelihood(beta) for beta in (beta, 1.0)]
        log_p.append(torch.full_like(log_p[0], -math.log(shifted.samples.num_classes)))
        p = torch.stack(log_p, dim=1)
        p = (p - p.amax(1, keepdim=True)).exp_()  # (N, 3); the factor of each row does not change the optimal weights

        def objective(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # NLL plus the sum of the weights: at the minimum over weights >= 0 that sum is 1.
            mixed = p @ weights[0]
            share = p / mixed[:, None]
            value = weights.sum(1) - mixed.log().mean()
            return value, 1 - share.mean(0, keepdim=True), (share.T @ share)[None] / len(p)

        return minimise(objective, p.new_full((1, 3), 1 / 3), lower=p.new_zeros(1, 3))

    def _map(self, logits: Tensor) -> Tensor:
        log_w = self.weights.to(logits.dtype).log()
        sharp = (logits / self.temperature.to(logits.dtype)).log_softmax(1) + log_w[0]
        mixed = torch.logaddexp(sharp, logits.log_softmax(1) + log_w[1])
        # A tensor: exporters to ONNX round Python numbers to float32.
        return torch.logaddexp(mixed, log_w[2] - log_w.new_tensor(math.log(logits.shape[1])))


def best_temperature(data: ShiftedLogits) -> tuple[float, float, Fit]:
    """Minimise the NLL over beta = 1 / T > 0; returns beta, the NLL and the fit.

    The method is a bracketed Newton iteration in log beta. With x = beta * d and moments under softmax(x), the first
    derivative is mean(E x - x_k), which changes sign once, and the second is the first plus mean(Var x). At the
    minimum the NLL is at most log C and at least -mean x_k, which bounds beta from above. The bracket is halved
    whenever the Newton step leaves it or gains little.
    """
    ruled_out = int((data.target_logit == -math.inf).sum())
    mean_target_logit = float(data.target_logit.to(wide_dtype(data.target_logit)).mean())
    if math.isinf(mean_target_logit):
        dtype, where = str(data.dtype).removeprefix("torch."), f"in {ruled_out} of {len(data)} samples"
        raise ValueError(
            f"the logit of the true class is -inf, or too far below the largest for {dtype}, "
            f"{where if ruled_out else 'on average'}: clamp the logits first"
        )
    n, num_classes = len(data), data.samples.num_classes
    notes: tuple[Note, ...] = ()
    if mean_target_logit == 0:
        mean_target_logit, notes = _mean_of_other_classes(data) / (n + 2), (Note("all_correct"),)
    if mean_target_logit == 0:
        identity = {"temperature": torch.ones((), dtype=torch.float64)}
        return 1.0, math.log(num_classes), Fit(identity, 0, 0.0, notes=(Note("equal_logits"),))
    low, high, last = -math.inf, math.log(math.log(num_classes) / -mean_target_logit), math.inf
    u = min(0.0, high - 1.0)
    stride = n * num_classes // SUBSAMPLE
    if stride > 3:  # start from the optimum of a subsample to save passes over all rows
        u = min(math.log(best_temperature(ShiftedLogits(data.samples.at(slice(None, None, stride))))[0]), high)
    for iteration in range(1, MOST_ITERATIONS + 1):  # noqa: B007, the count is used after the loop
        log_total, mean, variance = _moments(data, math.exp(u))
        slope = mean - math.exp(u) * mean_target_logit
        low, high = (low, u) if slope > 0 else (u, high)
        curvature = slope + variance
        uniform = (
            slope > 0 and variance < UNIFORM and log_total > 0.1
        )  # at log_total = 0 predictions are certain, not uniform
        converged = (curvature > 0 and slope * slope <= 2 * TOLERANCE * curvature) or high - low < RESOLUTION
        if converged or uniform:
            break
        newton = curvature > 0 and abs(slope) <= last / 2
        following = u - slope / curvature if newton else (low + high) / 2
        u, last = min(max(following, u - MOST_STEP), u + MOST_STEP), abs(slope)
        if not low < u < high:
            u = (low + high) / 2
    if uniform and not converged:
        notes = (Note("no_help"),)
    beta = math.exp(u)
    nll = log_total - beta * float(data.target_logit.to(wide_dtype(data.target_logit)).mean())
    learned = {"temperature": torch.tensor(1 / beta, dtype=torch.float64)}
    return beta, nll, Fit(learned, iteration, abs(slope), converged or uniform, notes)


def is_uniform(fit: Fit) -> bool:
    """Whether the optimal temperature is infinite."""
    return any(note.kind == "no_help" for note in fit.notes)


def _moments(data: ShiftedLogits, beta: float) -> tuple[float, float, float]:
    """Averages over rows of log sum exp x, and of the mean and variance of x = beta * d under softmax(x)."""
    total, first, second = torch.empty(3, len(data), dtype=data.dtype, device=data.target_logit.device)
    for part, d in data.tiles():
        x = d.mul_(beta).clamp_(min=exponent_floor(d.dtype))
        weight = torch.exp(x, out=data.scratch(x))
        torch.sum(weight, data.dim, out=total[part])
        torch.sum(weight.mul_(x), data.dim, out=first[part])
        torch.sum(weight.mul_(x), data.dim, out=second[part])
    total = total.to(wide_dtype(total))
    first, second = first / total, second / total  # in the dtype of the total
    return float(total.log().mean()), float(first.mean()), float((second - first * first).mean())


def _mean_of_other_classes(data: ShiftedLogits) -> float:
    """Mean of the finite d over all classes but the true one."""
    total, count = 0.0, 0
    for _, d in data.tiles():
        finite = d.isfinite()
        total += float(d.where(finite, 0.0).sum(dtype=wide_dtype(d)))
        count += int(finite.sum())
    return total / max(count - len(data), 1)
