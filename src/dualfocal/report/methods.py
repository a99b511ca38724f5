"""The methods paragraph of a report, to copy into a paper or a protocol."""

import platform
from collections.abc import Sequence

import numpy as np
import torch

import dualfocal
from dualfocal.calibrators.comparison import UNCALIBRATED
from dualfocal.metrics.inference_result import Inference
from dualfocal.predictions import Reading
from dualfocal.report.calibrated import Calibration
from dualfocal.report.decision import Decision
from dualfocal.report.inputs import ReportInput
from dualfocal.tables import quantity


def methods_text(
    sources: Sequence[ReportInput], calibrations: Sequence[Calibration], decision: Decision, reading: Reading
) -> str:
    """Return samples, bins, tests, intervals, calibrators and versions in a paragraph."""
    inference = sources[0].evaluation.inference
    assert inference is not None
    sentences = [
        _samples(sources),
        _scores(sources[0], reading),
        _tests(inference, sources[0].samples.positive),
        *_comparison(decision),
        *_calibrators(calibrations),
        f"The seed of all random numbers was {reading.seed}.",
        f"Computed with dualfocal {dualfocal.__version__}, PyTorch {torch.__version__.split('+')[0]}, NumPy "
        f"{np.__version__} and Python {platform.python_version()}.",
    ]
    return " ".join(sentences)


def _samples(sources: Sequence[ReportInput]) -> str:
    counts = sorted(
        {(len(source.samples), source.samples.num_classes, source.samples.num_clusters) for source in sources}
    )
    sizes = []
    for samples, num_classes, clusters in counts:
        within = "" if clusters is None else f" in {quantity(clusters, 'cluster')}"
        sizes.append(f"N = {quantity(samples, 'sample')}{within} of {num_classes:,} classes")
    weights = [source.evaluation.weights for source in sources if source.evaluation.weights is not None]
    if weights:
        effective = " or ".join(dict.fromkeys(f"{round(summary.effective):,}" for summary in weights))
        sizes[-1] += f", with sample weights (effective sample size {effective})"
    models = "One model was" if len(sources) == 1 else f"{len(sources)} models were"
    return f"{models} evaluated on {' or '.join(sizes)}."


def _scores(source: ReportInput, reading: Reading) -> str:
    scored = "the probability of class 1" if source.samples.positive else "the confidence of the predicted class"
    bins = quantity(reading.num_bins, "bin")
    return (
        f"The expected calibration error (ECE) of {scored} was computed with {bins} of equal width, the adaptive ECE "
        "with as many bins of equal mass; the debiased RMS error is the root mean square gap over the bins of the ECE, "
        "with the variance of the noise subtracted."
    )


def _tests(inference: Inference, positive: bool) -> str:
    text = (
        "Noise floors and the p-value of the hypothesis that the model is calibrated come from "
        f"{inference.draws:,} draws of the outcomes of a calibrated model with the same confidences (consistency "
        f"resampling); the {100 * inference.level:.4g} % confidence interval of the debiased RMS error inverts this "
        "test."
    )
    if not positive:
        text += " Class probabilities were tested class by class; the two tests were adjusted by Holm's method."
    if inference.clusters is not None:
        text += (
            " Samples of one cluster may depend on each other: a wild bootstrap of clusters widened floors, p-values "
            "and intervals."
        )
    return text


def _comparison(decision: Decision) -> list[str]:
    choice = decision.choice
    if choice is None:
        return []
    models = len(choice.differences) + 1
    pairs = "" if models == 2 else ", simultaneous for all pairs of models (max-t over the resamples)"
    unit = "samples" if choice.num_clusters is None else "clusters"
    level = f"{100 * choice.level:.4g} %"
    return [f"Models were compared by paired differences with {level} bootstrap intervals over {unit}{pairs}."]


def _calibrators(calibrations: Sequence[Calibration]) -> list[str]:
    names: dict[str, None] = {}  # sets that keep the order
    samples: dict[str, None] = {}
    for calibration in calibrations:
        if calibration.comparison is not None:
            names |= dict.fromkeys(method.name for method in calibration.comparison.methods)
            samples[f"{calibration.subset}{calibration.comparison.caveat()}"] = None
    names.pop(UNCALIBRATED, None)
    return [f"Calibrators ({', '.join(names)}):", *samples] if names else []
