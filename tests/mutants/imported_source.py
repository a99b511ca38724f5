"""A pytest plugin: stop unless the tests import the packages from the folder that the environment names."""

import os
from pathlib import Path

import pytest

import dualfocal
import dualfocal_lab

VARIABLE = "DUALFOCAL_SOURCE"


def pytest_configure() -> None:
    source = os.environ[VARIABLE]
    for imported in (dualfocal.__file__, dualfocal_lab.__file__):
        if not Path(imported).is_relative_to(source):
            raise pytest.UsageError(f"the packages must be imported from {source}, got {imported}")
