"""Every calibrator: fitted, used, saved and loaded; comparisons of calibrators; calibration of shifted data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import inputs
import numpy as np
import torch
from torch import Tensor
from values import Recording, Section

from dualfocal import calibrators as package

CHAINS = ("temperature+isotonic", "vector+histogram")


def fit_and_use(name: str, values: Tensor, target: Tensor, new: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Fit a calibrator; return its report, its file, and what it makes of new predictions, also after loading."""
    calibrator = package.make_calibrator(name, force=True).fit(values, target, **options)
    path = Path("fitted.npz")
    package.save_calibrator(calibrator, path)
    with np.load(path) as arrays:
        parameters = {key: arrays[key] for key in sorted(arrays.files) if arrays[key].dtype.kind in "biuf"}
    calibrated: dict[str, Any] = {"report": calibrator.report, "parameters": parameters}
    back = package.load_calibrator(path)
    for kind, given in (("float32", new.float()), ("float64", new), ("probs", new.softmax(1))):
        try:
            calibrated[kind] = calibrator(given, input="probs" if kind == "probs" else "logits")
            loaded = back(given, input="probs" if kind == "probs" else "logits")
            calibrated[f"{kind}-loaded"] = torch.equal(loaded, calibrated[kind])
        except ValueError:  # some must be used on what they were fitted to
            calibrated[kind] = "refused"
    return calibrated


def calibrators(rec: Recording) -> None:
    """Every calibrator on logits and on probabilities, two, five and many classes, and on one score."""
    names = (*package.CALIBRATORS, *CHAINS)
    for label, n, num_classes in (("two", 300, 2), ("five", 400, 5), ("many", 500, 20)):
        logits, target = inputs.sample(n, num_classes, 40 + num_classes)
        new, y = inputs.tensors(inputs.sample(30, num_classes, 41)[0], target)
        for kind in ("float32", "float64", "probs"):
            if kind == "probs":
                z, options = torch.from_numpy(inputs.softmax(logits)), {"input": "probs"}
            else:
                z, options = torch.from_numpy(logits).to(getattr(torch, kind)), {}
            for name in names:
                if label != "many" or (kind == "float32" and name != "vector+histogram"):
                    rec.call(f"{label}/{kind}/{name}", fit_and_use, name, z, y, new, options)
    two, outcome = inputs.sample(400, 2, 45)
    score, y = inputs.tensors((two[:, 1] - two[:, 0]).astype(np.float32), outcome)
    for name in names:
        fitted = package.make_calibrator(name, force=True).fit(score, y)
        rec.put(f"one-score/{name}", fitted(score[:50]))
    variants(rec)


def variants(rec: Recording) -> None:
    """Options of calibrators, a calibrated model, and `apply_calibrator`."""
    logits, target = inputs.tensors(*inputs.sample(400, 4, 46))
    made: dict[str, Callable[[], Any]] = {
        "ece-7": lambda: package.TemperatureScaling("ece", num_bins=7),
        "vector-prior": lambda: package.VectorScaling(prior=2.5),
        "matrix-prior": lambda: package.MatrixScaling(prior=0.5, force=True),
        "dirichlet-prior": lambda: package.DirichletCalibration(prior=0.1, force=True),
        "histogram-width": lambda: package.HistogramBinning(9, bins="width", smoothing=0.5),
        "isotonic-0": lambda: package.IsotonicCalibration(smoothing=0.0),
        "chain": lambda: package.Chain(package.TemperatureScaling(), package.BetaCalibration()),
    }
    for name, make in made.items():
        calibrator = make().fit(logits, target)
        rec.put(f"variants/{name}", calibrator(logits[:40]))
        rec.put(f"application/{name}", package.apply_calibrator(calibrator, logits[200:300], target[200:300]))
    ignored = torch.where(torch.arange(400) % 5 == 0, -100, target)
    rec.put("variants/ignored", package.VectorScaling().fit(logits, ignored)(logits[:40]))
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4).double()
    fitted = package.TemperatureScaling().fit(model(logits).detach(), target)
    for output in ("probs", "logits"):
        rec.put(f"model/{output}", package.CalibratedModel(model, fitted, output=output)(logits[:30]))
    rec.put("log_probs", package.log_probs(torch.from_numpy(inputs.softmax(logits.numpy()))[:30]))


def multilabel_calibrators(rec: Recording) -> None:
    """Calibrators of multi-label predictions, and their comparison."""
    logits, target = inputs.labelled(300, 5, 110)
    z, y = inputs.tensors(logits, target)
    for name in package.MULTILABEL_CALIBRATORS:
        calibrator = package.make_multilabel_calibrator(name).fit(z, y)
        rec.put(f"{name}/report", calibrator.report)
        rec.put(f"{name}/values", calibrator(z[:40]))
        package.save_calibrator(calibrator, Path("labels.npz"))
        rec.put(f"{name}/loaded", torch.equal(package.load_calibrator(Path("labels.npz"))(z), calibrator(z)))
    rec.call("compare", package.compare_multilabel_calibrators, logits, target)
    cluster = inputs.clusters(300, 3, 111)
    rec.call("compare/clusters", package.compare_multilabel_calibrators, logits, target, clusters=cluster, seed=2)


def calibrator_comparison(rec: Recording) -> None:
    """`compare_calibrators`: cross-validated, on held-out data, with clusters and weights, binary."""
    five, target = inputs.sample(400, 5, 120)
    two, outcome = inputs.sample(300, 2, 121)
    depends, depends_target, cluster = inputs.clustered(400, 4, 5, 122)
    some = ("temperature", "vector", "isotonic")
    cases: dict[str, tuple[Any, ...]] = {
        "all": (five, target, {"repeats": 1, "methods": tuple(package.CALIBRATORS)}),
        "folds": (five, target, {"methods": ("temperature", "ets", "beta"), "folds": 3, "repeats": 3, "seed": 2}),
        "chain": (inputs.softmax(five), target, {"methods": ("temperature+isotonic", "platt"), "input": "probs"}),
        "validation": (five, target, {"methods": some, "validation": inputs.sample(300, 5, 123)}),
        "binary": (two, outcome, {"methods": ("temperature", "platt", "bbq"), "binary": "positive"}),
        "clusters": (depends, depends_target, {"methods": some, "clusters": cluster}),
        "weight": (five, target, {"methods": some, "sample_weight": inputs.weights(400, 124), "num_bins": 10}),
    }
    for label, (values, labels, options) in cases.items():
        result = rec.call(label, package.compare_calibrators, values, labels, **options)
        if result is not None:
            rec.put(f"{label}/verdict", result.verdict())


def calibrated_shift(rec: Recording) -> None:
    """`calibrate_shift`: cross-validated, and fitted on validation data."""
    logits, target, _ = inputs.clustered(400, 4, 5, 130)
    sets = {f"noise-{i}": (inputs.noisy(logits, 130 + i, sharp=1.2 / i), target) for i in (1, 2)}
    rec.call("cross-validated", package.calibrate_shift, (logits, target), sets)
    validation = inputs.sample(300, 4, 133)
    rec.call("validation", package.calibrate_shift, (logits, target), sets, "vector", validation=validation, seed=1)


SECTIONS = {
    "calibrators": Section(calibrators),
    "multilabel_calibrators": Section(multilabel_calibrators),
    "calibrator_comparison": Section(calibrator_comparison),
    "calibrated_shift": Section(calibrated_shift),
}
