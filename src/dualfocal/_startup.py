"""Ctrl-C while a command starts, which takes seconds because of torch: the process ends at once, without a traceback.

A KeyboardInterrupt inside an import is not enough: compiled modules print it, or turn it into another error.
"""

import os
import signal
from types import FrameType


def begin_startup() -> None:
    """From now on Ctrl-C ends the process with exit code 130, unless the caller made it ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)


def end_startup() -> None:
    """From now on Ctrl-C raises a KeyboardInterrupt: there may be something to save or to clean up."""
    if signal.getsignal(signal.SIGINT) is _quit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _quit(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
