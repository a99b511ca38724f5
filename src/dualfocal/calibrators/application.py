"""A fitted calibrator applied to predictions, with scores before and after where there are labels."""

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
    """Calibrated predictions, and what the calibrator did to them."""

    values: Tensor  # logits or probabilities, as given
    target: Tensor | None  # None: no labels, or none that can be used
    num_samples: int
    argmax_changed: int  # samples whose predicted class is another than before
    scores: dict[str, Evaluation]  # "before" and "after"; empty without labels
    on_fit_data: bool  # whether these are the data of the fit, where scores flatter the calibrator
    unusable_labels: str  # why labels are left out; empty if they are not


def apply_calibrator(
    calibrator: Calibrator,
    values: Tensor,
    target: Tensor | None = None,
    *,
    input: str = "logits",
    ignore_index: int = -100,
    require_labels: bool = False,
) -> Application:
    """Calibrate predictions: logits stay logits, probabilities probabilities.

    Args:
        calibrator: a fitted calibrator.
        values: ``(N, C)``, ``(N, C, d1, ...)`` or ``(N,)`` logits or probabilities.
        target: class indices, if there are any.
        input: what ``values`` holds, ``"logits"`` or ``"probs"``.
        ignore_index: samples of this target are not checked and not scored.
        require_labels: whether labels that do not fit the values are an error; otherwise they are left out.

    Raises:
        ValueError: values are not what ``input`` says, do not fit the calibrator, or have no finite answer.

    >>> from dualfocal.calibrators import TemperatureScaling
    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> applied = apply_calibrator(TemperatureScaling().fit(logits, target), logits, target)
    >>> applied.argmax_changed, applied.on_fit_data
    (0, True)
    """
    scan(kept_rows(values, target, input=input, ignore_index=ignore_index))
    binary = "top_label" if values.ndim == 1 else None
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
    ignored = before.isnan() if before.ndim == 1 else before.isnan().any(1, keepdim=True)  # others have no NaN
    lost = (after.isnan() | (after == torch.inf)) & ~ignored
    if bool(lost.any()):
        row = int(lost.nonzero()[0, 0])
        raise ValueError(f"row {row} has no finite answer: this calibrator needs finite logits, it must hold -inf")
    calibrated = after if input == "logits" else after.sigmoid() if after.ndim == 1 else after.softmax(1)
    scores = {}
    if target is not None and labelled:
        score = partial(evaluate, target=target, input=input, ignore_index=ignore_index, binary=binary)
        scores = {"before": score(values), "after": score(calibrated)}
    old, new = (logits > 0 if logits.ndim == 1 else logits.argmax(1) for logits in (before, after))
    return Application(calibrated, target, new.numel(), int((old != new).sum()), scores, on_fit_data, unusable)
