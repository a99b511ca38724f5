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

from dualfocal._files import atomic_path, check_place
from dualfocal._readers import (
    FLOATS,
    INTEGERS,
    PredictionsError,
    dtype_name,
    form,
    import_pyarrow,
    is_number,
    numbered_otherwise,
)
from dualfocal.losses._common import check_choice

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
        values: floats, ``(N, C)``; ``(N,)``, one score per sample; or ``(N, C, d1, ...)``, which no table can hold.
        input: what the values are, ``"logits"`` or ``"probs"``.
        target: integers, ``(N,)`` or ``(N, d1, ...)``. A table has them as class names where there are any, as indices
            where some are no class, such as -100.
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
    WRITERS[suffix](path, input, values, target, names)


def check_suffix(path: Path) -> str:
    """The suffix, if there is a format for it."""
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise PredictionsError(f"{path}: must end in {', '.join(WRITERS)}, got {suffix!r}")
    return suffix


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    with atomic_path(path) as temporary:
        try:
            yield temporary
        except Exception as error:  # a full disk makes each library raise something of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PredictionsError(f"{path}: cannot be written: {reason}") from error


def _write_npz(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    arrays: dict[str, Any] = {kind: _as_numpy(values)}
    if target is not None:
        arrays["target"] = target.numpy()
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    with _writing(path) as temporary, temporary.open("wb") as file:  # np.savez would add .npz to the name of a .NPZ
        np.savez(file, **arrays)


def _write_safetensors(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    tensors = {kind: values.contiguous()}
    if target is not None:
        tensors["target"] = target.contiguous()
    metadata = None if class_names is None else {"class_names": json.dumps(class_names)}
    with _writing(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def _write_csv(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    header = _columns(path, kind, values, class_names)
    ends = ["\n"] * len(values)
    if target is not None:
        header.append("target")
        names = _label_names(path, target, class_names)
        text = None if names is None else [_quoted(name) for name in names]
        ends = [f",{label if text is None else text[label]}\n" for label in target.tolist()]
    rows = _as_numpy(values).reshape(len(values), -1)
    with _writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(map(_quoted, header)) + "\n")
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            # tolist makes floats of Python, and their repr is the shortest text that reads back as the same float64
            lines = zip(rows[part].tolist(), ends[part], strict=True)
            file.writelines(",".join(map(repr, row)) + end for row, end in lines)


def _write_parquet(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> None:
    arrow = import_pyarrow(path)
    header = _columns(path, kind, values, class_names)
    rows = _as_numpy(values).reshape(len(values), -1)
    table = dict(zip(header, rows.T, strict=True))
    if target is not None:
        labels, names = target.numpy(), _label_names(path, target, class_names)
        table["target"] = labels if names is None else arrow.DictionaryArray.from_arrays(labels, list(names))
    with _writing(path) as temporary:
        arrow.parquet.write_table(arrow.table(table), temporary)


WRITERS: dict[str, Writer] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}


def _columns(path: Path, kind: str, values: Tensor, class_names: Names | None) -> list[str]:
    """What the columns of the values are called: whatever the reader takes for the same classes."""
    if values.ndim == 1:
        return [kind]
    if values.ndim > 2 or values.shape[1] == 1:
        rule = f"a table must have {kind} of (N, C) with two classes or more, or (N,)"
        raise PredictionsError(f"{path}: {rule}, got {form(values)}: use .npz or .safetensors")
    for name in class_names or ():
        if is_number(name) or name != name.strip() or name.startswith(("_", ".")) or len(name.splitlines()) != 1:
            rule = (
                "class names of a table must be one line, no number, not begin with '_', '.' or space or end with space"
            )
            raise PredictionsError(f"{path}: {rule}, got {name!r}")
    prefix = kind.removesuffix("s")
    return [f"{prefix}_{name}" for name in class_names or range(values.shape[1])]


def _label_names(path: Path, target: Tensor, class_names: Names | None) -> Names | None:
    """The names to write as labels. None: write numbers, all of them, where a label is no class but to be ignored."""
    if class_names is None:
        return None
    strange = target[(target < 0) | (target >= len(class_names))]
    if len(strange) and numbered_otherwise(class_names):
        rule = f"numbers for labels must not be at odds with class names ({', '.join(class_names)})"
        raise PredictionsError(f"{path}: {rule}, got the label {strange[0]}, which has none")
    return None if len(strange) else class_names


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;\t"') else text


def _as_numpy(values: Tensor) -> NDArray[Any]:
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
