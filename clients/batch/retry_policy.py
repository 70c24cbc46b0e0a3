# SPDX-License-Identifier: Apache-2.0
"""The retry policy of a job: what an error means for a line, and for how long nothing is sent."""

import enum
import random

from clients.batch.line_error import LineError
from trireme.base.errors import AccessDenied, QueueFull, RequestError, RequestTimeout, ServingError, Unavailable

SCHEDULING = ("priority", "tenant", "queue_timeout_ms")  # what the job says of itself and not a line
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_LONGEST_HINT_S = 60.0
_AWAY = {"unreachable", "engine_restarting", "draining", "stopping", "not_loaded", "engine_not_loaded", "no_answer"}


class FailureKind(enum.Enum):
    """The kinds of a failed attempt."""

    WRONG = enum.auto()  # the line's fault: it would be refused each time
    BUSY = enum.auto()  # refused for want of room; not begun
    AWAY = enum.auto()  # there is no server or engine to take it; not begun
    LOST = enum.auto()  # it may have been begun; it may even have been the cause
    UNFIT = enum.auto()  # the server does not take what the job says of itself, or not its key


def failure_kind_of(error: ServingError) -> FailureKind:
    """Return the kind of failure that an error is."""
    if isinstance(error, AccessDenied):
        return FailureKind.UNFIT
    reason, field = error.facts.get("reason"), error.facts.get("field")
    if isinstance(error, RequestError):
        if field in SCHEDULING:
            return FailureKind.UNFIT
        return FailureKind.AWAY if field == "model" else FailureKind.WRONG  # it was there when the job began
    if isinstance(error, QueueFull) or reason in {"overload", "shedding", "queue_timeout_ms"}:
        return FailureKind.BUSY
    if isinstance(error, Unavailable) and reason in _AWAY:
        return FailureKind.AWAY
    return FailureKind.LOST


def line_error(error: ServingError, *, attempts: int) -> LineError:
    """Return the error in the results of a line that is given up."""
    if isinstance(error, RequestError):
        field = error.facts.get("field")
        return LineError(error.message, code="invalid_value", param=None if field is None else str(field), status=400)
    code, status = ("unavailable", 503) if isinstance(error, Unavailable) else ("server_error", 500)
    if isinstance(error, RequestTimeout):
        code, status = "timeout", 504
    return LineError(f"given up after {attempts} attempts; the last: {error.message}", code=code, status=status)


class Pauses:
    """The pauses after failures: what the server hints, else longer each time; never equal for all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = _FIRST_PAUSE_S
        self._last_s = -1.0

    def note_answer(self) -> None:
        """Note that the server answers again."""
        self._next_s = _FIRST_PAUSE_S

    def after(self, error: ServingError, *, sent_s: float, now_s: float) -> float:
        """Return the pause after a failure, in seconds.

        It is 0 for a request sent before the last pause: the trouble is the one that pause was for.
        """
        hint_ms = error.facts.get("retry_after_ms")
        if isinstance(hint_ms, int | float):
            return self._rng.uniform(1.0, 1.25) * min(_LONGEST_HINT_S, hint_ms / 1000)
        if sent_s < self._last_s:
            return 0.0
        self._last_s = now_s
        pause_s = self._rng.uniform(0.5, 1.0) * self._next_s
        self._next_s = min(_LONGEST_PAUSE_S, 2 * self._next_s)
        return pause_s
