# SPDX-License-Identifier: Apache-2.0
"""The end of a stub that was stopped (SIGSTOP) for long: it does not go on, and the server is started again.

Triton fails the request that a stub has had for a second without a sign of life, and uses its shared memory for others
(python_backend, `ReceiveMessageFromStub`: "is not healthy"). A stub that goes on answers that request all the same:
the answer is taken for the next request's, has tensors of one and of the other, or ends the server.
"""

import os
import select
import signal
import threading
import time

_BEAT_S = 0.1
_MOST_S = 0.6  # less than the second, by the 0.3 s between two signs of life
_LATE_S = 1.0  # how long after the gap the signal that ends it may be seen
_WHY = b"this process was stopped for so long that Triton has given its requests up; it ends, to answer none of them\n"


def end_when_resumed() -> None:
    """Have this process end when it goes on after a long stop. The main thread must call this."""
    _Resumption().watch()


class _Resumption:
    """A thread that looks at the clock, and finds that it was not run; being busy has no SIGCONT at its end."""

    def __init__(self) -> None:
        self._beat_s = time.monotonic()
        self._gap_end_s = -_LATE_S
        self._reading, writing = os.pipe()
        for number in (self._reading, writing):
            os.set_blocking(number, False)
        # The interpreter writes a signal's number there in the thread that gets it, whichever thread holds the lock.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # Only for signals with a handler; this one comes before anything else that the main thread runs of Python.
        signal.signal(signal.SIGCONT, lambda *_: self._look(is_resumed=True))

    def watch(self) -> None:
        threading.Thread(target=self._watch, name="resumption", daemon=True).start()

    def _watch(self) -> None:
        while True:
            is_told, _, _ = select.select([self._reading], [], [], _BEAT_S)
            self._look(is_resumed=bool(is_told) and signal.SIGCONT in os.read(self._reading, 64))

    def _look(self, *, is_resumed: bool) -> None:
        now_s = time.monotonic()
        if now_s - self._beat_s > _MOST_S:
            self._gap_end_s = now_s
        self._beat_s = now_s
        if is_resumed and now_s - self._gap_end_s < _LATE_S:
            os.write(2, _WHY)  # logging may wait for a lock
            os._exit(1)
