"""Two models on the same samples: paired differences of every metric, with intervals."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dualfocal._checks import check_level
from dualfocal._table import Table
from dualfocal.metrics.evaluation import Evaluation, evaluate_rows, finite
from dualfocal.metrics.registry import METRICS, Metric
from dualfocal.metrics.resampling import Progress, quantiles, resample
from dualfocal.metrics.rows import Array, as_rows
from dualfocal.metrics.scan import scan

LEAST = 10  # samples to resample from


@dataclass(frozen=True)
class Difference:
    """A metric of two models, and b - a with its interval; below 0, b is better."""

    a: float
    b: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """b - a."""
        return self.b - self.a

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves out 0; an infinite value has none, and is told apart from any finite one."""
        return self.low > 0 or self.high < 0 or math.isinf(self.a) != math.isinf(self.b)

    def better(self, least: float = 0.0) -> str:
        """``"A"`` or ``"B"``, if one is lower by at least ``least`` for all that the interval can tell; else none."""
        if not self.told_apart or (math.isfinite(self.difference) and min(abs(self.low), abs(self.high)) < least):
            return ""
        return "B" if self.high < 0 or self.difference == -math.inf else "A"


@dataclass(frozen=True)
class Comparison:
    """Two models on the same samples; ``print`` it, or see :meth:`to_dict`."""

    a: Evaluation
    b: Evaluation
    differences: dict[str, Difference]
    level: float
    seed: int

    def verdict(self) -> str:
        """What can be said of likelihood, error and calibration, in one sentence."""
        said = [_sentence(name, self.differences[name]) for name in ("nll", "error", "debiased_ece")]
        return f"{'; '.join(said)} ({100 * self.level:.4g} % intervals, N = {self.a.num_samples:,})."

    def to_dict(self) -> dict[str, object]:
        """Plain numbers: fractions, NLL in nats; what is not finite is None."""
        return {
            "schema": 1,
            "num_samples": self.a.num_samples,
            "level": self.level,
            "seed": self.seed,
            "differences": {
                name: {
                    "a": finite(d.a),
                    "b": finite(d.b),
                    "difference": finite(d.difference),
                    "interval": [finite(d.low), finite(d.high)],
                }
                for name, d in self.differences.items()
            },
        }

    def table(self) -> Table:
        """Each metric of both, their difference, and its interval."""
        rows = []
        for name, metric in METRICS.items():
            d = self.differences[name]
            size = metric.text(d.difference, sign=True)
            ends = f"{metric.text(d.low, sign=True)} to {metric.text(d.high, sign=True)}"
            if not math.isfinite(d.difference):  # of two infinite ones there is none
                size, ends = "" if math.isnan(d.difference) else size, ""
            better = d.better(_shows(metric))
            rows.append([metric.heading, metric.text(d.a), metric.text(d.b), size, ends, better])
        headings = ["", "A", "B", "B - A", f"{100 * self.level:.4g} % interval", "better"]
        return Table(headings, rows, f"{self.a.num_samples:,} samples")

    def __str__(self) -> str:
        table = self.table()
        return "\n".join([table.title, table.text(), self.verdict()])


def compare(
    a: Array,
    b: Array,
    target: Array,
    *,
    input: str | tuple[str, str] = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    names: tuple[str, str] = ("a", "b"),
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models on the same samples, metric by metric.

    Samples are resampled with the same weights for both models, so that what both find hard cancels. An interval is
    that of the expected difference at this N. For ECE, adaptive and classwise ECE and MCE that includes the floor,
    which two calibrated models need not share: whether one is better *calibrated*, the debiased error says.

    Args:
        a: predictions of one model, as :func:`~dualfocal.metrics.ece`.
        b: predictions of the other, for the same samples.
        target: class indices.
        input: what ``a`` and ``b`` hold, ``"logits"`` or ``"probs"``; a pair where they differ.
        num_bins: as :func:`~dualfocal.metrics.ece`.
        ignore_index: likewise.
        binary: likewise.
        level: nominal coverage of the intervals.
        seed: of the resampling.
        names: of the models, for error messages.
        progress: called with the share of the work done.

    Returns:
        The differences b - a: for all metrics less is better.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]
    >>> compare(logits, logits / 2, target).differences["nll"].told_apart
    True
    """
    check_level(level)
    inputs = (input, input) if isinstance(input, str) else tuple(input)
    if len(inputs) != 2:
        raise ValueError(f"input must be one word, or a pair for a and b, got {input!r}")
    models = []
    for name, values, kind in zip(names, (a, b), inputs, strict=True):
        try:
            rows = as_rows(values, target, input=kind, ignore_index=ignore_index, binary=binary)
            models.append((rows, scan(rows, num_bins=num_bins, scores=True, classwise=True)))
        except (ValueError, IndexError) as error:
            raise type(error)(f"{name}: {error}") from error
    if len(models[0][0]) < LEAST:
        raise ValueError(f"a comparison needs at least {LEAST} samples, got {len(models[0][0])}")
    evaluations = [evaluate_rows(rows, seen, num_bins) for rows, seen in models]
    drawn = resample(models, num_bins, seed=seed, progress=progress)
    squared = drawn.pop("squared_error")
    # A resample has the noise of the sample and its own: taken out, so that the draws centre on the estimate.
    shift = squared.mean(0) - torch.tensor(
        [float(e.bins.squared_error()) for e in evaluations], dtype=squared.dtype, device="cpu"
    )
    drawn["debiased_ece"] = (squared - shift).clamp_min(0).sqrt()
    differences = {}
    for name in METRICS:
        first, second = (float(getattr(e, name)) for e in evaluations)
        # The root bends near 0, and with it the draws: there their own quantiles cover best, elsewhere they bias.
        centre = None if name == "debiased_ece" else second - first
        draws = drawn[name][:, 1] - drawn[name][:, 0]
        differences[name] = Difference(first, second, *interval(draws, centre, level))
    return Comparison(evaluations[0], evaluations[1], differences, level, seed)


def interval(draws: Tensor, centre: float | None, level: float) -> tuple[float, float]:
    """Quantiles of the draws of a difference; with a centre, that less their deviations from their mean."""
    if centre is not None and not math.isfinite(centre):  # a target of probability 0 makes an NLL infinite
        return -math.inf, math.inf
    low, high = quantiles(draws, level)
    if centre is None:
        return low, high
    both = centre + float(draws[~draws.isnan()].mean())
    return both - high, both - low


def _sentence(name: str, d: Difference) -> str:
    metric = METRICS[name]
    label = "calibration error" if name == "debiased_ece" else metric.label
    better = d.better(_shows(metric))
    if not better:
        return f"{label} not told apart"
    if not math.isfinite(d.difference):
        other = "A" if better == "B" else "B"
        return f"{better} has the lower {label}, that of {other} is infinite: a true class has probability 0"
    sign = -1.0 if better == "B" else 1.0
    unit = "points" if metric.unit == "%" else metric.unit
    low, high = map(metric.text, sorted((sign * d.low, sign * d.high)))
    return f"{better} has the lower {label}, by {metric.text(sign * d.difference)} {unit} ({low} to {high})"


def _shows(metric: Metric) -> float:
    """The smallest difference that is not shown as 0."""
    return 0.5 * 10.0**-metric.decimals / metric.factor
