"""Writers of small prediction files, and the message of a refusal."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dualfocal.predictions import PredictionsError, load_predictions


@pytest.fixture
def npz(tmp_path) -> Callable[..., Path]:
    def write(**arrays: np.ndarray) -> Path:
        np.savez(tmp_path / "file.npz", **arrays)
        return tmp_path / "file.npz"

    return write


@pytest.fixture
def text_file(tmp_path) -> Callable[..., Path]:
    def write(content: str, encoding: str = "utf-8") -> Path:
        (tmp_path / "file.csv").write_bytes(content.encode(encoding))
        return tmp_path / "file.csv"

    return write


@pytest.fixture
def parquet(tmp_path) -> Callable[..., Path]:
    def write(**columns: object) -> Path:
        pq.write_table(pa.table(columns), tmp_path / "file.parquet")
        return tmp_path / "file.parquet"

    return write


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Message with which a file is refused, without the file, which it has to name first, in one line."""

    def load(path: Path, **options: object) -> str:
        try:
            data = load_predictions(path, **options)
        except PredictionsError as error:
            message = str(error)
            assert len(message.splitlines()) == 1, message
            assert message.startswith(f"{path}: "), message
            return message.removeprefix(f"{path}: ")
        return pytest.fail(f"accepted: {options}, {data.taken}")

    return load
