"""What is kept of a value: numbers, short texts and whole arrays as they are, larger arrays as digests.

Wording does not count: of a sentence only its numbers are kept. Times, versions, machines and paths are left out.
"""

import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inputs import ROOT
from torch import Tensor

WHOLE = 10_000  # numbers of an array that are kept one by one
LONGEST = 120  # characters of a text without spaces
DROPPED = re.compile(  # keys of times, places, machines, versions and checksums of files that contain them
    r"(.*_)?seconds|.*per_second|.*_bytes_per.*|start(ed)?|ended|date|time|versions?|commit|host(name)?|device|"
    r"python|torch|numpy|root|place|path|threads|cores|crc32|sessions|digest|.*\.version_info"
)
TIMES = re.compile(r"[\d.,]+ ?(?:s|ms|min|h|MB|kB|samples/s|images/s)\b|\d{4}-\d\d-\d\d\S*|\d+:\d\d(?::\d\d)?")
NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w])")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the recording: a function that fills a :class:`Recording`, and the optional packages it needs."""

    record: Callable[["Recording"], None]
    needs: tuple[str, ...] = ()


class Recording:
    """Values of one section by key, flat: ``case/path/in/the/result``. A value is plain content for JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []

    def put(self, key: str, value: Any) -> None:
        """Keep a value: a number, text, array, list, dict, dataclass, result with ``to_dict``, or figure."""
        match value:
            case None | bool() | int() | float():
                self._keep(key, float(value) if isinstance(value, float) else value)
            case str():
                self._keep(key, self.text(value))
            case bytes():
                self._keep(key, f"{len(value)} bytes {_sha(value)}")
            case np.generic():
                self.put(key, value.item())
            case np.ndarray() if value.dtype.kind not in "biuf":
                self.put(key, value.tolist())
            case Tensor() | np.ndarray():
                self._keep(key, array(value))
            case Path():
                self._keep(key, self.text(str(value)))
            case dict():
                for name, item in value.items():
                    if not DROPPED.fullmatch(str(name)):
                        self.put(f"{key}/{name}", item)
            case _ if hasattr(value, "to_dict"):
                self.put(key, value.to_dict())
            case _ if dataclasses.is_dataclass(value):
                self.put(key, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
            case _ if hasattr(value, "_asdict"):
                self.put(key, value._asdict())
            case list() | tuple() | set() | frozenset():
                self._put_list(key, sorted(value) if isinstance(value, set | frozenset) else list(value))
            case _ if hasattr(value, "get_axes"):
                self.put(key, drawn(value))
            case _:
                self._keep(key, f"a {type(value).__name__}")

    def call(self, key: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Keep what a function returns, or which error it raises; return the result."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function(*arguments, **options)
        except Exception as error:
            self._keep(key, f"raises {type(error).__name__}")
            self.notes.append(f"{key}: {type(error).__name__}: {str(error)[:200]}")
            return None
        self.put(key, result)
        return result

    def file(self, key: str, path: Path) -> None:
        """Keep the content of a file of arrays, of JSON or of text."""
        if not path.exists():
            self._keep(key, "no file")
            self.notes.append(f"{key}: {path.name} was not written")
            return
        match path.suffix:
            case ".npz":
                with np.load(path) as arrays:
                    self.put(key, {name: arrays[name] for name in sorted(arrays.files)})
            case ".safetensors":
                from safetensors.torch import load_file

                self.put(key, dict(sorted(load_file(path).items())))
            case ".parquet":
                from pyarrow import parquet

                self.put(key, parquet.read_table(path).to_pydict())
            case ".json":
                self.put(key, json.loads(path.read_text(encoding="utf-8")))
            case ".jsonl":
                self.put(key, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
            case _:
                self._keep(key, self.numbers(path.read_text(encoding="utf-8")))

    def text(self, value: str) -> str:
        """Return a name as it is, and of a sentence its numbers."""
        value = value.replace(str(self.folder), "<folder>").replace(str(ROOT), "<root>").replace("\\", "/")
        if " " in value.strip() and re.search(r"[^\W\d_]{2}", value):
            return f"<text> {self.numbers(value)}".strip()
        return value if len(value) <= LONGEST else f"{len(value)} characters {_sha(value.encode())}"

    def numbers(self, text: str) -> str:
        """Return the numbers of a text in their order, without times."""
        text = text.replace(str(self.folder), "").replace(str(ROOT), "")
        return " ".join(number.rstrip(",.") for number in NUMBER.findall(TIMES.sub(" ", text)))

    def _keep(self, key: str, value: Any) -> None:
        if key in self.values:
            raise KeyError(f"{key} is recorded twice")
        self.values[key] = value

    def _put_list(self, key: str, values: list[Any]) -> None:
        values = [value.item() if isinstance(value, np.generic) else value for value in values]
        if values and all(value is None or isinstance(value, bool | int | float) for value in values):
            many = len(values) > WHOLE
            self._keep(key, array(np.array(values, dtype=np.float64)) if many else values)
            return
        if len(values) > LONGEST and all(isinstance(value, str) for value in values):
            self._keep(key, f"{len(values)} texts {_sha(json.dumps(values).encode())}")
            return
        for i, value in enumerate(values):
            self.put(f"{key}/{i}", value)


def array(values: Tensor | np.ndarray) -> Any:
    """Return dtype, shape and numbers of an array; of a large one a digest and the sum; of one number that number."""
    tensor = torch.as_tensor(values).detach().cpu().contiguous()
    kept: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.numel() > WHOLE:
        return kept | digest(tensor)
    flat = tensor.reshape(-1)
    if tensor.dtype == torch.bfloat16:
        flat = flat.float()
    if flat.dtype in (torch.float32, torch.float16):  # the shortest decimals that are this number in its precision
        kept["values"] = [float(str(number)) for number in flat.numpy()]
    else:
        kept["values"] = flat.tolist()
    return kept


def digest(*tensors: Tensor) -> dict[str, Any]:
    """Return a digest of the bits of tensors; of floats also sum and norm, for comparisons with a tolerance."""
    flat = [tensor.detach().cpu().contiguous().reshape(-1) for tensor in tensors]
    bits = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in flat)
    if not any(tensor.is_floating_point() for tensor in flat):
        return {"sha": _sha(bits)}
    wide = torch.cat([tensor.double() for tensor in flat])
    return {"sha": _sha(bits), "sum": wide.sum().item(), "norm": wide.norm().item()}


def drawn(figure: Any) -> list[dict[str, Any]]:
    """Return what a matplotlib figure draws, by axes: texts, lines, bars, other patches, collections and images."""
    figure.canvas.draw()
    axes_of_figure = []
    for axes in figure.get_axes():
        legend = axes.get_legend()
        labels = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *(text.get_text() for text in axes.texts)]
        labels += [] if legend is None else [text.get_text() for text in legend.get_texts()]
        axes_of_figure.append(
            {
                "texts": labels,
                "limits": [*axes.get_xlim(), *axes.get_ylim()],
                "lines": [np.asarray(line.get_xydata(), dtype=np.float64) for line in axes.lines],
                "patches": [_vertices(patch) for patch in axes.patches],
                "collections": [_collection(collection) for collection in axes.collections],
                "images": [np.ma.filled(image.get_array(), np.nan) for image in axes.images],
            }
        )
    return axes_of_figure


def _vertices(patch: Any) -> np.ndarray:
    """Corners of a bar or of another patch, in the coordinates of the data."""
    return patch.get_patch_transform().transform(patch.get_path().vertices)


def _collection(collection: Any) -> dict[str, Any]:
    offsets, numbers = collection.get_offsets(), collection.get_array()
    return {
        "paths": [path.vertices for path in collection.get_paths()],
        "offsets": np.ma.filled(np.ma.asarray(offsets, dtype=np.float64), np.nan),
        "numbers": None if numbers is None else np.ma.filled(np.ma.asarray(numbers, dtype=np.float64), np.nan),
    }


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]
