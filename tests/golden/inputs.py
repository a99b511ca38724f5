"""Small data sets, made by numpy from fixed seeds: the same for any version of torch."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "lab" / "results"  # run folders of the repository
LOGS = ROOT / "tests" / "predictions" / "logs"  # logs of language models
Arrays = tuple[np.ndarray, np.ndarray]
NAMES = ("ant", "bee", "cat", "dog", "eel")


def sample(n: int, num_classes: int, seed: int, *, sharp: float = 1.8) -> Arrays:
    """Return logits, biased and too large by the factor ``sharp``, and the labels that they are about."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((n, num_classes))
    biased = logits + np.linspace(-0.4, 0.4, num_classes)
    target = (biased + rng.gumbel(size=logits.shape)).argmax(1)
    return sharp * logits, target


def noisy(logits: np.ndarray, seed: int, *, sharp: float = 0.6) -> np.ndarray:
    """Return the logits of another model of the same samples."""
    return sharp * logits + 0.5 * np.random.default_rng(seed).standard_normal(logits.shape)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits ``(N, C)``."""
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def clusters(n: int, size: int, seed: int) -> np.ndarray:
    """Return the cluster of each sample, of ``size`` samples on average."""
    return np.random.default_rng(seed).integers(0, n // size, n)


def clustered(n: int, num_classes: int, size: int, seed: int, *, sharp: float = 1.5) -> tuple[np.ndarray, ...]:
    """Return logits, labels and clusters; the samples of a cluster share an error of the model."""
    logits, _ = sample(n, num_classes, seed, sharp=1.0)
    rng = np.random.default_rng(seed + 1000)
    cluster = clusters(n, size, seed + 2000)
    shared = 0.7 * rng.standard_normal((n, num_classes))[cluster]
    return sharp * logits, (logits + shared + rng.gumbel(size=logits.shape)).argmax(1), cluster


def weights(n: int, seed: int) -> np.ndarray:
    """Return positive weights of samples."""
    return np.random.default_rng(seed).gamma(2.0, 0.5, n) + 0.05


def labelled(n: int, num_labels: int, seed: int, *, sharp: float = 1.5) -> Arrays:
    """Return logits and 0/1 targets of a multi-label problem; the labels of a sample depend on each other."""
    rng = np.random.default_rng(seed)
    logits = 1.3 * rng.standard_normal((n, num_labels)) - np.linspace(0.0, 2.0, num_labels)
    shared = 0.5 * rng.standard_normal((n, 1))
    target = (rng.random((n, num_labels)) < 1 / (1 + np.exp(-logits - shared))).astype(np.int64)
    return sharp * logits, target


class Tokens(NamedTuple):
    """Predicted tokens of several sequences."""

    confidence: np.ndarray
    right: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    predicted: np.ndarray
    nll: np.ndarray
    brier: np.ndarray
    counts: dict[int, int]


def tokens(num_sequences: int, length: int, seed: int) -> Tokens:
    """Return the predictions of a language model with 12 tokens."""
    logits, target = sample(num_sequences * length, 12, seed)
    probs = softmax(logits)
    rows = np.arange(len(target))
    predicted = probs.argmax(1)
    return Tokens(
        confidence=probs.max(1),
        right=predicted == target,
        sequence=rows // length,
        position=rows % length + 1,
        predicted=predicted,
        nll=-np.log(probs[rows, target]),
        brier=(probs**2).sum(1) - 2 * probs[rows, target] + 1,
        counts={token: int(3**token) for token in range(12)},
    )


def images(count: int, seed: int, *, side: int = 12, num_classes: int = 3) -> dict[str, Arrays]:
    """Return dense predictions: name of the image -> logits ``(C, H, W)`` and labels ``(H, W)``; some are 255."""
    found = {}
    for i in range(count):
        rng = np.random.default_rng(seed + i)
        height = side + i % 3
        areas = np.arange(num_classes)[:, None, None] == np.arange(side) * num_classes // side  # vertical stripes
        logits = 4.0 * areas + rng.standard_normal((num_classes, height, side))
        target = (0.6 * logits + rng.gumbel(size=logits.shape)).argmax(0).astype(np.uint8)
        target.ravel()[:: 11 + i] = 255
        found[f"image{i}"] = logits.astype(np.float32), target
    return found


def tensors(*values: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Return arrays as tensors."""
    return tuple(map(torch.from_numpy, values))


# ---- files -----------------------------------------------------------------------------------------------------
def write_csv(path: Path, columns: dict[str, Any], delimiter: str = ",") -> None:
    """Write a table of text, compressed if the name ends in .gz."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True))


def write_files() -> None:
    """Write predictions into the current folder, in every format and of every kind that can be read."""
    logits, target = sample(600, 5, 1)
    probs, single = softmax(logits), logits.astype(np.float32)
    np.savez("five.npz", logits=single, target=target)
    np.savez("five64.npz", logits=logits, target=target)
    np.savez("other.npz", logits=noisy(logits, 2).astype(np.float32), target=target)
    np.savez("probs.npz", probs=probs, target=target)
    np.savez("named.npz", out=single, extra=noisy(logits, 2), y=target)
    np.savez("part1.npz", logits=single[:250], target=target[:250])
    np.savez("part2.npz", logits=single[250:], target=target[250:])
    np.savez("ignored.npz", logits=single, target=np.where(np.arange(600) % 7 == 0, 255, target))
    zeros = np.where(probs < 0.01, 0, probs)
    np.savez("zeros.npz", probs=zeros / zeros.sum(1, keepdims=True), target=target)
    halves = {"val": slice(300), "test": slice(300, 600)}
    split = {f"{name}_logits": single[part] for name, part in halves.items()}
    np.savez("split.npz", **split, **{f"{name}_target": target[part] for name, part in halves.items()})
    np.savez("unlabelled.npz", logits=single[:100])
    np.save("logits.npy", single)
    np.save("labels.npy", target)
    write_tensors(single, target)
    write_tables(single, probs, target)
    two, outcome = sample(500, 2, 4)
    score = softmax(two)[:, 1]
    where = np.array(["a", "b"])[np.random.default_rng(5).integers(0, 2, 500)]
    write_csv(Path("binary.csv"), {"score": score, "outcome": outcome, "hospital": where})
    write_csv(Path("yes.csv"), {"score": 100 * score, "outcome": np.array(["no", "yes"])[outcome]})
    np.savez("binary_logit.npz", logits=(two[:, 1] - two[:, 0]).astype(np.float32), target=outcome)
    many, many_target = sample(800, 120, 6, sharp=3.0)
    np.savez("many.npz", logits=many.astype(np.float32), target=many_target)
    for number in (1, 2):
        np.savez(f"noise-{number}.npz", logits=noisy(logits, 10 + number, sharp=1 / number), target=target)
    label_logits, label_target = labelled(300, 4, 7)
    np.savez("labels.npz", logits=label_logits, target=label_target, patient=clusters(300, 4, 8))
    write_images()


def write_tensors(logits: np.ndarray, target: np.ndarray) -> None:
    """Write the formats of torch."""
    from safetensors.torch import save_file

    values, labels = tensors(logits, target)
    save_file({"logits": values, "labels": labels}, "five.safetensors")
    for name, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16)):
        save_file({"logits": values.to(dtype), "target": labels}, f"{name}.safetensors")
    torch.save({"logits": values, "target": labels}, "five.pt")


def write_tables(logits: np.ndarray, probs: np.ndarray, target: np.ndarray) -> None:
    """Write tables, with groups, clusters, weights and an id; and tables of the predicted class alone."""
    import pyarrow
    from pyarrow import feather, ipc, parquet

    n = len(target)
    hospital = np.array(["north", "south", "east"])[np.random.default_rng(3).integers(0, 3, n)]
    extra = {"hospital": hospital, "patient": clusters(n, 5, 9), "weight": weights(n, 10)}
    columns = {f"logit_{k}": logits[:, k] for k in range(5)} | {"target": target, **extra}
    for name, delimiter in (("five.csv", ","), ("five.tsv", "\t"), ("five.csv.gz", ",")):
        write_csv(Path(name), columns, delimiter)
    arrow = pyarrow.table({name: np.asarray(column) for name, column in columns.items()})
    parquet.write_table(arrow, "five.parquet")
    feather.write_feather(arrow, "five.feather")
    with ipc.new_file("five.arrow", arrow.schema) as file:
        file.write_table(arrow)
    lines = [
        json.dumps({"probs": row.tolist(), "target": int(label)}) for row, label in zip(probs, target, strict=True)
    ]
    Path("five.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    by_name = {name: probs[:, k] for k, name in enumerate(NAMES)}
    words = by_name | {"label": np.array(NAMES)[target], "id": np.arange(n)}
    write_csv(Path("words.csv"), words)
    write_csv(Path("shuffled.csv"), {name: column[::-1] for name, column in words.items()})
    top = {"prediction": probs.argmax(1), "confidence": probs.max(1), "target": target, "patient": extra["patient"]}
    write_csv(Path("confidence.csv"), top)


def write_images() -> None:
    """Write a folder of dense predictions: ``dense/logits/*.npy`` and ``dense/masks/*.png``."""
    from PIL import Image

    for name in ("logits", "masks"):
        Path("dense", name).mkdir(parents=True)
    for name, (values, target) in images(6, 70).items():
        np.save(Path("dense", "logits", f"{name}.npy"), values)
        Image.fromarray(target).save(Path("dense", "masks", f"{name}.png"))
