"""Every metric as a function and as a torchmetrics class."""

import contextlib
import inspect
from typing import Any

import inputs
import numpy as np
import torch
from values import Recording, Section

from dualfocal import metrics as package

NAMES = (
    *("ece", "adaptive_ece", "classwise_ece", "mce", "debiased_ece", "kde_ece"),
    *("nll", "brier_score", "brier_decomposition", "error_rate", "aurc"),
)
STREAMS: dict[str, dict[str, Any]] = {
    "ExpectedCalibrationError": {},
    "MaximumCalibrationError": {"num_bins": 10},
    "ClasswiseCalibrationError": {"num_classes": 5},
    "BrierScore": {"root": True},
}
Case = tuple[Any, Any, dict[str, Any]]  # logits, target, options


def cases() -> dict[str, Case]:
    """Return inputs of metrics and of `evaluate`: kinds, dtypes, conventions, weights, clusters."""
    five, target = inputs.sample(600, 5, 30)
    many, many_target = inputs.sample(500, 100, 31, sharp=3.0)
    two, outcome = inputs.sample(400, 2, 32)
    depends, depends_target, cluster = inputs.clustered(600, 4, 6, 36)
    weight = inputs.weights(600, 33)
    dense, dense_target = inputs.images(1, 37)["image0"]
    few = {"target": np.where(np.arange(600) % 4 == 0, -100, target)}
    return {
        "float32": (five.astype(np.float32), target, {}),
        "float64": (five, target, {}),
        "bfloat16": (torch.from_numpy(five).bfloat16(), torch.from_numpy(target), {}),
        "float16": (torch.from_numpy(five).half(), torch.from_numpy(target), {}),
        "probs": (inputs.softmax(five), target, {"input": "probs"}),
        "bins7": (five, target, {"num_bins": 7}),
        "ignored": (five, few["target"], {}),
        "dense": (dense[None], dense_target[None].astype(np.int64), {"ignore_index": 255}),
        "many": (many.astype(np.float32), many_target, {}),
        "top_label": (two, outcome, {"binary": "top_label"}),
        "positive": (two, outcome, {"binary": "positive"}),
        "score": (inputs.softmax(two)[:, 1], outcome, {"input": "probs", "binary": "positive"}),
        "one-logit": (two[:, 1] - two[:, 0], outcome, {"binary": "top_label"}),
        "published": (five, target, {"convention": "published"}),
        "torchmetrics": (five, target, {"convention": "torchmetrics"}),
        "weight": (five, target, {"sample_weight": weight}),
        "weight-positive": (two, outcome, {"sample_weight": weight[:400], "binary": "positive"}),
        "weight-by-label": (five, target, {"sample_weight": np.array([1.0, 2.0, 0.5, 1.0, 3.0])[target]}),
        "root": (five, target, {"root": True}),
        "clusters": (depends, depends_target, {"clusters": cluster}),
        "clusters-names": (depends, depends_target, {"clusters": np.array([f"patient {i}" for i in cluster])}),
        "clusters-weight": (depends, depends_target, {"clusters": cluster, "sample_weight": weight}),
        "clusters-positive": (two, outcome, {"clusters": inputs.clusters(400, 4, 38), "binary": "positive"}),
    }


WITHOUT = {  # options that mean nothing for a metric
    "classwise_ece": {"binary"},
    "brier_decomposition": {"binary"},
    "kde_ece": {"binary", "sample_weight"},
}


def metrics(rec: Recording) -> None:
    """Every metric with every input that it takes."""
    for name in NAMES:
        function = getattr(package, name)
        known = {*inspect.signature(function).parameters, "input", "ignore_index"}
        known |= {"binary", "sample_weight"} - WITHOUT.get(name, set())
        for label, (values, labels, options) in cases().items():
            if set(options) <= known and (name, label) != ("adaptive_ece", "torchmetrics"):  # which has none
                rec.call(f"{name}/{label}", function, values, labels, **options)
    five, target = inputs.sample(600, 5, 30)
    for norm in (1.0, 2.0):
        rec.call(f"kde_ece/norm{norm}", package.kde_ece, five, target, bandwidth=0.05, norm=norm)
    rec.call("kde_ece/as_published", package.kde_ece, five, target, bandwidth=0.05, as_published=True)
    foreign = 0.5 * inputs.sample(300, 5, 34)[0]
    for score in ("entropy", "confidence", "max_prob", "msp", "max_logit"):
        with contextlib.suppress(ValueError):  # not a score of this version
            rec.put(f"ood_auroc/{score}", package.ood_auroc(five, foreign, score=score))
    rec.call("holm", package.holm, [0.01, 0.04, 0.03, 0.5])
    rec.call("holm/weights", package.holm, [0.01, 0.04, 0.03, 0.5], [2.0, 1.0, 1.0, 1.0])


def streaming(rec: Recording) -> None:
    """The torchmetrics classes, updated in four parts, and two of them merged."""
    five, target = inputs.tensors(*inputs.sample(600, 5, 30))
    for name, options in STREAMS.items():
        metric, first, second = (getattr(package, name)(**options) for _ in range(3))
        for i, part in enumerate(np.array_split(np.arange(600), 4)):
            metric.update(five[part].float(), target[part])
            (first if i < 2 else second).update(five[part].float(), target[part])
        rec.put(f"{name}/value", metric.compute())
        first.merge_state(second)
        rec.put(f"{name}/merged", first.compute())


SECTIONS = {"metrics": Section(metrics), "streaming": Section(streaming, needs=("torchmetrics",))}
