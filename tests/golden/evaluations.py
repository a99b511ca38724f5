"""`evaluate` and `compare` with their inference, groups, multi-label, shift, multiple choice, CORP and risk curves."""

import inputs
import metrics
import numpy as np
from values import Recording, Section

from dualfocal import metrics as package
from dualfocal.metrics.groups import evaluate_groups, quantile_groups
from dualfocal.predictions import load_choices

FEW = {"inference": True, "draws": 400, "seed": 3}  # options of quick inference

CHOICE_SCORES = ("sum", "per-char", "per-byte", "mutual-info")


def evaluate(rec: Recording) -> None:
    """`evaluate` with every input: metrics, bins, floors, p-values, intervals and verdict."""
    for label, (values, labels, options) in metrics.cases().items():
        if label == "root":  # an option of the Brier score
            continue
        result = rec.call(label, package.evaluate, values, labels, **FEW, **options)
        if result is not None:
            rec.put(f"{label}/verdict", result.verdict())
    five, target = inputs.sample(600, 5, 30)
    rec.call("plain", package.evaluate, five, target)
    rec.call("default-draws", package.evaluate, five, target, inference=True, level=0.95)
    right = inputs.softmax(five).argmax(1) == target
    confidence = inputs.softmax(five).max(1)
    rec.call("confidence", package.evaluate, confidence, right.astype(int), input="confidence", **FEW)
    rec.put("scalars", package.evaluate(five, target, **FEW).scalars())


def compare(rec: Recording) -> None:
    """`compare`: two models, with clusters, weights, kinds of input, binary."""
    five, target = inputs.sample(600, 5, 30)
    two, outcome = inputs.sample(400, 2, 32)
    depends, depends_target, cluster = inputs.clustered(600, 4, 6, 36)
    other, weight = inputs.noisy(five, 35), inputs.weights(600, 33)
    cases = {
        "five": (five, other, target, {}),
        "kinds": (
            package.Samples.from_arrays(five, target),
            package.Samples.from_arrays(inputs.softmax(other), target, input="probs"),
            None,
            {"seed": 5},
        ),
        "binary": (two, 0.5 * two, outcome, {"binary": "positive", "level": 0.8}),
        "bins": (five, other, target, {"num_bins": 8}),
        "weight": (five, other, target, {"sample_weight": weight}),
        "clusters": (depends, inputs.noisy(depends, 39), depends_target, {"clusters": cluster}),
        "clusters-weight": (
            *(depends, inputs.noisy(depends, 39), depends_target),
            {"clusters": cluster, "sample_weight": weight},
        ),
        "itself": (five, five, target, {}),
    }
    for label, (a, b, labels, options) in cases.items():
        result = rec.call(label, package.compare, a, b, labels, **options)
        if result is not None:
            rec.put(f"{label}/verdict", result.verdict())


def groups(rec: Recording) -> None:
    """Evaluation of each group of samples, also with clusters and weights."""
    logits, target, cluster = inputs.clustered(900, 4, 6, 40)
    rng = np.random.default_rng(41)
    hospital = np.array(["north", "south", "east"])[rng.integers(0, 3, len(target))]
    weight = inputs.weights(len(target), 42)
    rec.call("plain", evaluate_groups, logits, target, groups=hospital)
    rec.call("clusters", evaluate_groups, logits, target, groups=hospital, clusters=cluster, seed=2)
    rec.call("weight", evaluate_groups, logits, target, groups=hospital, sample_weight=weight)
    age = rng.normal(50, 10, len(target))
    quantiles = rec.call("quantiles", quantile_groups, age, 4)
    rec.call("by-quantile", evaluate_groups, logits, target, groups=np.asarray(quantiles))


def multilabel(rec: Recording) -> None:
    """Multi-label evaluation, with clusters and with ignored entries."""
    logits, target = inputs.labelled(400, 6, 50)
    ignored = np.where(np.random.default_rng(51).random(target.shape) < 0.1, -100, target)
    probs = 1 / (1 + np.exp(-logits))
    names = ["ant", "bee", "cat", "dog", "eel", "fox"]
    cases = {
        "plain": (logits, target, {"inference": False}),
        "inference": (logits, target, {"class_names": names}),
        "probs": (probs, target, {"input": "probs", "num_bins": 8}),
        "ignored": (logits, ignored, {}),
        "clusters": (logits, target, {"clusters": inputs.clusters(400, 4, 52)}),
        "rare": (*inputs.labelled(250, 12, 53, sharp=1.0), {"level": 0.95}),
    }
    for label, (values, labels, options) in cases.items():
        result = rec.call(label, package.evaluate, values, labels, task="multilabel", **{**FEW, **options})
        rec.put(f"{label}/scalars", result.scalars())
        if label != "plain":
            rec.put(f"{label}/verdict", result.verdict())


def shift(rec: Recording) -> None:
    """Shifted sets, and the area under the ROC curve with its intervals."""
    logits, target, cluster = inputs.clustered(400, 4, 5, 60)
    sets = {f"noise-{i}": (inputs.noisy(logits, 60 + i, sharp=1.2 / i), target) for i in (1, 2)}
    sets["unlabelled-1"] = (inputs.sample(300, 4, 63)[0], None)
    rec.call("plain", package.evaluate_shift, (logits, target), sets)
    by_cluster = {
        name: package.Samples.from_arrays(*pair, clusters=cluster[: len(pair[0])]) for name, pair in sets.items()
    }
    test = package.Samples.from_arrays(logits, target, clusters=cluster)
    rec.call("clusters", package.evaluate_shift, test, by_cluster, level=0.95, seed=4, num_bins=10)
    probs = inputs.softmax(logits)
    rec.call(
        "probs",
        package.evaluate_shift,
        package.Samples.from_arrays(probs, target, input="probs"),
        {"noise": sets["noise-1"]},
    )
    score, other = probs.max(1), inputs.softmax(inputs.noisy(logits, 64)).max(1)
    right = probs.argmax(1) == target
    rec.call("auroc", package.auroc, score, right)
    rec.call("auroc/clusters", package.auroc, score, right, level=0.8, clusters=cluster)
    rec.call("compare_auroc", package.compare_auroc, score, other, right)
    rec.call("compare_auroc/clusters", package.compare_auroc, score, other, right, clusters=cluster)


def choices(rec: Recording) -> None:
    """Multiple choice: questions with different numbers of options, and the logs of real harnesses."""
    rng = np.random.default_rng(70)
    num_options = rng.integers(2, 6, 300)
    scores = 1.5 * rng.normal(size=num_options.sum())
    starts = np.cumsum(num_options) - num_options
    right = np.array(
        [(scores[s : s + n] / 1.6 + rng.gumbel(size=n)).argmax() for s, n in zip(starts, num_options, strict=True)]
    )
    plain = package.Choices(scores, num_options, right)
    clustered = package.Choices(scores, num_options, right, clusters=inputs.clusters(300, 4, 71))
    rec.call("plain", package.evaluate_choices, plain)
    rec.call("inference", package.evaluate_choices, plain, **FEW)
    rec.call("clusters", package.evaluate_choices, clustered, **FEW)
    rec.call("tasks", package.evaluate_tasks, {"first": plain, "second": clustered}, inference=True)
    for kind, paths in {
        "lm-eval": sorted(inputs.LOGS.glob("samples_*")),
        "inspect": [inputs.LOGS / "inspect_colours.json"],
    }.items():
        for log in load_choices(paths, format=kind):
            for score in CHOICE_SCORES:
                options = rec.call(f"logs/{kind}/{log.task}/{score}/choices", choices_of, log, score)
                if options is not None:
                    rec.call(f"logs/{kind}/{log.task}/{score}/evaluation", evaluate_log, log, score)
    (packed,) = load_choices(inputs.LOGS / "inspect_colours.eval", format="inspect")
    rec.put("logs/packed", choices_of(packed, CHOICE_SCORES[0]))
    rec.put("logs/files", [path.name for path in sorted(inputs.LOGS.iterdir(), key=lambda path: path.name)])


def choices_of(log: object, score: str) -> dict[str, object] | None:
    """Return the options of a log, or None if it has no such score."""
    try:
        found = log.choices(score)
    except ValueError:
        return None
    return {"probs": found.probs(), "num_options": found.num_options, "right": found.right, "clusters": found.clusters}


def evaluate_log(log: object, score: str) -> object:
    """Evaluate a log; those of the tests are short."""
    found = log.choices(score)
    return package.evaluate_choices(found, inference=len(found.right) >= 10, draws=200)


def curves(rec: Recording) -> None:
    """CORP, linear calibration and the risk-coverage curve."""
    five, target = inputs.sample(400, 5, 80)
    two, outcome = inputs.sample(300, 2, 81)
    rec.call("corp/five", package.corp, five, target, draws=200)
    rec.call("corp/positive", package.corp, two, outcome, binary="positive", draws=200, seed=3, level=0.8)
    probs = inputs.softmax(five)
    for label, given in (("plain", None), ("weight", inputs.weights(400, 83))):
        curve = package.RiskCoverage.from_confidence(probs.max(1), probs.argmax(1) == target, given)
        rec.put(f"risk/{label}", curve)
        rec.call(f"risk/{label}/risks", curve.risks, np.linspace(0.05, 1.0, 20))
        rec.call(f"risk/{label}/threshold", curve.threshold, 0.8)


SECTIONS = {
    "evaluate": Section(evaluate),
    "compare": Section(compare),
    "groups": Section(groups),
    "multilabel": Section(multilabel),
    "shift": Section(shift),
    "choices": Section(choices),
    "curves": Section(curves),
}
