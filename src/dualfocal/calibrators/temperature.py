"""Temperature scaling, softmax(z / T), and mixtures of it."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from dualfocal._checks import check_choice, check_count
from dualfocal._tensors import wide_dtype
from dualfocal.calibrators._base import Calibrator, Fit
from dualfocal.calibrators._ece_grid import search_grid
from dualfocal.calibrators._newton import Minimum, minimise
from dualfocal.calibrators._passes import Shifted, exponent_floor
from dualfocal.calibrators.notes import Note
from dualfocal.metrics.rows import Rows

CRITERIA = ("nll", "ece")
SUBSAMPLE = 1 << 21  # elements that a first guess is made from
LEAST_SHARE = 1e-3  # of the scaled prediction in a mixture
UNIFORM = 1e-6  # variance of the scaled logits below which predictions count as uniform
TOLERANCE = 1e-12  # nats that one more step would save
RESOLUTION = 1e-12  # of log T
MOST_STEP, MOST_ITERATIONS = 2.0, 200


class TemperatureScaling(Calibrator):
    """Divide the logits by one number, T > 0 (Guo et al., ICML 2017).

    Args:
        criterion: what T minimises on the data of the fit. ``"nll"``: the negative log-likelihood, by a safeguarded
            Newton iteration in log T. It is convex in 1 / T, so that there is one minimum; it is found from any start.
            ``"ece"``: the ECE over T = 0.1, 0.2, ..., 10.0, the first strict minimum, as the paper selects it.
        num_bins: of that ECE.

    Two kinds of data have no best temperature. If all samples are predicted correctly, the likelihood favours T = 0;
    then each label counts as wrong with probability 1 / (N + 2), as the rule of succession has it. If the logits tell
    nothing of the labels, or the contrary, it favours T = infinity; then T stays where predictions are uniform to
    0.1 %. Both are said in ``report.notes``.

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

    def _fit(self, rows: Rows) -> Fit:
        if self.criterion == "ece":
            temperature, before, after = search_grid(rows, self.num_bins)
            notes = (Note("end_of_grid", values=(temperature,)),) if temperature in (0.1, 10.0) else ()
            learned = {"temperature": torch.tensor(temperature, dtype=torch.float64)}
            return Fit(learned, notes=notes, nll=(before, after))
        data = Shifted(rows)
        _, nll, fit = best_temperature(data)
        return replace(fit, nll=(-float(data.log_likelihood(1.0).mean()), nll))

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperature.to(logits.dtype)


class EnsembleTemperatureScaling(Calibrator):
    """A mixture of the scaled, the given and the uniform prediction: w1 softmax(z/T) + w2 softmax(z) + w3 / C.

    T is that of :class:`TemperatureScaling`; the weights, which are not negative and sum to 1, minimise the NLL, a
    convex problem. Returns log-probabilities. Zhang, Kailkhura and Han, ICML 2020; theirs minimise the squared error.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(5000, 4, generator=generator)
    >>> target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    >>> target[::5] = torch.randint(4, (1000,), generator=generator)  # a fifth of the labels says nothing
    >>> calibrator = EnsembleTemperatureScaling().fit(logits, target)
    >>> round(calibrator.weights[2].item(), 1)
    0.2
    """

    learned = ("temperature", "weights")
    keeps_argmax = True
    offset = "removed"
    temperature: Tensor
    weights: Tensor

    def _fit(self, rows: Rows) -> Fit:
        shifted = Shifted(rows)
        beta, _, fit = best_temperature(shifted)
        solved = Minimum(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64), 0, 0.0, True)
        if not is_uniform(fit):  # else a mixture with more of the uniform would forget which class was the largest
            solved = self._mix(shifted, beta)
        weights = solved.x[0] / solved.x[0].sum()
        if weights[2] > 1 - LEAST_SHARE:  # likewise
            weights = torch.tensor([LEAST_SHARE, 0.0, 1 - LEAST_SHARE], dtype=torch.float64)
        return Fit(
            fit.learned | {"weights": weights.double()},
            iterations=(fit.iterations or 0) + solved.iterations,
            gradient=max(fit.gradient or 0.0, solved.gradient),
            converged=fit.converged and solved.converged,
            notes=fit.notes,
        )

    def _mix(self, shifted: Shifted, beta: float) -> Minimum:
        log_p = [shifted.log_likelihood(beta) for beta in (beta, 1.0)]
        log_p.append(torch.full_like(log_p[0], -math.log(shifted.rows.num_classes)))
        p = torch.stack(log_p, dim=1)
        p = (p - p.amax(1, keepdim=True)).exp_()  # (N, 3), each row up to a factor, which no weight depends on

        def objective(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # Minus the mean log-likelihood, plus the sum of the weights: at the minimum over weights >= 0 that is 1.
            mixed = p @ weights[0]
            share = p / mixed[:, None]
            value = weights.sum(1) - mixed.log().mean()
            return value, 1 - share.mean(0, keepdim=True), (share.T @ share)[None] / len(p)

        return minimise(objective, p.new_full((1, 3), 1 / 3), lower=p.new_zeros(1, 3))

    def _map(self, logits: Tensor) -> Tensor:
        log_w = self.weights.to(logits.dtype).log()
        sharp = (logits / self.temperature.to(logits.dtype)).log_softmax(1) + log_w[0]
        mixed = torch.logaddexp(sharp, logits.log_softmax(1) + log_w[1])
        return torch.logaddexp(mixed, log_w[2] - math.log(logits.shape[1]))


def best_temperature(data: Shifted) -> tuple[float, float, Fit]:
    """Minimise the NLL by beta = 1 / T > 0, and return beta, the NLL there and how the temperature was found.

    It is Newton's iteration in log beta, within a bracket.

    With x = beta * d and moments under softmax(x): the slope by log beta is mean(E x - x_k), which changes sign once,
    and its own slope is that plus mean(Var x). At the minimum the NLL is at most log C, and at least -mean x_k: that
    bounds beta from above. Where Newton's step leaves the bracket or gains little, the bracket is halved instead.
    """
    ruled_out = int((data.of_target == -math.inf).sum())
    if ruled_out:
        raise ValueError(
            f"-inf is the logit of the true class in {ruled_out} of {len(data)} samples: give logits a floor first"
        )
    n, num_classes = len(data), data.rows.num_classes
    of_target = float(data.of_target.to(wide_dtype(data.of_target)).mean())
    notes: tuple[Note, ...] = ()
    if of_target == 0:
        of_target, notes = _mean_of_others(data) / (n + 2), (Note("all_correct"),)
    if of_target == 0:
        one = {"temperature": torch.ones((), dtype=torch.float64)}
        return 1.0, math.log(num_classes), Fit(one, 0, 0.0, notes=(Note("equal_logits"),))
    low, high, last = -math.inf, math.log(math.log(num_classes) / -of_target), math.inf
    u = min(0.0, high - 1.0)
    stride = n * num_classes // SUBSAMPLE
    if stride > 3:  # a few rows tell nearly as much, and save most passes
        u = min(math.log(best_temperature(Shifted(data.rows.at(slice(None, None, stride))))[0]), high)
    for iteration in range(1, MOST_ITERATIONS + 1):  # noqa: B007, it is counted
        log_total, mean, variance = _moments(data, math.exp(u))
        slope = mean - math.exp(u) * of_target
        low, high = (low, u) if slope > 0 else (u, high)
        curvature = slope + variance
        uniform = slope > 0 and variance < UNIFORM and log_total > 0.1  # at 0 predictions do not vary, but are certain
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
    nll = log_total - beta * float(data.of_target.to(wide_dtype(data.of_target)).mean())
    learned = {"temperature": torch.tensor(1 / beta, dtype=torch.float64)}
    return beta, nll, Fit(learned, iteration, abs(slope), converged or uniform, notes)


def is_uniform(fit: Fit) -> bool:
    """Whether the best temperature is infinite."""
    return any(note.kind == "no_help" for note in fit.notes)


def _moments(data: Shifted, beta: float) -> tuple[float, float, float]:
    """Means over the rows of log sum exp x, of the mean and of the variance of x = beta * d under softmax(x)."""
    total, first, second = torch.empty(3, len(data), dtype=data.dtype, device=data.of_target.device)
    for part, d in data.tiles():
        x = d.mul_(beta).clamp_(min=exponent_floor(d.dtype))
        weight = torch.exp(x, out=data.scratch(x))
        torch.sum(weight, data.dim, out=total[part])
        torch.sum(weight.mul_(x), data.dim, out=first[part])
        torch.sum(weight.mul_(x), data.dim, out=second[part])
    total = total.to(wide_dtype(total))
    first, second = first / total, second / total  # in the dtype of the total
    return float(total.log().mean()), float(first.mean()), float((second - first * first).mean())


def _mean_of_others(data: Shifted) -> float:
    """Mean of d over all classes but the true one, where it is finite."""
    total, count = 0.0, 0
    for _, d in data.tiles():
        finite = d.isfinite()
        total += float(d.where(finite, 0.0).sum(dtype=wide_dtype(d)))
        count += int(finite.sum())
    return total / max(count - len(data), 1)
