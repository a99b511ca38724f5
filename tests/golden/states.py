"""Sums of parts that are merged: predictions, clusters, images, tokens, the monitor."""

from pathlib import Path

import inputs
import numpy as np
import torch
from values import Recording, Section

from dualfocal import metrics as package
from dualfocal.metrics.dense import class_calibration, evaluate_images
from dualfocal.predictions import open_dense_folder, stream_predictions, sum_predictions

FEW = {"draws": 400, "seed": 3}


def binned(rec: Recording) -> None:
    """`CalibrationSums`: whole, in merged parts, read from files and from JSON."""
    five, target = inputs.sample(600, 5, 90)
    two, outcome = inputs.sample(400, 2, 91)
    make = package.CalibrationSums.from_predictions
    cases = {
        "five": make(five, target),
        "parts": make(five[:200], target[:200]) + make(five[200:], target[200:]),
        "float32": make(five.astype(np.float32), target, num_bins=10),
        "probs": make(inputs.softmax(five), target, input="probs"),
        "top_label": make(two, outcome, binary="top_label"),
        "ignored": make(five, np.where(np.arange(600) % 4 == 0, -100, target)),
        "many": make(*inputs.sample(500, 60, 92, sharp=3.0)),
    }
    for label, state in cases.items():
        rec.put(f"{label}/inference", state.evaluate(inference=True, **FEW))
        rec.put(f"{label}/plain", state.evaluate())
        back = package.CalibrationSums.from_dict(state.to_dict())
        rec.put(f"{label}/from_dict", back.evaluate().nll == state.evaluate().nll)
    inputs.write_files()
    for path in ("five.csv", "five.csv.gz", "five.parquet", "five.safetensors", "binary.csv"):
        binary = {"probs": "score", "target": "outcome", "binary": "top_label"} if path == "binary.csv" else {}
        state = sum_predictions(path, **binary)
        rec.put(f"files/{path}", state.evaluate(inference=True, **FEW))
    stream = stream_predictions("words.csv", num_rows=250)
    chunks = [{"values": chunk.values, "labels": chunk.labels, "names": chunk.class_names} for chunk in stream]
    rec.put("stream/chunks", chunks)
    rec.put("stream/evaluation", stream.sums().evaluate())


def clustered(rec: Recording) -> None:
    """`CalibrationSums` with clusters, of predictions and of confidences, in one part and in several."""
    logits, target, cluster = inputs.clustered(600, 4, 6, 95)
    make, of_confidences = package.CalibrationSums.from_predictions, package.CalibrationSums.from_confidences
    rec.put("predictions/whole", make(logits, target, clusters=cluster).evaluate(**FEW))
    names = np.unique(cluster)
    order = [*names[names % 2 == 0], *names[names % 2 == 1]]
    parts = [make(logits[cluster == i], target[cluster == i], clusters=int(i)) for i in order]
    rec.put("predictions/parts", sum(parts).evaluate(**FEW))
    probs = inputs.softmax(logits)
    confidence, right = probs.max(1), probs.argmax(1) == target
    nll = -np.log(probs[np.arange(600), target])
    scored = [
        of_confidences(confidence[part], right[part], num_bins=10, clusters=cluster[part], nll=nll[part])
        for part in np.array_split(np.arange(600), 3)
    ]
    rec.put("confidences/nll", sum(scored).evaluate(**FEW))
    plain = of_confidences(confidence, right, clusters=np.array([f"text {i}" for i in cluster]))
    rec.put("confidences/plain", plain.evaluate(**FEW))
    rec.put("confidences/from_dict", package.CalibrationSums.from_dict(plain.to_dict()).evaluate(**FEW))


def dense(rec: Recording) -> None:
    """Segmentation: a folder of images, images in memory, the boundary, each class."""
    inputs.write_images()
    folder = open_dense_folder(Path("dense"))
    rec.put("folder", [{"name": image.name, "values": image.values, "target": image.target} for image in folder])
    images = ((image.name, image.values, image.target) for image in folder)
    result = evaluate_images(images, ignore_index=255, boundary=2)
    rec.put("images", result.images)
    rec.put("worst", result.worst_images)
    for name, state in {"total": result.total, **result.parts}.items():
        rec.put(f"{name}/evaluation", state.evaluate(**FEW))
    rec.put("classes", class_calibration(result.total))
    one = {name: pair for name, pair in inputs.images(4, 75, num_classes=4).items() if name in ("image0", "image3")}
    values = np.stack([pair[0] for pair in one.values()])
    labels = np.stack([pair[1] for pair in one.values()]).astype(np.int64)
    make = package.CalibrationSums.from_predictions
    by_image = make(values, labels, ignore_index=255, num_bins=8, clusters=np.arange(len(values)))
    rec.put("array", by_image.evaluate(**FEW))
    rec.put("array/metrics", package.evaluate(values, labels, ignore_index=255, inference=True, **FEW))


def tokens(rec: Recording) -> None:
    """`TokenConfidences`: all tokens, by frequency and by position, with sequences as clusters."""
    found = inputs.tokens(60, 20, 97)
    half = len(found.confidence) // 2

    def filled(parts: list[slice], counts: dict[int, int] | None) -> package.TokenConfidences:
        state = package.TokenConfidences(counts)
        for part in parts:
            confidence, right, position = inputs.tensors(
                found.confidence[part], found.right[part], found.position[part]
            )
            predicted, nll, brier = inputs.tensors(found.predicted[part], found.nll[part], found.brier[part])
            given = {} if counts is None else {"predicted": predicted}
            sequence = found.sequence[part]
            state.update(confidence, right, sequence=sequence, position=position, nll=nll, brier=brier, **given)
        return state

    parts = [slice(0, half), slice(half, None)]
    rec.put("plain", filled(parts, None).evaluate(**FEW))
    counted = filled(parts, found.counts)
    result = counted.evaluate(**FEW)
    rec.put("counts", result)
    rec.put("counts/verdict", result.verdict())
    rec.put("perplexity", result.perplexity)
    rec.put("merged", (filled(parts[:1], found.counts) + filled(parts[1:], found.counts)).evaluate(**FEW))
    rec.put("from_dict", package.TokenConfidences.from_dict(counted.to_dict()).evaluate(**FEW))


def monitor(rec: Recording) -> None:
    """`CalibrationMonitor`: evidence, alarm, history and state after each period."""
    cases = {
        "plain": {},
        "classwise": {"classwise": True, "num_bins": 10},
        "tolerance": {"tolerance": 0.02, "cluster_size": 3, "alpha": 0.01},
    }
    for label, options in cases.items():
        made = package.CalibrationMonitor(**options)
        for day in range(6):
            sharp = 1.0 if day < 3 else 1.8
            logits, target = inputs.sample(120, 4, 100 + day, sharp=sharp)
            made.update(logits, target, time=f"day-{day}")
            rec.put(f"{label}/{day}", {"log_evidence": made.log_evidence, "p_value": made.p_value})
        rec.put(f"{label}/state", made)
        rec.put(f"{label}/verdict", made.verdict())
        back = package.CalibrationMonitor.from_dict(made.to_dict())
        back.update(*inputs.sample(120, 4, 107), time="day-6")
        rec.put(f"{label}/continued", {"log_evidence": back.log_evidence, "source": back.source})
    two, outcome = inputs.sample(300, 2, 108)
    positive = package.CalibrationMonitor(binary="positive")
    positive.update(torch.from_numpy(two[:, 1] - two[:, 0]), torch.from_numpy(outcome), time="all")
    rec.put("positive/log_evidence", positive.log_evidence)
    confidence = package.CalibrationMonitor()
    probs = inputs.softmax(two)
    confidence.update(probs.max(1), (probs.argmax(1) == outcome).astype(int), input="confidence", time="all")
    rec.put("confidence/log_evidence", confidence.log_evidence)
    collected = [
        package.CalibrationMonitor().collect(two[part], outcome[part]) for part in (slice(150), slice(150, 300))
    ]
    merged = package.CalibrationMonitor()
    merged.add(collected[0] + collected[1], time="all")
    rec.put("merged/log_evidence", merged.log_evidence)


SECTIONS = {
    "binned": Section(binned),
    "clustered": Section(clustered),
    "dense": Section(dense),
    "tokens": Section(tokens),
    "monitor": Section(monitor),
}
