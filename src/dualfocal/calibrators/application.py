"""Apply a fitted calibrator to predictions, with scores before and after if there are labels."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.inputs import kept_rows, log_probs
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan

NUM_BINS = 15
LEVEL = 0.9
QUANTILE = 1.645  # of the normal distribution, for a two-sided interval of this level


Change = tuple[float, float, float]  # of the mean NLL, with the ends of its 90 % confidence interval


@dataclass(frozen=True, eq=False)
class Application:
    """Calibrated predictions, with the effect of the calibrator on them.

    Attributes:
        values: calibrated logits or probabilities, like the input.
        target: class indices; None if there are no usable labels.
        num_samples: number of samples.
        argmax_changed: number of samples whose predicted class changed.
        scores: evaluations ``"before"`` and ``"after"``; empty without labels.
        nll_change: change of the NLL with the ends of its 90 % confidence interval, from the paired differences of the
            samples; None without labels, or if an NLL is infinite.
        on_fit_data: whether the calibrator was fitted on these data, so that the scores are optimistic.
        unusable_labels: why the labels were ignored; empty if they were used.
    """

    values: Tensor
    target: Tensor | None
    num_samples: int
    argmax_changed: int
    scores: dict[str, Evaluation]
    nll_change: Change | None
    on_fit_data: bool
    unusable_labels: str

    @property
    def worse(self) -> bool:
        """Whether the NLL is significantly higher after calibration."""
        return bool(self.scores) and is_worse(self._scores_of("nll"), self.nll_change)

    def verdict(self) -> str:
        """Say in one or two sentences what the calibrator did to NLL and ECE.

        Raises:
            ValueError: there are no labels.
        """
        if not self.scores:
            raise ValueError("a verdict needs labels")
        return effect_verdict(self._scores_of("nll"), self._scores_of("ece"), self.nll_change)

    def _scores_of(self, metric: str) -> tuple[float, float]:
        """Return a metric before and after."""
        return getattr(self.scores["before"], metric), getattr(self.scores["after"], metric)

    def to_dict(self) -> dict[str, Any]:
        """Return the effect of the calibrator for JSON, with scores and verdict if there are labels."""
        content: dict[str, Any] = {"num_samples": self.num_samples, "argmax_changed": self.argmax_changed}
        content |= {name: score.to_dict() for name, score in self.scores.items()}
        return content | ({"worse": self.worse, "verdict": self.verdict()} if self.scores else {})


def apply_calibrator(
    calibrator: Calibrator,
    values: Tensor,
    target: Tensor | None = None,
    *,
    input: str | None = None,
    ignore_index: int = -100,
    binary: str | None = None,
    require_labels: bool = False,
) -> Application:
    """Calibrate predictions. Logits are mapped to logits, probabilities to probabilities.

    Args:
        calibrator: a fitted calibrator.
        values: ``(N, C)``, ``(N, C, d1, ...)`` or ``(N,)`` logits or probabilities.
        target: class indices (optional).
        input: ``"logits"`` or ``"probs"``, whichever ``values`` holds. None means logits, and raises an error if the
            values look like probabilities.
        ignore_index: samples with this target are neither checked nor scored.
        binary: for two classes, the confidence that is scored, see :meth:`~dualfocal.metrics.Samples.from_arrays`.
        require_labels: raise an error if labels do not fit the values; otherwise such labels are ignored.

    Raises:
        ValueError: ``values`` do not match ``input`` or the calibrator, or have no finite calibrated value.

    >>> from dualfocal.calibrators import TemperatureScaling
    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> applied = apply_calibrator(TemperatureScaling().fit(logits, target), logits, target)
    >>> applied.argmax_changed, applied.on_fit_data
    (0, True)
    """
    samples = kept_rows(values, target, input=input, ignore_index=ignore_index)
    scan(samples)
    input = samples.input
    binary = binary or ("top_label" if values.ndim == 1 else None)
    labelled, unusable = target is not None and bool((target != ignore_index).any()), ""
    on_fit_data = (
        calibrator.fitted_on is not None
        and (labelled or target is None)
        and calibrator.fitted_on.matches(values, target, input=input, ignore_index=ignore_index)
    )
    if target is not None and labelled and not require_labels:
        try:
            Samples.from_arrays(values, target, input=input, ignore_index=ignore_index, binary=binary)
        except (ValueError, IndexError) as error:
            target, labelled, unusable = None, False, str(error)
    before = values if input == "logits" else log_probs(values)
    after = calibrator(values, input=input)
    ignored = before.isnan() if before.ndim == 1 else before.isnan().any(1, keepdim=True)  # other rows have no NaN
    lost = (after.isnan() | (after == torch.inf)) & ~ignored
    if bool(lost.any()):
        row = int(lost.nonzero()[0, 0])
        raise ValueError(f"row {row} has no finite calibrated value: this calibrator needs finite logits, got -inf")
    calibrated = after
    if input == "probs":
        calibrated = after.sigmoid() if after.ndim == 1 else after.softmax(1)
    scores: dict[str, Evaluation] = {}
    change = None
    if target is not None and labelled:
        losses = []
        for name, predictions in (("before", values), ("after", calibrated)):
            scored = Samples.from_arrays(predictions, target, input=input, ignore_index=ignore_index, binary=binary)
            stats = scan(scored, scores=True, classwise=True)
            scores[name] = evaluate_samples(scored, stats, NUM_BINS)
            losses.append(torch.from_numpy(stats.nll))
        change = _paired_change(*losses)
    old, new = (logits > 0 if logits.ndim == 1 else logits.argmax(1) for logits in (before, after))
    return Application(calibrated, target, new.numel(), int((old != new).sum()), scores, change, on_fit_data, unusable)


def is_worse(nll: tuple[float, float], change: Change | None) -> bool:
    """Whether the NLL, before and after calibration, is significantly higher afterwards."""
    return nll[1] > nll[0] if change is None else change[1] > 0


def effect_verdict(
    nll: tuple[float, float], ece: tuple[float, float], change: Change | None, *, ece_name: str = "ECE"
) -> str:
    """Say in one or two sentences what a calibrator did.

    Args:
        nll: NLL before and after.
        ece: calibration error before and after.
        change: change of the NLL (None: not finite).
        ece_name: name of the calibration error.
    """
    interval = ""
    if change is not None:
        mean, low, high = (METRICS["nll"].text(value, sign=True) for value in change)
        interval = f" ({mean}, {100 * LEVEL:.0f} % interval {low} to {high})"
    (nll_before, nll_after), (ece_before, ece_after) = map(METRICS["nll"].text, nll), map(METRICS["ece"].text, ece)
    numbers = (
        f"{METRICS['nll'].label} from {nll_before} to {nll_after} nats{interval}, {ece_name} from {ece_before} to "
        f"{ece_after} %."
    )
    if is_worse(nll, change):
        return f"Worse than without the calibrator on these samples: {numbers} Do not use it for such data."
    if change is not None and change[2] >= 0:
        return f"No significant change of the NLL: {numbers}"
    return f"Better than without the calibrator: {numbers}"


def multilabel_nll_change(before: Tensor, after: Tensor, target: Tensor, *, ignore_index: int = -100) -> Change | None:
    """Return the change of the mean NLL of all entries, from the paired differences of the samples.

    Args:
        before: log-odds of each label, ``(N, L)``.
        after: calibrated log-odds.
        target: 0 or 1 for each sample and label.
        ignore_index: target value of entries to leave out.

    Returns:
        None if it is not finite.
    """
    keep = target != ignore_index
    losses = []
    for logits in (before, after):
        entries = F.softplus(torch.where(target == 1, -logits, logits).double()).where(keep, 0.0)
        losses.append(entries.sum(1) * len(keep) / keep.sum())
    return _paired_change(*losses)


def _paired_change(before: Tensor, after: Tensor) -> Change | None:
    """Return the mean of after - before and the ends of its interval, or None if it is not finite."""
    difference = (after - before).double()
    mean = float(difference.mean())
    if not math.isfinite(mean):
        return None
    half = QUANTILE * float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return mean, mean - half, mean + half
