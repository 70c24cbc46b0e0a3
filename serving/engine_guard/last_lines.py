# SPDX-License-Identifier: Apache-2.0
"""The last lines that an engine and its ranks logged, kept while they go on to the server's log."""

import contextlib
import os
import threading
from collections import deque

from serving.engine_guard.failure_causes import is_telling
from serving.engine_guard.guard_messages import MAX_LINE_CHARS, MAX_LINES

_READ_BYTES = 1 << 16
_ENDS_S = 1.0
_MAX_REMEMBERED = 400  # lines; the line with the cause may stand far before the last lines
_MAX_TELLING = 4


class LastLines:
    """A thread that copies a pipe to standard error and remembers its end.

    Args:
        pipe: the descriptor to read; closed at its end.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=_MAX_REMEMBERED)
        self._begun = b""
        self._thread = threading.Thread(target=self._run, name="last-lines", daemon=True)
        self._thread.start()

    def take(self) -> list[str]:
        """Wait for the pipe's end, and return lines that name a cause, then the last lines, each oldest first."""
        self._thread.join(_ENDS_S)
        lines = [*self._lines, _shown(self._begun)] if self._begun else [*self._lines]
        earlier, last = lines[:-MAX_LINES], lines[-MAX_LINES:]
        return [*[line for line in earlier if is_telling(line)][:_MAX_TELLING], *last]

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._pipe, _READ_BYTES):
                with contextlib.suppress(OSError):  # no process reads this log any more; the pipe is still emptied
                    os.write(2, data)
                self._keep(data)
        os.close(self._pipe)

    def _keep(self, data: bytes) -> None:
        *whole, begun = (self._begun + data).split(b"\n")
        self._lines.extend(_shown(line) for line in whole if line.strip())
        self._begun = begun[-MAX_LINE_CHARS:]


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").strip()[:MAX_LINE_CHARS]
