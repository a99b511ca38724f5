"""Which calibrator helps, where there are data to fit on and others to score on: a run's validation and test part."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._inputs import log_probs
from dualfocal.calibrators.ranking import AS_IS, unranked
from dualfocal.calibrators.tried import Tried, rank
from dualfocal.metrics.evaluation import Evaluation, evaluate_rows
from dualfocal.metrics.resampling import Progress
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan, scan


@dataclass(frozen=True, kw_only=True)
class HeldOut(Tried):
    """Calibrators fitted on one part of a run and scored on another, and the model as it is."""

    fitted: dict[str, Calibrator]
    fit_samples: int
    scored_part: str
    scored_samples: int

    def verdict(self) -> str:
        """What to do, in a few sentences."""
        return f"{super().verdict()}{choice(self)}"

    def caveat(self) -> str:
        """What the numbers are of."""
        return (
            f"Fitted on the run's validation part ({self.fit_samples:,} samples), scored on its {self.scored_part} "
            f"part ({self.scored_samples:,}), which no fit has seen."
        )

    def _how(self) -> dict[str, object]:
        return {
            "fitted_on": {"part": "val", "num_samples": self.fit_samples},
            "scored_on": {"part": self.scored_part, "num_samples": self.scored_samples},
        }


def choice(tried: Tried) -> str:
    """A choice by the numbers that it is then praised with looks better than it is."""
    among = len(tried.methods) - 1
    return f" (Chosen among {among} methods on these same samples.)" if among > 1 else ""


def fit_and_score(
    validation: Rows,
    rows: Rows,
    methods: Mapping[str, Calibrator],
    *,
    part: str,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    known: tuple[Scan, Evaluation] | None = None,
    progress: Progress | None = None,
) -> HeldOut:
    """Fit calibrators on the validation part of a run and score them on another, beside the model as it is.

    Args:
        validation: what is fitted on.
        rows: what is scored.
        methods: calibrators by name; they stay as they are.
        part: the name of what is scored.
        num_bins: as :func:`~dualfocal.metrics.ece`.
        level: nominal coverage of the intervals.
        seed: of floors and resampling.
        known: of ``rows``, where it is at hand: the scan and the evaluation with inference.
        progress: called with the share of the work done.

    Returns:
        The methods by NLL. One that refuses the data is listed with its reason.
    """

    def seen_and_scored(of: Rows) -> tuple[Scan, Evaluation]:
        seen = scan(of, num_bins=num_bins, scores=True, classwise=True)
        return seen, evaluate_rows(of, seen, num_bins, inference=True, level=level, seed=seed)

    seen, as_is = known or seen_and_scored(rows)
    found = [unranked(AS_IS, [as_is], [(rows, seen)], num_bins=num_bins, seed=seed)]
    refused, fitted = dict[str, str](), dict[str, Calibrator]()
    before = (rows.values if rows.input == "logits" else log_probs(rows.values)).argmax(1)
    for done, (name, unfitted) in enumerate(methods.items()):
        try:
            calibrator = copy.deepcopy(unfitted).fit(validation.values, validation.target, input=validation.input)
            calibrated = calibrator(rows.values, input=rows.input)
            after = replace(rows, values=calibrated, input="logits", dtype=torch.float64)
            seen, scored = seen_and_scored(after)
        except ValueError as error:
            refused[name] = str(error)
        else:
            assert calibrator.report is not None
            changed, notes = float((before != calibrated.argmax(1)).double().mean()), calibrator.report.notes
            notes = notes if calibrator.report.converged else (*notes, "the fit did not converge")
            draws = {"num_bins": num_bins, "seed": seed}
            found.append(unranked(name, [scored], [(after, seen)], **draws, changed=changed, notes=notes))
            fitted[name] = calibrator
        if progress is not None:
            progress((done + 1) / len(methods))
    every_label = torch.cat([validation.target, rows.target])
    ranking = rank(found, methods, every_label, rows.num_classes, level)
    return HeldOut(
        **ranking._asdict(),
        refused=refused,
        level=level,
        seed=seed,
        fitted=fitted,
        fit_samples=len(validation),
        scored_part=part,
        scored_samples=len(rows),
    )
