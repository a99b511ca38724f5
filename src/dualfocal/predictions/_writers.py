"""Writing predictions, in the formats and under the names that the readers know. Never a pickle."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from dualfocal._checks import check_choice
from dualfocal._files import atomic_path, check_place
from dualfocal.predictions._sources import FLOATS, INTEGERS, PredictionsError, dtype_name, form, is_number
from dualfocal.predictions._tables import import_pyarrow

Names = tuple[str, ...]
Writer = Callable[[Path, str, Tensor, Tensor | None, Names | None], None]

BLOCK = 10_000  # rows of a csv that are text at one time


def save_predictions(
    path: str | os.PathLike[str],
    values: Tensor,
    *,
    input: str,
    target: Tensor | None = None,
    class_names: Sequence[str] | None = None,
) -> None:
    """Write predictions such that ``load_predictions(path)`` gives them back.

    Arrays are called ``logits`` or ``probs`` and ``target``, with ``class_names`` beside them. Columns are called
    ``logit_0``, ``logit_1``, ... or by class names, ``logit_cat``, ``logit_dog``, ... (``prob_...``), and ``target``.
    No value changes, but dtypes may: a ``.csv`` is read as float64, and bfloat16, which only ``.safetensors`` has,
    becomes float32.

    Args:
        path: ends in ``.npz``, ``.safetensors``, ``.csv`` or ``.parquet``. A file that is there is replaced once the
            new one is complete; after an error it is as it was.
        values: floats, ``(N, C)``; ``(N,)`` or ``(N, 1)``, one score per sample, read back as ``(N,)``; or
            ``(N, C, d1, ...)``, which no table can hold.
        input: what the values are, ``"logits"`` or ``"probs"``.
        target: integers, ``(N,)`` or ``(N, d1, ...)``. A table has them as class names where there are any; what is no
            class, such as -100, stays a number.
        class_names: one per class.

    Raises:
        ValueError: the file cannot be written, or could not be read back.
    """
    path = Path(path)
    check_place(path)
    suffix = check_suffix(path)
    check_choice("input", input, ("logits", "probs"))
    if dtype_name(values) not in FLOATS:
        raise PredictionsError(f"{path}: {input} must be {', '.join(FLOATS)}, got {dtype_name(values)}")
    if values.ndim == 0 or values.numel() == 0:
        raise PredictionsError(f"{path}: {input} must have at least one row, got {form(values)}")
    values = values.detach().cpu()
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if target is not None:
        if dtype_name(target) not in INTEGERS:
            raise PredictionsError(f"{path}: labels must be integers, got {dtype_name(target)}")
        if target.shape != values.shape[:1] + values.shape[2:]:
            rule = "labels must be (N,) for (N, C) or (N,) and (N, d1, ...) for (N, C, d1, ...)"
            raise PredictionsError(f"{path}: {rule}, got {form(target)} for {form(values)}")
        target = target.cpu().to(torch.int64)
    names = None if class_names is None else tuple(class_names)
    if names == tuple(map(str, range(len(names or ())))):
        names = None  # digits: nothing but their indices
    if names is not None and (values.ndim == 1 or len(names) != values.shape[1] or len(set(names)) < len(names)):
        raise PredictionsError(f"{path}: each class must have a name of its own, got {names} for {form(values)}")
    if names is not None and target is not None and suffix in (".csv", ".parquet") and all(map(str.isdecimal, names)):
        strange = target[target >= len(names)]
        if len(strange):
            rule = f"labels that are no class must be negative where classes are numbers ({', '.join(names)})"
            raise PredictionsError(f"{path}: {rule}, got {strange[0]}")
    WRITERS[suffix](path, input, values, target, names)


def check_suffix(path: Path) -> str:
    """The suffix, if there is a format for it."""
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise PredictionsError(f"{path}: must end in {', '.join(WRITERS)}, got {suffix!r}")
    return suffix


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary file to write; whatever a library raises becomes one line."""
    with atomic_path(path) as temporary:
        try:
            yield temporary
        except Exception as error:  # a full disk makes each library raise something of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PredictionsError(f"{path}: cannot be written: {reason}") from error


def _write_npz(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    arrays: dict[str, Any] = {kind: as_numpy(values)}
    if target is not None:
        arrays["target"] = target.numpy()
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    with writing(path) as temporary, temporary.open("wb") as file:  # np.savez would add .npz to the name of a .NPZ
        np.savez(file, **arrays)


def _write_safetensors(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    tensors = {kind: values.contiguous()}
    if target is not None:
        tensors["target"] = target.contiguous()
    metadata = None if class_names is None else {"class_names": json.dumps(class_names)}
    with writing(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def _write_csv(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    header = class_columns(path, kind, values, class_names)
    ends = ["\n"] * len(values)
    if target is not None:
        header.append("target")
        text = {i: quoted(name) for i, name in enumerate(class_names or ())}
        ends = [f",{text.get(label, label)}\n" for label in target.tolist()]
    rows = as_numpy(values).reshape(len(values), -1)
    with writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(map(quoted, header)) + "\n")
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            # tolist makes floats of Python, and their repr is the shortest text that reads back as the same float64
            lines = zip(rows[part].tolist(), ends[part], strict=True)
            file.writelines(",".join(map(repr, row)) + end for row, end in lines)


def _write_parquet(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    arrow = import_pyarrow(path)
    header = class_columns(path, kind, values, class_names)
    rows = as_numpy(values).reshape(len(values), -1)
    table = dict(zip(header, rows.T, strict=True))
    if target is not None:
        table["target"] = target.numpy()
        if class_names is not None:
            strange = sorted({label for label in target.tolist() if not 0 <= label < len(class_names)})
            place = dict(zip(strange, range(len(class_names), len(class_names) + len(strange)), strict=True))
            indices = np.array([place.get(label, label) for label in target.tolist()])
            table["target"] = arrow.DictionaryArray.from_arrays(indices, [*class_names, *map(str, strange)])
    with writing(path) as temporary:
        arrow.parquet.write_table(arrow.table(table), temporary)


WRITERS: dict[str, Writer] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}


def class_columns(path: Path, kind: str, values: Tensor, class_names: Names | None) -> list[str]:
    """What the columns of the values are called: whatever the reader takes for the same classes."""
    if values.ndim == 1:
        return [kind]
    if values.ndim > 2:
        rule = f"a table must have {kind} of (N, C) with two classes or more, or (N,)"
        raise PredictionsError(f"{path}: {rule}, got {form(values)}: use .npz or .safetensors")
    numbered = class_names == tuple(str(k + 1) for k in range(values.shape[1]))  # from 1, as the reader knows them
    for name in class_names or ():
        odd = name != name.strip() or name.startswith(("_", ".")) or len(name.splitlines()) != 1
        if odd or (is_number(name) and not numbered):
            rule = (
                "class names of a table must be one line, no number, not begin with '_', '.' or space or end with space"
            )
            raise PredictionsError(f"{path}: {rule}, got {name!r}")
    prefix = kind.removesuffix("s")
    return [f"{prefix}_{name}" for name in class_names or range(values.shape[1])]


def quoted(text: str) -> str:
    """A field of a csv; with quotes also where another reader could take a mark for the delimiter."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;\t"\r\n') else text


def as_numpy(values: Tensor) -> NDArray[Any]:
    """The same numbers; numpy has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
