import pytest
import torch
from hypothesis import settings

settings.register_profile("dualfocal", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("dualfocal")
torch.set_num_threads(1)  # pytest-xdist takes the cores


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
