"""Being asked to stop, by Ctrl-C or by a cluster: the step is finished first, and what was done is saved."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Within it SIGINT and SIGTERM are only noted, in ``asked``; a second one has its usual effect."""

    def __init__(self, catch: bool = True) -> None:
        # Python hears signals in its main thread only.
        self.catch = catch and threading.current_thread() is threading.main_thread()
        self.asked: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self.catch:
            self.before = {number: signal.getsignal(number) for number in SIGNALS}
            for number in SIGNALS:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        signal.signal(number, self.before[number])

    def leave(self) -> None:
        """End as the signal would have: KeyboardInterrupt, or exit code 143."""
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is not None:
            raise SystemExit(128 + self.asked)
