"""A pytest plugin: stop unless the tests import the package from the folder that the environment names."""

import os
from pathlib import Path

import pytest

import dualfocal

VARIABLE = "DUALFOCAL_SOURCE"


def pytest_configure() -> None:
    source, imported = os.environ[VARIABLE], Path(dualfocal.__file__)
    if not imported.is_relative_to(source):
        raise pytest.UsageError(f"dualfocal must be imported from {source}, got {imported}")
