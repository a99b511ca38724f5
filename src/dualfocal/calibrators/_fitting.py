"""Calibrated values of samples that the fit has not seen: fitted on validation data, or cross-fitted."""

import copy

import torch
from torch import Tensor

from dualfocal._checks import compute_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.notes import Note, merge_folds
from dualfocal.metrics.resampling import Progress
from dualfocal.metrics.rows import Rows

# Calibrated logits of all rows, once for each repeat; the remarks of the fits; the calibrator, if it was fitted once
Calibrated = tuple[list[Tensor], tuple[Note, ...], Calibrator | None]


def fit_once(calibrator: Calibrator, progress: Progress, *, validation: Rows, rows: Rows) -> Calibrated:
    """Fit a copy on validation data and calibrate the rows."""
    fitted, notes = _fitted(calibrator, validation, "not_converged")
    return [fitted(rows.values, input=rows.input)], tuple(notes), fitted


def fit_folds(calibrator: Calibrator, progress: Progress, *, rows: Rows, deals: list[Tensor], folds: int) -> Calibrated:
    """For each deal calibrate every fold by a fit on the others."""
    values, results, notes = rows.values, list[Tensor](), list[Note]()
    for repeat, fold in enumerate(deals):
        result = torch.empty(values.shape, dtype=compute_dtype(values), device=values.device)
        for k in range(folds):
            here = fold == k
            fitted, remarks = _fitted(calibrator, rows.at(~here), "fold_not_converged")
            result[here] = fitted(values[here], input=rows.input)
            notes += remarks
            progress((repeat + (k + 1) / folds) / len(deals))
        results.append(result)
    return results, merge_folds(notes), None


def _fitted(calibrator: Calibrator, rows: Rows, not_converged: str) -> tuple[Calibrator, list[Note]]:
    fitted = copy.deepcopy(calibrator).fit(rows.values, rows.target, input=rows.input)
    assert fitted.report is not None
    return fitted, [*fitted.report.notes, *([] if fitted.report.converged else [Note(not_converged)])]


def deal_folds(rows: Rows, target: Tensor, *, ignore_index: int, folds: int, seeds: range) -> list[Tensor]:
    """A fold for each row, once for each seed: classes are dealt out evenly, images of dense predictions stay whole.

    Raises:
        ValueError: there are fewer images than folds.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    if target.ndim < 2:
        return [_deal_classes(rows.target, folds, generator) for generator in generators]
    kept = target != ignore_index
    labelled = kept.flatten(1).any(1)
    count = int(labelled.sum())
    if count < folds:
        raise ValueError(f"{folds} folds of whole images need as many images with labels, got {count}")
    number = labelled.cumsum(0) - 1  # images without labels are not counted
    image = number.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)[kept]
    return [(torch.randperm(count, generator=generator).to(image.device) % folds)[image] for generator in generators]


def _deal_classes(target: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    shuffled = torch.randperm(len(target), generator=generator).to(target.device)
    order = shuffled[target[shuffled].argsort(stable=True)]
    fold = torch.empty_like(target)
    fold[order] = torch.arange(len(target), device=target.device) % folds
    return fold
