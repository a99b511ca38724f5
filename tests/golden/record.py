"""Record every number that dualfocal gives on small inputs, and tell later whether one has changed, to the bit.

    python tests/golden/record.py OUT.json            # record
    python tests/golden/record.py --check OUT.json    # record again, list what differs; exit code 1 if anything does

It is meant for restructuring: record before, check after. The recording belongs to one machine and its versions of
torch, numpy and matplotlib, and is not to be committed; ``--check`` says so where these are not the same.
``--only TEXT`` takes the sections whose name contains TEXT, while one is looking for a difference.

Only what users may rely on is called: the command line, and names of the packages themselves. Wording does not count:
of a text with spaces nothing is kept, of printed tables the numbers. Nor do times, versions, machines, absolute paths.
"""

import os

# Sums depend on how many threads share them, tables on the terminal: set before torch and rich are loaded. Processes
# that are started from here inherit it; who only imports this file, as pytest does, is left alone.
if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    for variable in ("DUALFOCAL_DATA", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "RANK", "WORLD_SIZE"):
        os.environ.pop(variable, None)

import argparse
import base64
import contextlib
import csv
import dataclasses
import gzip
import hashlib
import inspect
import io
import json
import multiprocessing
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
EVIDENCE = ROOT.parent / "shared" / "evidence" / "runs"
SAVED = ROOT / "tests" / "calibrators" / "saved"

# Values under these keys are times, places, machines or versions; the keys themselves are kept.
DROPPED = re.compile(
    r"(.*_)?seconds|.*per_second|.*_bytes_per.*|start(ed)?|ended|date|time|versions?|commit|host(name)?|device|"
    r"python|torch|numpy|root|place|path|threads|cores"
)
DROPPED_ROWS = re.compile(r"(?i)seconds.*|device|versions?|commit|session.*|predictions")  # first cells of a table
TIMES = re.compile(r"[\d.,]+ ?(?:s|ms|min|h|MB|kB|samples/s|images/s)\b|\d{4}-\d\d-\d\d\S*|\d+:\d\d(?::\d\d)?")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w])")
LONG = 24  # longer lists of numbers, and LONGEST characters of text, are kept as digests
LONGEST = 120
TABLES = [f"table{i}" for i in range(1, 14)]


# ---- what is kept of a value -----------------------------------------------------------------------------------
def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def digest(values: Tensor | np.ndarray) -> str:
    """Type, shape and bits; the sum is for people."""
    tensor = torch.as_tensor(values).detach().cpu().contiguous()
    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    total = float(tensor.double().sum()) if tensor.numel() else 0.0
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} {sha(content)} sum {total!r}"


class Recording:
    """Values by key, flat: ``section/case/path/in/the/json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.values: dict[str, str] = {}
        self.problems: list[str] = []

    def put(self, key: str, value: Any) -> None:
        """Keep a value, whatever it is made of."""
        if key in self.values:
            raise KeyError(f"{key} is recorded twice")
        match value:
            case None | bool() | int():
                self.values[key] = repr(value)
            case float():
                self.values[key] = repr(float(value))
            case str():
                self.values[key] = self.text(value)
            case bytes():
                self.values[key] = f"{len(value)} bytes {sha(value)}"
            case Tensor() if value.numel() == 1 and value.is_floating_point():
                self.values[key] = f"{value.item()!r} {str(value.dtype).removeprefix('torch.')}"
            case Tensor() | np.ndarray():
                self.values[key] = digest(value)
            case np.generic():
                self.put(key, value.item())
            case dict():
                self.values[f"{key}/#keys"] = " ".join(map(str, value))
                for name, of in value.items():
                    if not DROPPED.fullmatch(str(name)):
                        self.put(f"{key}/{name}", of)
            case list() | tuple():
                self.list(key, list(value))
            case _ if hasattr(value, "to_dict"):
                self.put(key, value.to_dict())
            case _ if dataclasses.is_dataclass(value):
                self.put(key, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
            case _:
                self.values[key] = f"a {type(value).__name__}"

    def list(self, key: str, values: list[Any]) -> None:
        """Many numbers become one digest; of tables, rows that tell times and places are left out."""
        values = [of for of in values if not (isinstance(of, list) and of and DROPPED_ROWS.fullmatch(_cell(of[0])))]
        self.values[f"{key}/#length"] = str(len(values))
        plain = all(of is None or isinstance(of, bool | int | float) for of in values)
        if plain and values:
            text = " ".join(repr(float(of)) if isinstance(of, float) else repr(of) for of in values)
            self.values[key] = text if len(values) <= LONG else f"{sha(text.encode())} {text[:40]}..."
            return
        for i, of in enumerate(values):
            self.put(f"{key}/{i}", of)

    def text(self, value: str) -> str:
        """Identifiers as they are; of wording only that it is there, unless it is made of numbers."""
        value = value.replace(str(self.folder), "<tmp>").replace(str(ROOT.parent), "<root>").replace("\\", "/")
        if " " in value.strip() and re.search(r"[^\W\d_]{2}", value):
            return "<text>"
        return value if len(value) <= LONGEST else f"{len(value)} characters {sha(value.encode())}"

    def numbers(self, key: str, text: str) -> None:
        """Of what was printed: its numbers, in their order."""
        text = text.replace(str(self.folder), "").replace(str(ROOT), "")
        found = [of.rstrip(",.") for of in NUMBER.findall(TIMES.sub(" ", text))]
        self.values[key] = f"{len(found)} numbers: {' '.join(found)}"

    def calls(self, key: str, function: Callable[[], Any]) -> None:
        """What a function gives, or which error it raises."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = function()
        except Exception as error:
            self.values[key] = f"raises {type(error).__name__}"
            self.problems.append(f"{key}: {type(error).__name__}: {str(error)[:150]}")
            return
        self.put(key, value)

    # ---- commands ----------------------------------------------------------------------------------------------
    def run(self, *arguments: object) -> tuple[int, str, str]:
        """A command in this process: exit code, what it printed, its remarks."""
        from dualfocal.cli import main

        out, err = io.StringIO(), io.StringIO()
        code: Any = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
                main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
        except Exception as error:
            code = f"raises {type(error).__name__}"
            err.write(traceback.format_exc())
        return code if code is not None else 0, out.getvalue(), err.getvalue()

    def command(self, key: str, *arguments: object, expected: int = 0) -> Any:
        """The JSON of a command, if it gives one."""
        code, out, err = self.run(*arguments, "--json")
        self.put(f"{key}/exit", code)
        if code != expected:
            self.problems.append(f"{key}: exit {code}, not {expected}: {err.strip()[-300:]}")
        try:
            record = json.loads(out) if out.strip() else None
        except ValueError:
            self.values[f"{key}/json"] = "no JSON"
            self.problems.append(f"{key}: no JSON: {out[:200]}")
            return None
        self.put(f"{key}/json", record)
        return record

    def printed(self, key: str, *arguments: object, expected: int = 0) -> None:
        """The numbers in what a command prints."""
        code, out, err = self.run(*arguments)
        self.put(f"{key}/exit", code)
        if code != expected:
            self.problems.append(f"{key}: exit {code}, not {expected}: {err.strip()[-300:]}")
        self.numbers(f"{key}/printed", out)

    def file(self, key: str, path: Path) -> None:
        """A file that a command wrote: its numbers, or its bytes."""
        if not path.exists():
            self.values[key] = "no file"
            self.problems.append(f"{key}: {path} was not written")
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                self.put(key, {name: arrays[name] for name in sorted(arrays.files)})
        elif path.suffix == ".safetensors":
            self.put(key, dict(sorted(load_file(path).items())))
        elif path.suffix == ".parquet":
            from pyarrow import parquet

            table = parquet.read_table(path)
            for name in table.column_names:
                column = table[name]
                self.values[f"{key}/{name}"] = f"{column.type} {len(column)} {sha(repr(column.to_pylist()).encode())}"
        elif path.suffix in (".csv", ".tsv"):
            self.put(key, path.read_bytes())
        elif path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            self.put(key, {k: v for k, v in content.items() if k != "crc32"} if isinstance(content, dict) else content)
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self.put(key, [{k: v for k, v in line.items() if k != "crc32"} for line in lines])  # it covers the times
        elif path.suffix == ".md":
            self.numbers(key, path.read_text(encoding="utf-8"))
        elif path.suffix == ".html":
            self.page(key, path.read_text(encoding="utf-8"))
        else:
            self.put(key, path.read_bytes())

    def page(self, key: str, text: str) -> None:
        """The report: the JSON in it, and the numbers that its figures are computed from."""
        contents = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
        if contents is None:
            self.values[f"{key}/contents"] = "none"
            self.problems.append(f"{key}: the page has no JSON")
            return
        self.put(f"{key}/contents", json.loads(contents[1]))
        blocks = re.findall(r'<script type="text/plain"[^>]*>(.*?)</script>', text, re.DOTALL)
        self.put(f"{key}/blocks", [base64.b64decode(block) for block in blocks])

    def run_folder(self, key: str, path: Path, *, sessions: bool = True) -> None:
        """Everything a training leaves."""
        for name in ("recipe.json", "log.jsonl", "model.safetensors", "predictions.safetensors"):
            self.file(f"{key}/{name}", path / name)
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
        result.pop("crc32", None)
        if not sessions:  # of a run that was interrupted, who knows when
            result.pop("sessions")
        self.put(f"{key}/result.json", result)
        self.put(f"{key}/files", sorted(of.name for of in path.iterdir()))


def _cell(value: Any) -> str:
    """The text of a cell of the report's tables."""
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        value = next((of for of in value.values() if isinstance(of, str)), "")
    return value if isinstance(value, str) else ""


# ---- inputs ----------------------------------------------------------------------------------------------------
def sample(n: int, num_classes: int, seed: int, *, sharp: float = 1.8) -> tuple[np.ndarray, np.ndarray]:
    """Logits (float64) that are too sure and a little biased, and labels; of numpy's, for any version of torch."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((n, num_classes))
    biased = logits + np.linspace(-0.4, 0.4, num_classes)
    target = (biased + rng.gumbel(size=logits.shape)).argmax(1)
    return sharp * logits, target


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def write_csv(path: Path, columns: dict[str, Any], delimiter: str = ",") -> None:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(of).tolist() for of in columns.values()), strict=True))


def make_inputs() -> None:
    """Files of predictions in the current folder, of every format and kind that the commands take."""
    logits, target = sample(600, 5, 1)
    other = 0.6 * logits + 0.5 * np.random.default_rng(2).standard_normal(logits.shape)
    probs = softmax(logits)
    single = logits.astype(np.float32)
    hospital = np.array(["north", "south", "east"])[np.random.default_rng(3).integers(0, 3, 600)]
    np.savez("five.npz", logits=single, target=target)
    np.savez("five64.npz", logits=logits, target=target)
    np.savez("other.npz", logits=other.astype(np.float32), target=target)
    np.savez("probs.npz", probs=probs, target=target)
    np.savez("named.npz", out=single, extra=other, y=target)
    np.savez("part1.npz", logits=single[:250], target=target[:250])
    np.savez("part2.npz", logits=single[250:], target=target[250:])
    ignored = np.where(np.arange(600) % 7 == 0, 255, target)
    for name in ("ignored.npz", "ignored_copy.npz"):
        np.savez(name, logits=single, target=ignored)
    zeros = np.where(probs < 0.01, 0, probs)
    np.savez("zeros.npz", probs=zeros / zeros.sum(1, keepdims=True), target=target)
    np.savez(
        "split.npz",
        val_logits=single[:300],
        val_target=target[:300],
        test_logits=single[300:],
        test_target=target[300:],
    )
    np.savez("unlabelled.npz", logits=single[:100])
    save_arrays({"logits": single, "labels": target}, "five.safetensors")
    for name, dtype in (("half", torch.float16), ("bfloat", torch.bfloat16)):
        save_file(
            {"logits": torch.from_numpy(single).to(dtype), "target": torch.from_numpy(target)}, f"{name}.safetensors"
        )
    columns = {f"logit_{k}": single[:, k] for k in range(5)} | {"target": target, "hospital": hospital}
    for name, delimiter in (("five.csv", ","), ("five.tsv", "\t"), ("five.csv.gz", ",")):
        write_csv(Path(name), columns, delimiter)
    by_name = {name: probs[:, k] for k, name in enumerate(("ant", "bee", "cat", "dog", "eel"))}
    write_csv(Path("words.csv"), by_name | {"label": np.array([*by_name])[target], "id": np.arange(600)})
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({name: np.asarray(of) for name, of in columns.items()}), "five.parquet")
    two, outcome = sample(500, 2, 4)
    score = softmax(two)[:, 1]
    where = np.array(["a", "b"])[np.random.default_rng(5).integers(0, 2, 500)]
    write_csv(Path("binary.csv"), {"score": score, "outcome": outcome, "hospital": where})
    write_csv(Path("yes.csv"), {"score": score, "outcome": np.array(["no", "yes"])[outcome]})
    np.savez("binary_logit.npz", logits=(two[:, 1] - two[:, 0]).astype(np.float32), target=outcome)
    for name in ("two.npz", "two_copy.npz"):
        np.savez(name, logits=two.astype(np.float32), target=outcome)
    many, many_target = sample(800, 120, 6, sharp=3.0)
    np.savez("many.npz", logits=many.astype(np.float32), target=many_target)
    dense, dense_target = sample(20 * 6 * 5, 3, 7)
    dense = np.moveaxis(dense.reshape(20, 6, 5, 3), -1, 1).astype(np.float32)
    np.savez("dense.npz", logits=dense, target=dense_target.reshape(20, 6, 5))
    rng = np.random.default_rng(8)
    images, labels = rng.integers(0, 256, (240, 12, 12, 3), dtype=np.uint8), np.arange(240) % 4
    images[..., 0] = (images[..., 0] // 3 + 40 * labels[:, None, None]).astype(np.uint8)
    np.savez("images.npz", x_train=images[:160], y_train=labels[:160], x_test=images[160:], y_test=labels[160:])
    small_cifar(Path("cifar"))


def small_cifar(root: Path) -> None:
    """CIFAR-10 in its official binary layout, of random pixels: 5,250 images to train on, 20 to test."""
    rng = np.random.default_rng(9)
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    for name, count in [*((f"data_batch_{i}.bin", 1050) for i in range(1, 6)), ("test_batch.bin", 20)]:
        content = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
        content[:, 0] = np.arange(count) % 10
        (folder / name).write_bytes(content.tobytes())


# ---- sections --------------------------------------------------------------------------------------------------
def losses(rec: Recording) -> None:
    """Value and gradient of every loss: function and module, all kinds of targets, weights, reductions and types."""
    from dualfocal import losses as package

    bins = {"bin_gamma": torch.tensor([5.0, -1.5, 0.7, -0.2, 2.0]), "bin_edges": torch.tensor([0.1, 0.3, 0.5, 0.8])}
    rivals = ("next", "2nd", "3rd", "mean2", "mean3", "mean_all", 0.1, "batch_next", "batch_2nd", "batch_mean2")
    variants: dict[str, list[dict[str, Any]]] = {
        "label_smoothing": [{"alpha": 0.1, "spread": "all"}],
        "focal": [{"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 1.0}, {"gamma": 2.5}],
        "flsd": [{"gammas": (6.0, 4.0, 2.0), "thresholds": (0.25, 0.5)}],
        "inverse_focal": [{"gamma": 1.0}, {"gamma": 3.5}],
        "dual_focal": [
            *({"gamma": gamma} for gamma in (0.0, 0.5, 1.0, 2.0, 6.0)),
            *({"gamma": 2.0, "rival": rival} for rival in rivals),
            {"gamma": 5.0, "impl": "torch"},
        ],
        "mmce": [{"weighted": False}, {"as_published": True}, {"strength": 4.0, "width": 0.2}],
        "kde_xe": [{"bandwidth": 0.1}, {"bandwidth": 0.3, "norm": 2.0}, {"strength": 1.0, "bandwidth": 0.2}],
    }
    logits, target = (torch.from_numpy(of) for of in sample(48, 6, 20))
    soft = torch.from_numpy(softmax(sample(48, 6, 21)[0]))
    weight = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    ignored = torch.where(torch.arange(48) % 5 == 0, -100, target)
    dense = torch.from_numpy(sample(4 * 3 * 2, 5, 22)[0]).reshape(4, 3, 2, 5).movedim(-1, 1).contiguous()
    dense_target = torch.from_numpy(sample(4 * 3 * 2, 5, 22)[1]).reshape(4, 3, 2)
    two, two_target = (torch.from_numpy(of) for of in sample(30, 2, 23))
    inputs: dict[str, tuple[Tensor, Tensor, dict[str, Any]]] = {
        "hard": (logits, target, {}),
        "sum": (logits, target, {"reduction": "sum"}),
        "none": (logits, target, {"reduction": "none"}),
        "weight": (logits, target, {"weight": weight}),
        "ignored": (logits, ignored, {}),
        "ignored-3": (logits, target, {"ignore_index": 3, "weight": weight}),
        "soft": (logits, soft, {}),
        "soft-weight-sum": (logits, soft, {"weight": weight, "reduction": "sum"}),
        "dense": (dense, dense_target, {"reduction": "none"}),
        "large": (40 * logits, target, {"reduction": "none"}),
        "two": (two, two_target, {}),
    }

    def record(key: str, make: Callable[..., Callable[[Tensor, Tensor], Tensor]], full: bool) -> None:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            kind = str(dtype).removeprefix("torch.")
            for name, (values, labels, options) in inputs.items():
                if labels.is_floating_point() and "rival=batch" in key:  # such a rival needs class indices
                    continue
                if not full and (dtype == torch.bfloat16 or name not in ("hard", "ignored-3", "soft", "none")):
                    continue
                z = values.to(dtype).requires_grad_()
                y = labels.to(dtype) if labels.is_floating_point() else labels
                given = {k: of.to(dtype) if isinstance(of, Tensor) else of for k, of in options.items()}

                def both(z: Tensor = z, y: Tensor = y, given: dict[str, Any] = given) -> dict[str, Tensor]:
                    value = make(**given)(z, y)
                    slope = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
                    (gradient,) = torch.autograd.grad((value * slope).sum(), z)
                    return {"value": value, "gradient": gradient}

                rec.calls(f"{key}/{kind}/{name}", both)

    for name, module in package.LOSSES.items():
        function = getattr(package, f"{name}_loss")
        for options in [{}, *variants.get(name, [])]:
            label = ",".join(f"{key}={of}" for key, of in options.items()) or "default"
            needed = bins if "bin_gamma" in inspect.signature(function).parameters else {}

            def of_function(options: Any = options, needed: Any = needed, function: Any = function, **given: Any):
                return lambda z, y: function(z, y, **options, **needed, **given)

            def of_module(options: dict[str, Any] = options, module: Any = module, **given: Any):
                return module(**options, **given)

            record(f"{name}/{label}/function", of_function, True)
            record(f"{name}/{label}/module", of_module, False)
        rec.put(f"{name}/options", [*inspect.signature(module).parameters])
    val_logits, val_target = (
        torch.from_numpy(of).float() if of.ndim > 1 else torch.from_numpy(of) for of in sample(400, 6, 24)
    )
    for name in ("ada_focal", "ada_dual_focal"):
        for options in ({}, {"variant": "no_switch", "num_bins": 6}, {"rate": 3.0, "gamma": 0.4}, {"frozen": True}):
            criterion = package.LOSSES[name](**options)
            label = ",".join(f"{key}={of}" for key, of in options.items()) or "default"
            for step in range(3):
                criterion.update(val_logits * (1.0 + step), val_target)
                rec.put(f"{name}/updates/{label}/{step}/state", dict(criterion.state_dict()))
                rec.put(f"{name}/updates/{label}/{step}/value", criterion(logits.float(), target))
    for published in (False, True):
        rec.calls(
            f"kde_bandwidth/{published}", lambda p=published: package.kde_bandwidth(logits.float(), as_published=p)
        )


def metrics(rec: Recording) -> None:
    """Every metric as a function and as a torchmetrics class, evaluations and comparisons, with their noise."""
    from dualfocal import metrics as package

    names = (
        *("ece", "adaptive_ece", "classwise_ece", "mce", "debiased_ece", "kde_ece"),
        *("nll", "brier_score", "brier_decomposition", "error_rate", "aurc"),
    )
    five, target = sample(600, 5, 30)
    many, many_target = sample(500, 100, 31, sharp=3.0)
    two, outcome = sample(400, 2, 32)
    weights = np.random.default_rng(33).uniform(0.2, 2.0, 600)
    inputs: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "five32": (five.astype(np.float32), target, {}),
        "five64": (five, target, {}),
        "bfloat16": (torch.from_numpy(five).bfloat16(), torch.from_numpy(target), {}),
        "float16": (torch.from_numpy(five).half(), torch.from_numpy(target), {}),
        "probs": (softmax(five), target, {"input": "probs"}),
        "bins7": (five, target, {"num_bins": 7}),
        "ignored": (five, np.where(np.arange(600) % 4 == 0, -100, target), {}),
        "many": (many.astype(np.float32), many_target, {}),
        "top_label": (two, outcome, {"binary": "top_label"}),
        "positive": (two, outcome, {"binary": "positive"}),
        "score": (softmax(two)[:, 1], outcome, {"input": "probs", "binary": "positive"}),
        "published": (five, target, {"convention": "published"}),
        "torchmetrics": (five, target, {"convention": "torchmetrics"}),
        "sample_weight": (five, target, {"sample_weight": weights}),
        "root": (five, target, {"root": True}),
    }
    for name in names:
        function = getattr(package, name)
        known = inspect.signature(function).parameters
        for label, (values, labels, options) in inputs.items():
            if set(options) <= set(known) and (name, label) != ("adaptive_ece", "torchmetrics"):  # which has none
                rec.calls(f"{name}/{label}", lambda f=function, v=values, y=labels, o=options: f(v, y, **o))
    for norm in (1.0, 2.0):
        rec.calls(f"kde_ece/norm{norm}", lambda n=norm: package.kde_ece(five, target, bandwidth=0.05, norm=n))
    for score in ("entropy", "confidence", "max_prob", "msp", "max_logit"):
        with contextlib.suppress(ValueError):
            rec.put(f"ood_auroc/{score}", package.ood_auroc(five, 0.5 * sample(300, 5, 34)[0], score=score))
    known = inspect.signature(package.evaluate).parameters
    for label, (values, labels, options) in inputs.items():
        if set(options) <= set(known):
            rec.calls(
                f"evaluate/{label}",
                lambda v=values, y=labels, o=options: package.evaluate(v, y, inference=True, seed=3, draws=400, **o),
            )
    rec.calls("evaluate/plain", lambda: package.evaluate(five, target))
    rec.calls("evaluate/level", lambda: package.evaluate(five, target, inference=True, level=0.95, draws=200))
    other = 0.7 * five
    rec.calls("compare/five", lambda: package.compare(five, other, target))
    rec.calls("compare/kinds", lambda: package.compare(five, softmax(other), target, input=("logits", "probs"), seed=5))
    rec.calls("compare/binary", lambda: package.compare(two, 0.5 * two, outcome, binary="positive", level=0.8))
    streams = {
        "ExpectedCalibrationError": {},
        "MaximumCalibrationError": {"num_bins": 10},
        "AdaptiveCalibrationError": {},
        "ClasswiseCalibrationError": {"num_classes": 5},
        "BrierScore": {"root": True},
    }
    for name, options in streams.items():

        def streamed(name: str = name, options: dict[str, Any] = options) -> Tensor:
            metric = getattr(package, name)(**options)
            for part in np.array_split(np.arange(600), 4):
                metric.update(torch.from_numpy(five[part]).float(), torch.from_numpy(target[part]))
            return metric.compute()

        rec.calls(f"streaming/{name}", streamed)


def _fit_and_use(name: str, z: Tensor, y: Tensor, new: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """One calibrator: its report, its file, and what it makes of new logits and probabilities."""
    from dualfocal import calibrators as package

    calibrator = package.make_calibrator(name, force=True)
    calibrator.fit(z, y, **options)
    path = Path("fitted.safetensors")
    package.save_calibrator(calibrator, path)
    back = package.load_calibrator(path)
    found: dict[str, Any] = {"report": calibrator.report, "file": dict(sorted(load_file(path).items()))}
    for kind, values in (("float32", new.float()), ("float64", new), ("probs", new.softmax(1))):
        given = {"input": "probs" if kind == "probs" else "logits"}
        try:
            found[kind] = calibrator(values, **given).detach()
            found[f"loaded-{kind}"] = back(values, **given).detach()
        except ValueError:  # some must be used on what they were fitted to
            found[kind] = "refused"
    return found


def calibrators(rec: Recording) -> None:
    """Every calibrator: fitted to logits and to probabilities, few and many classes; used, saved, loaded."""
    from dualfocal import calibrators as package

    names = (*package.CALIBRATORS, "temperature+isotonic", "vector+histogram")
    for label, n, num_classes in (("two", 400, 2), ("five", 600, 5), ("many", 700, 30)):
        logits, target = sample(n, num_classes, 40 + num_classes)
        new = torch.from_numpy(sample(80, num_classes, 41)[0])
        y = torch.from_numpy(target)
        for kind in ("float32", "float64", "probs"):
            if kind == "probs":
                z, options = torch.from_numpy(softmax(logits)), {"input": "probs"}
            else:
                z, options = torch.from_numpy(logits).to(getattr(torch, kind)), {}
            for name in names:
                if num_classes > 20 and (name == "vector+histogram" or kind == "probs"):
                    continue
                key = f"{label}/{kind}/{name}"
                rec.calls(key, partial(_fit_and_use, name, z, y, new, options))
    two, outcome = sample(400, 2, 45)
    one = torch.from_numpy(two[:, 1] - two[:, 0]).float()
    for name in names:

        def fit_binary(name: str = name) -> Tensor:
            return package.make_calibrator(name, force=True).fit(one, torch.from_numpy(outcome))(one[:50])

        rec.calls(f"one-score/{name}", fit_binary)
    logits, target = sample(500, 4, 46)
    variants = {
        "ece-7": lambda: package.TemperatureScaling("ece", num_bins=7),
        "vector-prior": lambda: package.VectorScaling(prior=2.5),
        "matrix-prior": lambda: package.MatrixScaling(prior=0.5, force=True),
        "dirichlet-prior": lambda: package.DirichletCalibration(prior=0.1, force=True),
        "histogram-width": lambda: package.HistogramBinning(9, bins="width", smoothing=0.5),
        "isotonic-0": lambda: package.IsotonicCalibration(smoothing=0.0),
        "chain": lambda: package.Chain(package.TemperatureScaling(), package.BetaCalibration()),
    }
    for name, make in variants.items():
        rec.calls(
            f"variants/{name}",
            lambda m=make: m().fit(torch.from_numpy(logits), torch.from_numpy(target))(torch.from_numpy(logits[:60])),
        )
    rec.calls("log_probs", lambda: package.log_probs(torch.from_numpy(softmax(logits))))


def theory(rec: Recording) -> None:
    """The functions of the theory, and the command."""
    from dualfocal import theory as package

    v = torch.linspace(0.05, 0.9, 18, dtype=torch.float64)
    for name in ("phi", "phi_slope", "h", "s", "t", "u"):
        for gamma in (0.5, 1.0, 3.0):
            rec.calls(f"{name}/{gamma}", lambda n=name, g=gamma: getattr(package, n)(v, g, 0.1))
    q = torch.from_numpy(softmax(sample(20, 3, 50)[0]))
    for name in ("exact_eta", "published_eta"):
        rec.calls(name, lambda n=name: getattr(package, n)(q, 2.0))
    for name in ("entropy_bound", "dual_entropy_bound"):
        rec.calls(name, lambda n=name: getattr(package, n)(q, torch.arange(20) % 3, 2.0))
    rec.calls("conditional_risk", lambda: package.conditional_risk(q, q.flip(1), 2.0))
    rec.calls("uniform_threshold", lambda: package.uniform_threshold(3.0))
    rec.calls("phi_peak", lambda: package.phi_peak(2.0, 0.2))
    eta = (0.5, 0.3, 0.2)
    rec.calls("minimisers/cross_entropy", lambda: package.cross_entropy_minimiser(eta))
    rec.calls("minimisers/focal", lambda: package.focal_minimiser(eta, 2.0))
    rec.calls("minimisers/dual_focal", lambda: package.dual_focal_minimiser(eta, 2.0))
    rec.command("command/eta", "paper", "theory", "--gamma", 2, "--eta", ".5,.3,.2")
    rec.command("command/eta5", "paper", "theory", "--gamma", 5, "--c", 0.1, "--eta", ".4,.3,.15,.1,.05")
    rec.printed("command/text", "paper", "theory", "--eta", ".45,.35,.2", "--plot", "figure1.svg")
    rec.file("command/figure1.svg", Path("figure1.svg"))


def models(rec: Recording) -> None:
    """Fresh weights of every model, and what it makes of two inputs."""
    from dualfocal_lab.models import MODELS, make_model

    for name in MODELS:

        def weights(name: str = name) -> dict[str, Any]:
            torch.manual_seed(0)
            model = make_model(name, num_classes=7)
            state = model.state_dict()
            whole = hashlib.sha256()
            for key, of in state.items():
                whole.update(key.encode() + of.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            found: dict[str, Any] = {"tensors": len(state), "weights": whole.hexdigest()[:20]}
            side = 64 if name.startswith("tiny") else 32
            shape = (2, 50, 64) if name == "text_cnn" else (2, 3, side, side)
            if name == "text_cnn":
                shape = (2, inspect.signature(MODELS[name]).parameters["in_channels"].default, 64)
            x = torch.from_numpy(np.random.default_rng(60).standard_normal(shape)).float()
            with torch.no_grad():
                found["logits"] = model.eval()(x)
            return found

        rec.calls(name, weights)


def data(rec: Recording) -> None:
    """Data sets: the commands, and what is loaded, split, drawn and varied."""
    from dualfocal import data as package

    empty = Path("empty")
    empty.mkdir()
    rec.command("list", "data", "list", "--data-root", empty)
    rec.command("list-cifar", "data", "list", "--data-root", "cifar")
    rec.printed("list-text", "data", "list", "--data-root", empty)
    rec.command("verify-digits", "data", "verify", "digits", "--plot", "digits.png")
    rec.file("digits.png", Path("digits.png"))
    rec.command("verify-cifar", "data", "verify", "cifar10", "--data-root", "cifar", expected=1)
    for label, name, root, options in (
        ("digits", "digits", None, {}),
        ("digits-noise", "digits", None, {"noise": 0.3, "split_seed": 0}),
        ("cifar10", "cifar10", "cifar", {}),
        ("own", "images.npz", None, {"layout": "NHWC"}),
    ):

        def loaded(name: str = name, root: str | None = root, options: dict[str, Any] = options) -> dict[str, Any]:
            found = package.load_data(name, root, **options)
            index = found.splits["train"][:40]
            draws = found.draw(seed=3, epoch=2)
            kept = {"inputs": found.inputs, "target": found.target, "names": list(found.class_names)}
            kept |= {f"split-{part}": of for part, of in found.splits.items()}
            kept["batch"] = found.batch(index, part="train")[0]
            if draws is not None:
                kept |= {"draws": draws, "varied": found.batch(index, draws)[0]}
            return kept

        rec.calls(f"load/{label}", loaded)
    images = torch.from_numpy(np.random.default_rng(61).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8))
    for severity in (1, 5):
        rec.calls(f"gaussian_noise/{severity}", lambda s=severity: package.gaussian_noise(images, s, seed=2))


def evaluate(rec: Recording) -> None:
    """`dualfocal evaluate` on every kind of file."""
    binary = ("binary.csv", "--probs", "score", "--target", "outcome", "--binary")
    cases: dict[str, tuple[object, ...]] = {
        "npz": ("five.npz",),
        "npz64": ("five64.npz",),
        "csv": ("five.csv",),
        "tsv": ("five.tsv",),
        "csv.gz": ("five.csv.gz",),
        "parquet": ("five.parquet",),
        "safetensors": ("five.safetensors",),
        "half": ("half.safetensors",),
        "bfloat": ("bfloat.safetensors",),
        "probs": ("probs.npz",),
        "zeros": ("zeros.npz",),
        "words": ("words.csv", "--probs", "ant,bee,cat,dog,eel"),
        "named": ("named.npz", "--logits", "out", "--target", "y"),
        "named-extra": ("named.npz", "--logits", "extra", "--target", "y", "--seed", 4),
        "split": ("split.npz", "--split", "val"),
        "split-test": ("split.npz", "--split", "test", "--num-bins", 8),
        "ignored": ("ignored.npz", "--ignore-index", 255),
        "several": ("five.npz", "other.npz", "probs.npz"),
        "merge": ("part1.npz", "part2.npz", "--merge"),
        "groups": ("five.csv", "--group-by", "hospital"),
        "top-label": (*binary, "top_label"),
        "positive": (*binary, "positive"),
        "positive-groups": (*binary, "positive", "--group-by", "hospital"),
        "yes": ("yes.csv", "--probs", "score", "--target", "outcome", "--positive", "yes", "--binary", "positive"),
        "one-logit": ("binary_logit.npz", "--binary", "top_label"),
        "two": ("two.npz",),
        "two-positive": ("two.npz", "--binary", "positive"),
        "many": ("many.npz",),
        "dense": ("dense.npz",),
        "published": ("five.npz", "--convention", "published"),
        "torchmetrics": ("five.npz", "--convention", "torchmetrics"),
        "no-inference": ("five.npz", "--no-inference"),
        "level": ("five.npz", "--level", 0.95, "--seed", 7),
        "calibrate": ("five.npz", "--calibrate", "temperature,vector,isotonic"),
        "calibrate-all": ("five64.npz", "--calibrate", "all", "--repeats", 1),
        "calibrate-folds": (
            "five.npz",
            "--calibrate",
            "temperature,ets,beta",
            "--folds",
            3,
            "--repeats",
            3,
            "--seed",
            2,
        ),
        "calibrate-chain": ("probs.npz", "--calibrate", "temperature+isotonic,platt", "--repeats", 1),
        "calibrate-binary": (*binary, "top_label", "--calibrate", "temperature,platt,histogram,bbq"),
        "calibrate-many": ("many.npz", "--calibrate", "temperature,temperature_ece,vector,matrix", "--repeats", 1),
        "calibrate-ignored": ("ignored.npz", "--ignore-index", 255, "--calibrate", "temperature", "--num-bins", 10),
        "calibrate-merge": ("part1.npz", "part2.npz", "--merge", "--calibrate", "temperature,histogram"),
    }
    for label, arguments in cases.items():
        rec.command(label, "evaluate", *arguments)
    for label in ("npz", "several", "groups", "positive", "zeros", "calibrate", "no-inference"):
        rec.printed(f"text/{label}", "evaluate", *cases[label])
    for label, arguments in (("npz", cases["npz"]), ("calibrate", cases["calibrate"]), ("positive", cases["positive"])):
        for suffix in ("png", "svg"):
            plot = Path(f"reliability-{label}.{suffix}")
            rec.run("evaluate", *arguments, "--plot", plot)
            rec.file(f"plot/{label}.{suffix}", plot)


def compare(rec: Recording) -> None:
    """`dualfocal compare`."""
    rec.command("npz", "compare", "five.npz", "other.npz")
    rec.command("kinds", "compare", "probs.npz", "five64.npz", "--seed", 3, "--level", 0.95, "--num-bins", 10)
    rec.command("itself", "compare", "five.npz", "five.csv")
    rec.command("binary", "compare", "two.npz", "two_copy.npz", "--binary", "positive")
    rec.command("ignored", "compare", "ignored.npz", "ignored_copy.npz", "--ignore-index", 255)
    rec.printed("text", "compare", "five.npz", "other.npz")


def calibrate(rec: Recording) -> None:
    """`dualfocal calibrate` with every method, and `dualfocal apply`."""
    from dualfocal.calibrators import CALIBRATORS

    for name in (*CALIBRATORS, "temperature+isotonic", "vector+beta"):
        fitted = f"cal-{name}.npz"
        rec.command(f"fit/{name}", "calibrate", "split.npz", "--split", "val", "--method", name, "--out", fitted)
        rec.file(f"file/{name}", Path(fitted))
        rec.command(f"apply/{name}", "apply", fitted, "split.npz", "--split", "test", "--out", f"new-{name}.npz")
        rec.file(f"applied/{name}", Path(f"new-{name}.npz"))
    rec.command("fit/probs", "calibrate", "words.csv", "--probs", "ant,bee,cat,dog,eel", "--out", "cal-words.npz")
    rec.command("fit/many", "calibrate", "many.npz", "--method", "vector", "--out", "cal-many.npz")
    rec.command("fit/refused", "calibrate", "many.npz", "--method", "matrix", "--out", "no.safetensors", expected=2)
    one = ("--probs", "score", "--target", "outcome")
    rec.command("fit/binary", "calibrate", "binary.csv", *one, "--method", "platt", "--out", "cal-binary.npz")
    rec.command(
        "fit/ignored",
        "calibrate",
        "ignored.npz",
        "--ignore-index",
        255,
        "--method",
        "ets",
        "--out",
        "cal-i.npz",
    )
    cases: dict[str, tuple[object, ...]] = {
        "csv": ("cal-vector.npz", "five.csv", "--out", "table.csv"),
        "parquet": ("cal-isotonic.npz", "five.parquet", "--out", "table.parquet"),
        "csv-to-parquet": ("cal-beta.npz", "five.csv", "--out", "crossed.parquet"),
        "safetensors": ("cal-ets.npz", "half.safetensors", "--out", "table.safetensors"),
        "npz-to-csv": ("cal-temperature.npz", "five64.npz", "--out", "from_npz.csv"),
        "probs": ("cal-dirichlet.npz", "probs.npz", "--out", "probs_out.npz"),
        "words": ("cal-words.npz", "words.csv", "--probs", "ant,bee,cat,dog,eel", "--out", "words_out.csv"),
        "unlabelled": ("cal-platt.npz", "unlabelled.npz", "--out", "unlabelled_out.npz"),
        "binary": ("cal-binary.npz", "binary.csv", *one, "--out", "binary_out.csv"),
        "many": ("cal-many.npz", "many.npz", "--out", "many_out.npz"),
    }
    for label, arguments in cases.items():
        rec.command(f"apply/{label}", "apply", *arguments)
        rec.file(f"applied/{label}", Path(str(arguments[-1])))
    rec.printed("text/fit", "calibrate", "five.npz", "--out", "cal-text.npz")
    rec.printed("text/apply", "apply", "cal-vector.npz", "five.npz", "--out", "text_out.npz")


def saved_calibrators(rec: Recording) -> None:
    """Files of calibrators that an earlier version wrote still give what they gave then."""
    from dualfocal.calibrators import load_calibrator

    with np.load(SAVED / "expected.npz") as expected, np.load(SAVED / "new.npz") as new:
        for path in sorted(SAVED.glob("*.safetensors")):
            name = path.stem
            source = "scores.csv" if name.startswith("binary-") else "new.npz"
            out = Path(f"old-{name}.npz")
            options = ("--probs", "score", "--target", "outcome") if source == "scores.csv" else ()
            rec.command(f"{name}/apply", "apply", path, SAVED / source, *options, "--out", out)
            rec.file(f"{name}/applied", out)
            with np.load(out) as applied:
                values = applied["probs" if "probs" in applied else "logits"]
                rec.put(f"{name}/as-expected", bool(np.array_equal(values, expected[name])))
            if source == "new.npz":
                rec.calls(f"{name}/load", lambda p=path: load_calibrator(p)(torch.from_numpy(new["logits"]).double()))


def train(rec: Recording) -> None:
    """`dualfocal train digits`: all losses, what can be set, the run folder, and a run that was stopped half-way."""
    from dualfocal.losses import LOSSES

    arguments = ("train", "digits", "--set", "epochs=12", "--set", "seed=5", "--device", "cpu")
    rec.command("whole/command", *arguments, "--out", "whole")
    rec.run_folder("whole", Path("whole"))
    stopped = Path("stopped")
    process = subprocess.Popen(
        [sys.executable, "-m", "dualfocal", *arguments, "--out", str(stopped), "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log = stopped / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.005)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait()
    reached = log.read_text().count("\n") if log.exists() else 0
    print(f"  a training was stopped after {reached} of 12 epochs, and goes on", file=sys.stderr)
    rec.run(*arguments, "--out", stopped, "--json")
    rec.run_folder("resumed", stopped, sessions=False)
    for name in LOSSES:
        rec.command(
            f"losses/{name}", "train", "digits", "--set", "epochs=2", "--set", f"loss={name}", "--out", f"l-{name}"
        )
        rec.run_folder(f"losses/{name}/folder", Path(f"l-{name}"))
    cases = {
        "adam": ("optimizer=adam", "lr=0.002", "weights=best_nll", "drop_last=true", "batch_size=64"),
        "step": ("schedule=step", "milestones=1,2", "lr_factor=0.5", "reduction=sum", "clip_norm=2", "lr=0.01"),
        "float64": ("precision=float64", "test_each_epoch=true", "weights=best_error", "momentum=0"),
        "bfloat16": ("precision=bfloat16", "loss.gamma=2", "weight_decay=0"),
        "rival": ("loss.rival=2nd", "data.split_seed=3", "data.noise=0.5", "channels_last=true"),
        "own": ("data=images.npz", "data.layout=NHWC", "loss=focal", "loss.gamma=2", "batch_size=32"),
    }
    for label, settings in cases.items():
        options = [part for setting in (*settings, "epochs=3") for part in ("--set", setting)]
        rec.command(f"settings/{label}", "train", "digits", *options, "--out", f"s-{label}")
        rec.run_folder(f"settings/{label}/folder", Path(f"s-{label}"))
    rec.printed("text", "train", "digits", "--set", "epochs=2", "--out", "t-text")
    rec.command("by-recipe", "train", "whole/recipe.json", "--set", "epochs=2", "--out", "by-recipe")
    rec.command("by-folder", "train", "whole")


def runs(rec: Recording) -> None:
    """Commands on the run folders of the section before."""
    both = ("l-cross_entropy", "l-dual_focal")
    rec.command("runs", "runs", "whole", *both)
    rec.printed("runs-text", "runs", "whole", *both)
    rec.command("evaluate", "evaluate", "whole")
    rec.command("evaluate-val", "evaluate", "whole", "--split", "val")
    rec.command("evaluate-several", "evaluate", *both, "--calibrate", "temperature,vector")
    rec.command("evaluate-all", "evaluate", "whole", "--calibrate", "all", "--force")
    rec.printed("evaluate-text", "evaluate", "whole", "--calibrate", "temperature,isotonic")
    rec.command("evaluate-cross-fit", "evaluate", "whole", "--split", "val", "--calibrate", "temperature,platt")
    rec.command("compare", "compare", *both)
    rec.command("compare-val", "compare", *both, "--split", "val")
    rec.command("calibrate", "calibrate", "whole", "--method", "vector", "--out", "run.safetensors")
    rec.command("apply", "apply", "run.safetensors", "whole", "--out", "run_out.npz")
    rec.file("applied", Path("run_out.npz"))


def report(rec: Recording) -> None:
    """The numbers in the pages of `dualfocal report`."""
    one = ("--probs", "score", "--target", "outcome", "--binary", "top_label")
    cases: dict[str, tuple[object, ...]] = {
        "file": ("five.npz",),
        "files": ("five.npz", "other.npz", "--calibrators", "none", "--num-bins", 10),
        "run": ("whole", "--calibrators", "temperature,isotonic"),
        "runs": ("l-cross_entropy", "l-dual_focal", "--calibrators", "temperature", "--level", 0.95),
        "binary": ("binary.csv", *one, "--calibrators", "temperature,platt"),
        "many": ("many.npz", "--calibrators", "temperature"),
        "results": (RESULTS / "cifar10" / "resnet50-dual_focal-seed1", "--calibrators", "temperature"),
    }
    for label, arguments in cases.items():
        page = Path(f"page-{label}.html")
        rec.printed(f"{label}/command", "report", *arguments, "-o", page)
        rec.file(f"{label}/page", page)


def study(rec: Recording) -> None:
    """`dualfocal study`: losses by seeds, and gammas; its tables and figure, and the figures of the paper from it."""
    for label, options in (
        ("losses", ("--losses", "cross_entropy,dual_focal", "--seeds", "0,1", "--set", "test_each_epoch=true")),
        ("gammas", ("--gamma", "2,5", "--seeds", "0", "--criterion", "ece")),
    ):
        out = Path(f"study-{label}")
        common = ("--set", "epochs=4", "--jobs", 2, "--out", out, "--device", "cpu")
        rec.command(label, "study", *options, *common)
        for name in ("table.csv", "table.md", "study.json", "study.png"):
            rec.file(f"{label}/{name}", out / name)
        for folder in sorted((out / "runs").iterdir()):
            rec.run_folder(f"{label}/runs/{folder.name}", folder)
        rec.printed(f"{label}/again-text", "study", *options, *common)
    rec.command("runs", "runs", "study-losses")
    rec.command("figures", "paper", "figures", "study-losses", "--format", "png,svg,pdf", "--dpi", 60, "--out", "figs")
    for path in sorted(Path("figs").iterdir()):
        rec.file(f"figures/{path.name}", path)


def paper(rec: Recording) -> None:
    """`dualfocal paper`: every table listed, some made from the runs in results, errata, figures."""
    for name in TABLES:
        rec.command(f"dry/{name}", "paper", "reproduce", name, "--dry-run", "--extras", "--seeds", "1,2")
    rec.command("dry/short", "paper", "reproduce", "ablation", "--dry-run", "--epochs-scale", 0.2, "--set", "lr=0.05")
    rec.printed("dry/text", "paper", "reproduce", "table1", "--dry-run")
    folder = Path("paper", "runs")
    folder.mkdir(parents=True)
    for run in sorted((RESULTS / "cifar10").iterdir()):
        method = run.name.removeprefix("resnet50-")  # as `paper reproduce` names them
        shutil.copytree(run, folder / f"cifar10_resnet50_{method}", ignore=shutil.ignore_patterns("*.lock"))
    only = "dataset=cifar10,model=resnet50,method=dual_focal,method=cross_entropy"
    for name in ("table1", "table2", "adaptive_ece", "classwise_ece", "mce", "nll", "rbs"):
        code, out, _ = rec.run("paper", "reproduce", name, "--dry-run", "--only", only, "--json")
        listed = json.loads(out)["trainings"] if code == 0 else []
        if listed and all(row["finished"] for row in listed):  # nothing is to be trained here
            rec.command(f"reproduce/{name}", "paper", "reproduce", name, "--only", only)
            rec.printed(f"reproduce/{name}/text", "paper", "reproduce", name, "--only", only)
    rec.put("reproduce/files", sorted(path.name for path in Path("paper").iterdir() if path.is_file()))
    for path in sorted(Path("paper").glob("*.*")):
        rec.file(f"reproduce/written/{path.name}", path)
    rec.command("figures", "paper", "figures", RESULTS / "cifar10", "--format", "png,svg", "--dpi", 50, "--out", "fig2")
    for path in sorted(Path("fig2").iterdir()):
        rec.file(f"figures/{path.name}", path)
    rec.command("phi", "paper", "figures", "--only", "phi", "--format", "svg", "--out", "fig3")
    rec.file("phi/phi.svg", Path("fig3", "phi.svg"))
    rec.command("errata", "paper", "errata")
    rec.command("errata-one", "paper", "errata", "rbs-root")


def recipes(rec: Recording) -> None:
    """Names and values of settings that are in people's scripts, and every preset."""
    settings = (
        *("loss=flsd", "loss.gamma=6", "seed=2", "precision=tf32", "reduction=mean", "clip_norm=none"),
        *("test_each_epoch=true", "loss=cross_entropy", "loss.rival=2nd", "epochs=10", "precision=float32"),
        *("step=eager", "channels_last=true", "deterministic=true", "milestones=none", "data.val_size=1000"),
    )
    for setting in settings:
        rec.command(f"set/{setting}", "train", "cifar10_resnet50", "--set", setting, "--show")
    every = [
        part
        for setting in ("loss.gamma=6", "seed=2", "precision=tf32", "reduction=mean", "clip_norm=none")
        for part in ("--set", setting)
    ]
    rec.command("set/several", "train", "cifar10_resnet50", *every, "--show")
    rec.command("set/wrong", "train", "cifar10_resnet50", "--set", "loss.gama=6", "--show", expected=2)
    presets = (
        "digits",
        *(f"cifar10{c}_{m}" for c in ("", "0") for m in ("resnet50", "resnet110", "wide_resnet26_10", "densenet121")),
    )
    for name in (*presets, "tiny_imagenet_resnet50", "20newsgroups_text_cnn"):
        rec.command(f"preset/{name}", "train", name, "--show")
    rec.printed("text", "train", "cifar10_resnet50", "--show")


def artefacts(rec: Recording) -> None:
    """Run folders that are there: in results, and in the shared evidence, if this checkout has it."""
    found = sorted(
        {path.parent for path in RESULTS.rglob("recipe.json")} | {path.parent for path in RESULTS.rglob("result.json")}
    )
    if EVIDENCE.is_dir():
        found += sorted(path.parent for path in EVIDENCE.rglob("recipe.json"))
    for path in found:
        base = RESULTS if path.is_relative_to(RESULTS) else EVIDENCE
        name = f"{base.name}-{path.relative_to(base).as_posix().replace('/', '-')}"
        there = (path / "predictions.safetensors").exists()  # of some trainings they were not kept
        rec.command(f"{name}/evaluate", "evaluate", path, expected=0 if there else 2)
        if there:
            rec.command(f"{name}/val", "evaluate", path, "--split", "val", "--calibrate", "temperature,temperature_ece")
            rec.command(f"{name}/calibrated", "evaluate", path, "--calibrate", "temperature,vector,isotonic")
        if (path / "recipe.json").exists():
            rec.command(f"{name}/show", "train", path, "--show")
    first, second = (RESULTS / "cifar10" / f"resnet50-{method}-seed1" for method in ("cross_entropy", "dual_focal"))
    rec.command("compare", "compare", first, second)
    rec.printed("compare-text", "compare", first, second)
    rec.command("runs", "runs", RESULTS)
    rec.printed("runs-text", "runs", RESULTS)


# Two processes take a list each; runs and report need what train leaves.
LISTS = (
    (train, runs, report, study),
    (
        *(losses, metrics, calibrators, theory, models, data, evaluate, compare, calibrate, saved_calibrators),
        *(paper, recipes, artefacts),
    ),
)


# ---- the program -----------------------------------------------------------------------------------------------
def environment() -> dict[str, str]:
    import matplotlib

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "matplotlib": matplotlib.__version__,
        "processor": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """A temporary folder, gone into."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        os.chdir(name)
        os.environ["XDG_CACHE_HOME"] = str(Path(name, "cache"))
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def record_list(number: int, only: str | None) -> tuple[dict[str, str], list[str]]:
    """All values of one list of sections, in a folder of its own, and what went wrong."""
    torch.set_num_threads(1)
    values: dict[str, str] = {}
    problems: list[str] = []
    chosen = [of for of in LISTS[number] if only is None or only in of.__name__]
    if (runs in chosen or report in chosen) and train not in chosen:
        chosen.insert(0, train)
    with new_folder() as folder:
        make_inputs()
        for section in chosen:
            start = time.perf_counter()
            rec = Recording(folder)
            try:
                section(rec)
            except Exception as error:  # the other sections can still tell something
                rec.values["#section"] = f"raises {type(error).__name__}"
                rec.problems.append(f"the section stopped: {traceback.format_exc()[-1500:]}")
            values |= {f"{section.__name__}/{key}": of for key, of in rec.values.items()}
            problems += [f"{section.__name__}/{problem}" for problem in rec.problems]
            took = time.perf_counter() - start
            print(f"{section.__name__}: {len(rec.values)} values, {took:.1f} s", file=sys.stderr)
    return values, problems


def record(only: str | None = None) -> tuple[dict[str, str], list[str]]:
    """All values, and what went wrong."""
    values: dict[str, str] = {}
    problems: list[str] = []
    with ProcessPoolExecutor(len(LISTS), multiprocessing.get_context("spawn")) as pool:
        for some, wrong in pool.map(record_list, range(len(LISTS)), [only] * len(LISTS)):
            values |= some
            problems += wrong
    return values, problems


def first_difference(a: str, b: str) -> tuple[str, str]:
    """Two texts from a little before where they part, if they are long."""
    if max(len(a), len(b)) <= 160:
        return a, b
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, same - 30)
    return f"[{start}:] {a[start : same + 90]}", f"[{start}:] {b[start : same + 90]}"


def main() -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="the recording")
    parser.add_argument("--check", action="store_true", help="compare with the recording")
    parser.add_argument("--only", metavar="TEXT", help="the sections whose name contains this")
    arguments = parser.parse_args()
    file = arguments.file.resolve()
    before = json.loads(file.read_text(encoding="utf-8")) if arguments.check else None
    start = time.perf_counter()
    values, problems = record(arguments.only)
    took = time.perf_counter() - start
    if before is None:
        file.write_text(json.dumps({"environment": environment(), "values": values}, indent=1) + "\n", encoding="utf-8")
        for problem in problems:
            print(f"NOTE {problem}")
        print(f"{len(values)} values recorded in {took:.0f} s, {len(problems)} notes: {file}")
        return 0
    if before["environment"] != environment():
        print(f"NOTE recorded elsewhere: {before['environment']}, here {environment()}: bits may differ")
    sections = {key.partition("/")[0] for key in values}
    expected = {key: of for key, of in before["values"].items() if key.partition("/")[0] in sections}
    different = 0
    for key in dict.fromkeys((*expected, *values)):
        old, new = expected.get(key, "not there"), values.get(key, "not there")
        if old != new:
            different += 1
            old, new = first_difference(old, new)
            print(f"{key}\n    was {old}\n    is  {new}")
    for problem in problems if different else ():
        print(f"NOTE {problem}")
    print(f"{different} of {len(expected)} values differ, {took:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
