import os
import signal
from collections.abc import Callable

import pytest
import torch

try:
    from hypothesis import settings
except ModuleNotFoundError:  # tests of a GPU and of kernels run without it
    pass
else:
    settings.register_profile("dualfocal", deadline=None, max_examples=60, derandomize=True)
    settings.load_profile("dualfocal")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be set before anything imports triton
torch.set_num_threads(1)  # pytest-xdist takes the cores
# Signals that a background job or nohup ignores: this process and its children would ignore them, too.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


# Programs, in which --doctest-modules finds no tests.
collect_ignore = ["tests/bare_install.py", "tests/golden", "tests/mutants"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def warn_again() -> Callable[[], None]:
    """Forget that dual focal loss has warned of two classes, which it does once in a process."""
    from dualfocal.losses import _two_classes

    return _two_classes._warn_once.cache_clear
