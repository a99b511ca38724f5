"""The formats that can be read, by suffix."""

from collections.abc import Callable
from pathlib import Path

from dualfocal.predictions._arrays import NpzFile, SafetensorsFile
from dualfocal.predictions._sources import PredictionsError, Source
from dualfocal.predictions._tables import ParquetFile, TextTable

READERS: dict[str, Callable[[Path], Source]] = {
    ".npz": NpzFile,
    ".safetensors": SafetensorsFile,
    ".csv": TextTable,
    ".tsv": TextTable,
    ".csv.gz": TextTable,
    ".tsv.gz": TextTable,
    ".parquet": ParquetFile,
}


def open_source(path: Path) -> Source:
    """Open a file by its suffix."""
    if not path.is_file():
        raise PredictionsError(
            f"{path}: {'must be a file, but is a folder' if path.is_dir() else 'there is no such file'}"
        )
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + suffix
    if suffix not in READERS:
        raise PredictionsError(f"{path}: must be {', '.join(READERS)}, got {suffix!r}")
    source = READERS[suffix](path)
    if twice := [name for i, name in enumerate(source.names) if name in source.names[:i]]:
        raise source.error(f"has more than one {source.noun} {twice[0]!r}")
    return source
