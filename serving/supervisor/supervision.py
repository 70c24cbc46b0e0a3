# SPDX-License-Identifier: Apache-2.0
"""The supervision of a server: it is started, watched, started again after a failure, and given up when that fails.

Once the server is asked to stop, `serving.supervisor.shutdown` takes over.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ensemble_configs.spec.triton_spec import TritonSpec
from serving.supervisor.drain import Outcome
from serving.supervisor.health import Health
from serving.supervisor.health_watch import HealthWatch
from serving.supervisor.shutdown import Shutdown
from serving.supervisor.stop_signal import StopSignal
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import ServerError

_MAX_BACKOFF_S = 60.0
# A request to a dead stub gets Triton's own INTERNAL after a second; until then it can be made an UNAVAILABLE.
_WATCH_PERIOD_S = 0.2


class ServerFailed(ServerError):
    """The error of a server that died, hangs, or cannot be loaded."""


class LoadStuck(ServerFailed):
    """The error of a server that lost a process of its models while it loaded them, and waits for ever."""


class RestartBudget:
    """The restarts that a server may still have, and the wait before each."""

    def __init__(self, triton: TritonSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._triton = triton
        self._clock = clock
        self._spent_s: deque[float] = deque()

    def spend(self) -> float:
        """Take one restart, and return the seconds to wait before it.

        Raises:
            ServerError: all restarts are spent.
        """
        now_s = self._clock()
        while self._spent_s and self._spent_s[0] <= now_s - self._triton.restart_window_s:
            self._spent_s.popleft()
        count = len(self._spent_s)
        if count >= self._triton.max_restarts:
            raise ServerError(
                f"given up after {count} restarts in {self._triton.restart_window_s:g} s (triton.max_restarts)"
            )
        self._spent_s.append(now_s)
        return min(self._triton.restart_backoff_s * 2 ** (count - 1), _MAX_BACKOFF_S) if count else 0.0


@dataclass(frozen=True)
class Supervision:
    """A server to keep running, with the functions and limits for that."""

    start: Callable[[], TritonProcess]
    triton: TritonSpec
    stop: StopSignal
    health: Health
    leaving: Shutdown
    ready_timeout_s: float
    on_ready: Callable[[float], str]  # the message for the first time it is ready, from the seconds that took
    tell: Callable[[str], None]  # progress for a person
    lose: Callable[[str, int, str], bool] = lambda *_: False  # see `HealthWatch`
    # Takes the reason of a failed start; returns whether the next start leaves out what may be to blame.
    give_up_candidate: Callable[[str], bool] = lambda _: False
    # Returns whether requests that name no version go to this one; without its engine the server is not ready.
    is_needed: Callable[[str, int], bool] = lambda *_: True

    def run(self) -> None:
        """Serve until `stop`, then shut down.

        Raises:
            ServerError: the first server did not become ready and had not crashed, or the restarts are used up.
        """
        budget = RestartBudget(self.triton)
        was_ready = False
        num_crashed = 0  # starts, one after the other
        while failure := (end := self._serve_once(was_ready=was_ready, num_crashed=num_crashed)).failure:
            was_ready |= end.was_ready
            num_crashed = num_crashed + 1 if end.is_crashed_start else 0
            delay_s = _next_delay_s(budget, failure)
            self.health.beat()
            self.tell(f"{failure.message}; starting it again" + (f" in {delay_s:g} s" if delay_s else ""))
            if self.stop.wait(delay_s):
                self.leaving.finish(Outcome.NOTHING)
                break
        self.leaving.wait()
        self.tell("stopped")

    def _serve_once(self, *, was_ready: bool, num_crashed: int) -> "_End":
        """Run one server from its start to its end.

        Args:
            was_ready: an earlier server was ready.
            num_crashed: how many servers just before this one crashed while they loaded.
        """
        started_s = time.monotonic()
        server = self.start()
        is_loaded = False
        try:
            if self._wait_ready(server):
                is_loaded = True
                self.health.enter("serving")
                seconds = time.monotonic() - started_s
                self.tell(f"ready again after {seconds:.1f} s" if was_ready else self.on_ready(seconds))
                watch = HealthWatch(server, hang_timeout_s=self.triton.hang_timeout_s, lose=self.lose)
                self._watch(watch)
                self.leaving.leave(server, watch.failure)
            else:
                self.leaving.finish(Outcome.NOTHING)
            server.stop()
        except ServerFailed as exc:
            # What does not load now will not load in a second either. But Triton 2.51 itself crashes or sticks now and
            # then while it loads several models at once, which says nothing about them, unless it does so again.
            is_crashed_start = not is_loaded and (isinstance(exc, LoadStuck) or _is_crashed(server))
            is_nobodys_fault = is_loaded or (is_crashed_start and not num_crashed)
            is_hopeless = not (was_ready or is_loaded or is_crashed_start)
            if not is_nobodys_fault and self.give_up_candidate(exc.message):
                is_hopeless = False
            if is_hopeless:
                raise
            return _End(exc, is_loaded, is_crashed_start)
        finally:
            server.kill()
            server.clean_up()
        return _End(None, is_loaded, is_crashed_start=False)

    def _wait_ready(self, server: TritonProcess) -> bool:
        """Return whether the server has loaded everything; False: a stop was asked for.

        A stub that died since makes some servers unready; the watch finds it, and sees to it.
        """
        deadline_s = time.monotonic() + self.ready_timeout_s
        while not server.is_loaded():
            self.health.beat()
            if server.exit_status is not None:
                raise ServerFailed(f"tritonserver ended with status {server.exit_status} while loading")
            if server.is_stuck():
                raise LoadStuck("tritonserver has lost a process of a model while loading, and waits for it")
            if time.monotonic() > deadline_s:
                raise ServerFailed(
                    f"tritonserver is not ready after {self.ready_timeout_s:g} s; --ready-timeout-s gives it more"
                )
            if self.stop.wait(0.05):
                return False
        return True

    def _watch(self, watch: HealthWatch) -> None:
        """Watch the server, and return when asked to stop. Raises: ServerFailed."""
        while not self.stop.wait(_WATCH_PERIOD_S):
            if failure := watch.failure():
                self.health.enter("restarting")  # before it is killed, which takes seconds where it hangs
                raise ServerFailed(failure)
            self.health.note_dead_engines(
                [name for name, version in watch.dead_engines if self.is_needed(name, version)]
            )
            self.health.beat()


class _End(NamedTuple):
    failure: ServerFailed | None  # None: it was asked for
    was_ready: bool
    is_crashed_start: bool


def _is_crashed(server: TritonProcess) -> bool:
    """Return whether a signal ended the server, not a decision of its own."""
    return server.exit_status is not None and server.exit_status < 0


def _next_delay_s(budget: RestartBudget, failure: ServerFailed) -> float:
    try:
        return budget.spend()
    except ServerError as exc:
        raise ServerError(f"{failure.message}; {exc.message}") from failure
