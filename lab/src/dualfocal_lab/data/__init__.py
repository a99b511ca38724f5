"""Data sets: read from their official files, split as published, augmented and normalised on the device."""

from dualfocal_lab.data.cifar import gaussian_noise
from dualfocal_lab.data.dataset import DataSet
from dualfocal_lab.data.paths import DataNotFoundError, data_root
from dualfocal_lab.data.registry import DATASETS, load_data
from dualfocal_lab.data.transforms import CropFlip, Embed, Normalize

__all__ = [
    "DATASETS",
    "CropFlip",
    "DataNotFoundError",
    "DataSet",
    "Embed",
    "Normalize",
    "data_root",
    "gaussian_noise",
    "load_data",
]
