"""Apply a fitted calibrator to predictions, with scores before and after if there are labels."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.inputs import kept_rows, log_probs
from dualfocal.metrics.evaluation import Evaluation, evaluate
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan


@dataclass(frozen=True, eq=False)
class Application:
    """Calibrated predictions, with the effect of the calibrator on them.

    Attributes:
        values: calibrated logits or probabilities, like the input.
        target: class indices; None if there are no usable labels.
        num_samples: number of samples.
        argmax_changed: number of samples whose predicted class changed.
        scores: evaluations ``"before"`` and ``"after"``; empty without labels.
        on_fit_data: whether the calibrator was fitted on these data, so that the scores are optimistic.
        unusable_labels: why the labels were ignored; empty if they were used.
    """

    values: Tensor
    target: Tensor | None
    num_samples: int
    argmax_changed: int
    scores: dict[str, Evaluation]
    on_fit_data: bool
    unusable_labels: str


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
        binary: for two classes, the confidence that is scored, see :func:`~dualfocal.metrics.ece`.
        require_labels: raise an error if labels do not fit the values; otherwise such labels are ignored.

    Raises:
        ValueError: ``values`` do not match ``input`` or the calibrator, or have no finite calibrated value.

    >>> from dualfocal.calibrators import TemperatureScaling
    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> applied = apply_calibrator(TemperatureScaling().fit(logits, target), logits, target)
    >>> applied.argmax_changed, applied.on_fit_data
    (0, True)
    """
    rows = kept_rows(values, target, input=input, ignore_index=ignore_index)
    scan(rows)
    input = rows.input
    binary = binary or ("top_label" if values.ndim == 1 else None)
    labelled, unusable = target is not None and bool((target != ignore_index).any()), ""
    on_fit_data = (
        calibrator.fitted_on is not None
        and (labelled or target is None)
        and calibrator.fitted_on.matches(values, target, input=input, ignore_index=ignore_index)
    )
    if target is not None and labelled and not require_labels:
        try:
            as_rows(values, target, input=input, ignore_index=ignore_index, binary=binary)
        except (ValueError, IndexError) as error:
            target, labelled, unusable = None, False, str(error)
    before = values if input == "logits" else log_probs(values)
    after = calibrator(values, input=input)
    ignored = before.isnan() if before.ndim == 1 else before.isnan().any(1, keepdim=True)  # other rows have no NaN
    lost = (after.isnan() | (after == torch.inf)) & ~ignored
    if bool(lost.any()):
        row = int(lost.nonzero()[0, 0])
        raise ValueError(f"row {row} has no finite calibrated value: this calibrator needs finite logits, got -inf")
    calibrated = after if input == "logits" else after.sigmoid() if after.ndim == 1 else after.softmax(1)
    scores = {}
    if target is not None and labelled:
        score = partial(evaluate, target=target, input=input, ignore_index=ignore_index, binary=binary)
        scores = {"before": score(values), "after": score(calibrated)}
    old, new = (logits > 0 if logits.ndim == 1 else logits.argmax(1) for logits in (before, after))
    return Application(calibrated, target, new.numel(), int((old != new).sum()), scores, on_fit_data, unusable)
