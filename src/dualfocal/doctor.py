"""Check an installation: versions, devices, data sets and extras, and whether losses, calibrators and kernels work."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

from dualfocal import __version__, kernels
from dualfocal._memory import free_memory, machine_memory, show_size
from dualfocal._trials import FAILED, UNUSED, Trial, try_calibrator, try_kernels, try_loss
from dualfocal.data.paths import VARIABLE, Root, data_root, on_disk
from dualfocal.data.sources import OFFICIAL
from dualfocal.tables import Table
from dualfocal.train.distributed import num_cores
from dualfocal.train.result import device_name

SHOWN = ("torch", "numpy", "scipy", "scikit-learn", "torchmetrics", "triton")  # packages whose versions are listed
FOR_DEVELOPERS = ("dev", "docs", "integrations")  # extras that no feature needs
FEATURES = {
    "parquet": ".parquet, .arrow and .feather files",
    "ray": "study --engine ray, Ray data sets",
    "tensorboard": "train --tensorboard",
    "sql": "evaluate --sql",
    "hf": "Hugging Face Trainer",
    "lightning": "Lightning callback",
    "onnx": "ONNX export",
}


@dataclass(frozen=True)
class System:
    """The machine, and where the package lies."""

    platform: str
    package: str
    cores: int  # that this process may use
    memory: int | None  # bytes; None: unknown
    free_memory: int  # bytes that this process can still use


@dataclass(frozen=True)
class Device:
    """A device that PyTorch can use."""

    name: str  # "cpu", "cuda:0", "mps"
    model: str
    memory: int | None  # bytes
    capability: str | None  # of a CUDA GPU, such as "9.0"


@dataclass(frozen=True)
class DataFolder:
    """The folder in which data sets are looked for."""

    path: str
    chosen_by: str
    writable: bool
    free_bytes: int | None  # None: unknown, because it is not writable


@dataclass(frozen=True)
class DataStatus:
    """A data set: where it is, or how to get it."""

    name: str
    path: str | None  # None: not on disk
    download_bytes: int
    remedy: str


@dataclass(frozen=True)
class Unmet:
    """A requirement that is not met."""

    name: str
    needed: str  # such as ">=2.0"
    installed: str | None

    def __str__(self) -> str:
        return f"{self.name} is {self.installed}, not {self.needed}" if self.installed else f"no {self.name}"


@dataclass(frozen=True)
class ExtraStatus:
    """An extra of the package, and its requirements that are not met."""

    name: str
    feature: str
    unmet: tuple[Unmet, ...]
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found.

    Args:
        versions: version of each package; "not installed" if there is none.
        system: the machine.
        devices: devices of PyTorch.
        trials: what was tried.
        unmet: requirements of the package itself that are not met.
        folder: folder of the data sets.
        data: data sets.
        extras: extras of the package.
    """

    versions: dict[str, str]
    system: System
    devices: tuple[Device, ...]
    trials: tuple[Trial, ...]
    unmet: tuple[Unmet, ...]
    folder: DataFolder
    data: tuple[DataStatus, ...]
    extras: tuple[ExtraStatus, ...]

    @property
    def problems(self) -> list[str]:
        """One sentence for each thing that is needed and does not work."""
        unmet = [f'{need}: pip install "{need.name}{need.needed}"' for need in self.unmet]
        return unmet + [f"{trial.name}: {trial.detail}" for trial in self.trials if trial.state == FAILED]

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        return {"schema": 1, "ok": not self.problems, "problems": self.problems, **asdict(self)}

    def tables(self) -> Iterator[Table]:
        """Yield a table for each section."""
        system, folder = self.system, self.folder
        memory = f"{show_size(system.memory)} of memory, " if system.memory else ""
        about = [
            ["dualfocal", f"{__version__}, in {system.package}"],
            *map(list, self.versions.items()),
            ["system", system.platform],
            ["machine", f"{system.cores} cores, {memory}{show_size(system.free_memory)} free"],
        ]
        yield Table(["what", "value"], about, "Installation", left=(0, 1))
        devices = [
            [device.name, device.model, show_size(device.memory) if device.memory else "", device.capability or ""]
            for device in self.devices
        ]
        yield Table(["device", "model", "memory", "capability"], devices, "Devices", left=(0, 1))
        trials = [[trial.name, trial.state, trial.detail] for trial in self.trials]
        yield Table(["trial", "result", "detail"], trials, "Tried", left=(0, 1, 2))
        data = [
            [
                item.name,
                show_size(item.download_bytes) if item.remedy and item.download_bytes else "",
                item.path or item.remedy,
            ]
            for item in self.data
        ]
        free = f"writable, {show_size(folder.free_bytes)} free" if folder.free_bytes is not None else ""
        state = free or f"not writable; {VARIABLE} can name another folder"
        title = f"Data sets in {folder.path} ({folder.chosen_by}; {state})"
        yield Table(["data set", "download", "where it is, or how to get it"], data, title, left=(0, 2))
        extras = [
            [extra.name, extra.feature, extra.remedy or "installed", "; ".join(map(str, extra.unmet))]
            for extra in self.extras
        ]
        yield Table(["extra", "for", "state, or how to get it", "missing"], extras, "Extras", left=(0, 1, 2, 3))


def diagnose(root: Root = None) -> Diagnosis:
    """Check the installation and try its main parts, in a few seconds.

    Nothing is downloaded, and no file is left behind. Data sets and extras may be missing; a requirement that is not
    met, or a trial that fails, is a problem.

    Args:
        root: folder of the data sets (None: ``$DUALFOCAL_DATA``, or the user's cache folder).

    Returns:
        The diagnosis; its ``problems`` are empty if everything that is needed works.

    Raises:
        ValueError: the folder of the data sets is a file.

    >>> diagnose().problems
    []
    """
    folder, devices = _data_folder(root), tuple(_devices())
    trials = [try_loss("cpu"), try_calibrator()]
    trials += [try_loss(device.name) for device in devices if device.name != "cpu"]
    cuda = [device.name for device in devices if device.name.startswith("cuda")]
    if cuda and kernels.available():
        trials += [trial for device in cuda for trial in try_kernels(device)]
    else:
        trials.append(Trial("Triton kernels", UNUSED, _reason_against_kernels(bool(cuda))))
    return Diagnosis(
        {"python": platform.python_version(), **{name: _version(name) or "not installed" for name in SHOWN}},
        System(platform.platform(), str(Path(__file__).parent), num_cores(), machine_memory(), free_memory()),
        devices,
        tuple(trials),
        tuple(_unmet(None)),
        folder,
        tuple(_data_sets(root)),
        tuple(_extras()),
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[Device]:
    yield Device("cpu", device_name(torch.device("cpu")), None, None)
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu = torch.cuda.get_device_properties(index)
        yield Device(f"cuda:{index}", gpu.name, gpu.total_memory, f"{gpu.major}.{gpu.minor}")
    if torch.backends.mps.is_available():
        yield Device("mps", "Apple GPU", None, None)


def _reason_against_kernels(has_cuda: bool) -> str:
    if not has_cuda:
        return "there is no CUDA GPU; PyTorch computes the same losses and metrics"
    if torch.version.hip is not None:
        return "the GPU is not from NVIDIA; PyTorch computes the same losses and metrics"
    if _version("triton") is None:
        return "triton is not installed (pip install triton); PyTorch computes the same losses and metrics, but slower"
    return "the GPU is too old, capability 8.0 is needed; PyTorch computes the same losses and metrics"


def _data_folder(root: Root) -> DataFolder:
    folder = data_root(root)
    chosen_by = VARIABLE if os.environ.get(VARIABLE) else "your cache folder"
    if root:
        chosen_by = "--data-root"
    try:
        existing = _nearest_existing(folder.absolute())
        with tempfile.TemporaryFile(dir=existing):
            return DataFolder(str(folder), chosen_by, True, shutil.disk_usage(existing).free)
    except OSError:
        return DataFolder(str(folder), chosen_by, False, None)


def _nearest_existing(path: Path) -> Path:
    """Return the path or the first of its parents that exists."""
    try:
        path.stat()
    except FileNotFoundError:
        return _nearest_existing(path.parent)
    return path


def _data_sets(root: Root) -> Iterator[DataStatus]:
    option = "" if root is None else f" --data-root {shlex.quote(os.fspath(root))}"
    for name, official in OFFICIAL.items():
        path = on_disk(name, root)
        size = sum(source.size for source in official.sources)
        if path is not None:
            yield DataStatus(name, str(path) if official.layouts else "comes with scikit-learn", size, remedy="")
        else:
            remedy = f"dualfocal data fetch {name}{option}" if official.sources else official.by_hand
            yield DataStatus(name, None, size, remedy)


def _extras() -> Iterator[ExtraStatus]:
    try:
        names = importlib.metadata.metadata("dualfocal").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source
        names = []
    for name in names:
        if name not in FOR_DEVELOPERS:
            unmet = tuple(_unmet(name))
            remedy = f'pip install "dualfocal[{name}]"' if unmet else ""
            yield ExtraStatus(name, FEATURES.get(name, ""), unmet, remedy)


def _unmet(extra: str | None) -> Iterator[Unmet]:
    """Yield the requirements of an extra, or of the package itself (None), that are not met."""
    try:
        lines = importlib.metadata.requires("dualfocal") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        with_extra = marker is None or marker.evaluate({"extra": extra or ""})
        if not with_extra or (extra is not None and always):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield Unmet(requirement.name, str(requirement.specifier), version)
