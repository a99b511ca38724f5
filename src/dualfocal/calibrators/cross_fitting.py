"""Which calibrator helps? Each is fitted on some folds and scored on the others, beside the model as it is."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dualfocal._checks import check_count, check_level, compute_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._inputs import log_probs
from dualfocal.calibrators._notes import of_all_folds
from dualfocal.calibrators.ranking import AS_IS, Unranked, unranked
from dualfocal.calibrators.registry import CALIBRATORS, make_calibrator
from dualfocal.calibrators.tried import Tried, rank
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.resampling import Progress
from dualfocal.metrics.rows import Array, Rows, as_rows, as_tensor
from dualfocal.metrics.scan import scan

LEAST = 20  # samples


@dataclass(frozen=True, kw_only=True)
class CrossFit(Tried):
    """Calibrators, cross-fitted, and the model as it is, by NLL; ``print`` it, or see :meth:`to_dict`."""

    folds: int
    repeats: int

    def caveat(self) -> str:
        """What the numbers are of."""
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        return (
            f"Cross-fitted in {self.folds} folds, {times}: no sample is scored by a fit that saw it. This scores the "
            "procedure, fitted on a part of the data; a calibrator fitted on all of it is not scored here."
        )

    def _how(self) -> dict[str, object]:
        return {"folds": self.folds, "repeats": self.repeats}


def cross_fit(
    logits: Array,
    target: Array,
    methods: Sequence[str] | Mapping[str, Calibrator] = tuple(CALIBRATORS),
    *,
    input: str = "logits",
    folds: int = 5,
    repeats: int = 2,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> CrossFit:
    """Score calibrators on data that their fits have not seen, beside the model as it is.

    The samples are dealt into folds, each class evenly (images of a dense prediction stay whole). Each fold is
    calibrated by a fit on the others, and all are scored together; and so again with other folds. Differences are
    paired: their intervals come from resampling the samples, with the same weights for all methods, and are for the
    fits that were made. Fits share data, so that intervals are a little short: those of nominal 90 % held the truth in
    81 to 87 % of simulated samples (``benchmarks/cross_fit_coverage.py``). ECE differences include that of the floors.
    Pixels of dense predictions count as samples.

    Args:
        logits: as :func:`~dualfocal.metrics.ece`.
        target: likewise.
        methods: names from ``CALIBRATORS``, joined by ``+`` for a chain; or calibrators by names of your own.
        input: what ``logits`` holds, ``"logits"`` or ``"probs"``; as in ``Calibrator.fit``.
        folds: number of folds.
        repeats: how often samples are dealt anew; scores are means.
        num_bins: as :func:`~dualfocal.metrics.ece`.
        ignore_index: likewise.
        binary: likewise; one score a sample counts as ``"top_label"`` unless told.
        level: nominal coverage of the intervals.
        seed: of folds and resampling.
        progress: called with the share of the work done.

    Returns:
        The methods by NLL. One that refuses the data is listed with its reason.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> cross_fit(logits, target, ["temperature", "vector", "isotonic"]).recommended
    'temperature'
    """
    check_count("folds", folds, 2)
    check_count("repeats", repeats)
    check_level(level)
    made = dict(methods) if isinstance(methods, Mapping) else {name: make_calibrator(name) for name in methods}
    for name, calibrator in made.items():
        if not isinstance(calibrator, Calibrator):
            raise TypeError(f"methods must be calibrators by name, got {name!r}: {type(calibrator).__name__}")
    if not made or AS_IS in made:
        raise ValueError(f"methods must name at least one calibrator, and none {AS_IS!r}, got {list(made)}")
    values, target = as_tensor("logits", logits), as_tensor("target", target)
    if values.ndim == 1 and binary is None:
        binary = "top_label"
    rows = as_rows(values, target, input=input, ignore_index=ignore_index, binary=binary)
    if len(rows) < max(LEAST, folds):
        raise ValueError(f"cross-fitting needs at least {max(LEAST, folds)} samples, got {len(rows)}")
    score = partial(_score, num_bins=num_bins, level=level, seed=seed)
    found = [score(AS_IS, [rows])]
    refused: dict[str, str] = {}
    given = rows.values if input == "logits" else log_probs(rows.values)
    image = _images(target, ignore_index)
    if image is not None and int(image.max()) + 1 < folds:
        raise ValueError(f"{folds} folds of whole images need as many images with labels, got {int(image.max()) + 1}")
    deals = [_deal(rows.target, image, folds, seed + r) for r in range(repeats)]
    for i, (name, calibrator) in enumerate(made.items()):

        def tell(share: float, done: int = i) -> None:
            if progress is not None:
                progress((done + share) / len(made))

        try:
            calibrated, notes = _out_of_fold(calibrator, rows, deals, folds, tell)
        except ValueError as error:
            refused[name] = str(error)
            tell(1.0)
        else:
            after = [replace(rows, values=of_repeat, input="logits", dtype=torch.float64) for of_repeat in calibrated]
            changed = torch.stack([of_repeat.argmax(1) != given.argmax(1) for of_repeat in calibrated])
            found.append(score(name, after, changed=float(changed.double().mean()), notes=notes))
    ranking = rank(found, made, rows.target, rows.num_classes, level)
    return CrossFit(**ranking._asdict(), refused=refused, folds=folds, repeats=repeats, level=level, seed=seed)


def _images(target: Tensor, ignore_index: int) -> Tensor | None:
    """Of a dense target, to which image each kept row belongs; images without any are not counted."""
    if target.ndim < 2:
        return None
    kept = target != ignore_index
    image = kept.flatten(1).any(1).cumsum(0) - 1
    return image.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)[kept]


def _deal(target: Tensor, image: Tensor | None, folds: int, seed: int) -> Tensor:
    """A fold for each row: shuffled, then by class dealt out one after the other; or image by image."""
    generator = torch.Generator().manual_seed(seed)
    if image is not None:
        order = torch.randperm(int(image.max()) + 1, generator=generator).to(image.device)
        return (order % folds)[image]
    shuffled = torch.randperm(len(target), generator=generator).to(target.device)
    order = shuffled[target[shuffled].argsort(stable=True)]
    fold = torch.empty_like(target)
    fold[order] = torch.arange(len(target), device=target.device) % folds
    return fold


def _out_of_fold(
    calibrator: Calibrator, rows: Rows, deals: list[Tensor], folds: int, tell: Progress
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Of each deal all rows, each calibrated by a fit on the other folds; and what the fits had to say."""
    values, results, notes = rows.values, list[Tensor](), list[str]()
    for r, fold in enumerate(deals):
        result = torch.empty(values.shape, dtype=compute_dtype(values), device=values.device)
        for k in range(folds):
            here = fold == k
            fitted = copy.deepcopy(calibrator).fit(values[~here], rows.target[~here], input=rows.input)
            result[here] = fitted(values[here], input=rows.input)
            assert fitted.report is not None
            notes += fitted.report.notes
            if not fitted.report.converged:
                notes.append("a fit did not converge")
            tell((r + (k + 1) / folds) / len(deals))
        results.append(result)
    return results, of_all_folds(notes)


def _score(
    name: str,
    repeats: list[Rows],
    *,
    num_bins: int,
    level: float,
    seed: int,
    changed: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Unranked:
    """Metrics, and the same on resampled data: the draws depend on the seed alone, and are the same for all methods."""
    seen = [(rows, scan(rows, num_bins=num_bins, scores=True, classwise=True)) for rows in repeats]
    first = evaluate_rows(*seen[0], num_bins, inference=True, level=level, seed=seed)
    found = [first, *(evaluate_rows(*one, num_bins) for one in seen[1:])]
    return unranked(name, found, seen, num_bins=num_bins, seed=seed, changed=changed, notes=notes)
