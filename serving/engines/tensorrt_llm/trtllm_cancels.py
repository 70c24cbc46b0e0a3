# SPDX-License-Identifier: Apache-2.0
"""The cancelled requests that TensorRT-LLM may still compute: which of them are work, and for how long.

Upstream confirms a cancel of a request that runs, within an iteration or two. Of one that waits in its queue the
PyTorch backend never says a word again, and a compiled engine only when it would have begun it. Two kinds are not
cancelled upstream at all, because that does harm there (`docs/trtllm_behaviour.md`, C3 and C4): they run to their end.

A cancel that should be confirmed and is not, is written off: after so many iterations, or so much time.
"""

import enum
import logging
from dataclasses import dataclass

from serving.engines.seam.base import CancelStats
from serving.engines.tensorrt_llm.trtllm_outputs import RunningRequest

WRITE_OFF_S = 30.0  # longer than any iteration takes
WRITE_OFF_ITERATIONS = 64  # upstream needs two; with pipeline stages and overlap a few more
# The stats of an iteration may be so late: the worker looks for them every 0.2 s, and so does the proxy behind it.
STATS_LAG_S = 0.5

_log = logging.getLogger("trireme.engine")


class Ending(enum.Enum):
    """The ways in which upstream ends a cancelled request."""

    STOPPING = "it ends it, and says so"
    WAITING = "it has not begun it, and never will"
    RUNNING_ON = "it was not told, and computes it to its end"


@dataclass(slots=True, eq=False)
class _Cancelled:
    request: RunningRequest
    ending: Ending
    since_s: float
    from_iteration: int | None = None  # the first whose stats can only be of a time after the cancel


class Cancels:
    """The cancelled requests that are not over, and how the others came to their end."""

    def __init__(self) -> None:
        self._open: dict[int, _Cancelled] = {}  # by the request's key
        self._num_over = dict.fromkeys(("confirmed", "waiting", "ran_on", "unconfirmed"), 0)
        self.may_hold_blocks = False  # upstream's last word on its KV cache counts, although nothing is to be done
        self._has_warned = False

    @property
    def are_work(self) -> bool:
        """Return whether upstream computes, or ends, a cancelled request."""
        return any(cancelled.ending is not Ending.WAITING for cancelled in self._open.values())

    def __contains__(self, key: int) -> bool:
        """Return whether blocks of this request may still be in use."""
        cancelled = self._open.get(key)
        return cancelled is not None and cancelled.ending is not Ending.WAITING

    def num_before(self, request: RunningRequest) -> int:
        """Return how many cancelled requests came before a request and may still have a place upstream."""
        return sum(cancelled.request.number < request.number for cancelled in self._open.values())

    def begin(self, request: RunningRequest, ending: Ending, now_s: float) -> None:
        """Note a cancel."""
        request.is_cancelled = True
        self._open[request.key] = _Cancelled(request, ending, now_s)

    def forget(self, request: RunningRequest) -> None:
        """Count a request that upstream has dropped without a word."""
        self._over(request.key, "waiting")

    def confirm(self, request: RunningRequest) -> None:
        """Count a request that upstream says has ended; one that was counted before is ignored."""
        cancelled = self._open.get(request.key)
        if cancelled is None:
            return
        outcomes = {Ending.STOPPING: "confirmed", Ending.WAITING: "waiting", Ending.RUNNING_ON: "ran_on"}
        self._over(request.key, outcomes[cancelled.ending])

    def overdue(self, now_s: float, num_iterations: int) -> list[RunningRequest]:
        """Write off and return the requests that upstream should have confirmed by now.

        Args:
            now_s: of the monotonic clock.
            num_iterations: of upstream's newest stats.
        """
        late: list[RunningRequest] = []
        for cancelled in list(self._open.values()):
            if cancelled.ending is not Ending.STOPPING:
                continue
            elapsed_s = now_s - cancelled.since_s
            if elapsed_s < STATS_LAG_S:
                continue
            if cancelled.from_iteration is None:
                cancelled.from_iteration = num_iterations
            if elapsed_s >= WRITE_OFF_S or num_iterations - cancelled.from_iteration >= WRITE_OFF_ITERATIONS:
                self._write_off(cancelled.request, elapsed_s)
                late.append(cancelled.request)
        return late

    def note_idle(self) -> None:
        """Note that upstream has no request: what was written off is over, too."""
        self.may_hold_blocks = False

    def stats(self) -> CancelStats:
        """Return the counts of the engine's life."""
        return CancelStats(**{f"num_{name}": count for name, count in self._num_over.items()})

    def _over(self, key: int, outcome: str) -> None:
        del self._open[key]
        self._num_over[outcome] += 1

    def _write_off(self, request: RunningRequest, elapsed_s: float) -> None:
        self._over(request.key, "unconfirmed")
        self.may_hold_blocks = True
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "TensorRT-LLM has not confirmed the cancel of a request within %.1f s; it is written off, and may "
                "still hold KV blocks. Later ones are only counted, in the metric trireme_engine_cancels_total",
                elapsed_s,
            )
