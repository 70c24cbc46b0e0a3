# SPDX-License-Identifier: Apache-2.0
"""A watch over a running server: its process, its HTTP endpoint, and every adapter behind its control channel.

Triton itself goes on answering "ready" when one of its stubs is dead, and restarts none.
"""

import time
from collections.abc import Callable

from serving.process.control_channel import Pulse, feel_pulse
from serving.triton.triton_process import TritonProcess

_ANSWER_S = 1.0  # the time for one answer; several questions without an answer make a hang
_HTTP_PERIOD_S = 1.0


class HealthWatch:
    """The watch over one server, which one thread asks again and again."""

    def __init__(
        self,
        server: TritonProcess,
        *,
        hang_timeout_s: float,
        lose: Callable[[str, int, str], bool] = lambda *_: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: `lose` is told of a version that failed, and why; it returns whether the server goes on without it."""
        self._server = server
        self._lose = lose
        self._lost: set[str] = set()
        self._hang_timeout_s = hang_timeout_s
        self._clock = clock
        self._heard_s: dict[str, float] = {}  # when each adapter or endpoint was last known to be well
        self._refused: set[str] = set()  # adapters that refused, at the last question
        self.dead_engines: set[tuple[str, int]] = set()  # models and versions, at the last question
        self._next_http_s = clock()

    def failure(self) -> str | None:
        """Return what is wrong for good, as the beginning of a sentence, or None; take seconds when something hangs."""
        status = self._server.exit_status
        if status is not None:
            self._lose_dead_before_the_server()
            return f"tritonserver ended by itself with status {status}"
        return self._dead_adapter() or self._silent_server()

    def _lose_dead_before_the_server(self) -> None:
        """Tell of adapters that died while the server and others lived.

        A stub that is killed while it holds the lock of Triton's shared memory takes Triton with it, which meets the
        lock and aborts: `boost::interprocess::lock_exception` (server #8882).
        """
        if self._refused >= {path.stem for path in self._server.run_dir.glob("*.sock")}:
            return  # they went with the server
        for stem in sorted(self._refused):
            name, version, _ = stem.rsplit("-", 2)
            self._lose(name, int(version), f"the process of model {name} died, and tritonserver with it")

    def _dead_adapter(self) -> str | None:
        refused, dead_engines = set(), set()
        for path in sorted(self._server.run_dir.glob("*.sock")):
            if path.stem in self._lost:
                continue
            name, version, _ = path.stem.rsplit("-", 2)
            failure = None
            match feel_pulse(path, timeout_s=_ANSWER_S):
                case Pulse.DEAD if path.stem in self._refused:
                    failure = f"the process of model {name} died"
                case Pulse.DEAD:
                    refused.add(path.stem)
                case Pulse.SILENT:
                    if self._is_hung(path.stem):
                        # A stub waits for its server, now and then with the interpreter's lock: the cause goes first.
                        if not self._server.answers(timeout_s=_ANSWER_S):
                            return self._hung("tritonserver", self._server.is_stopped())
                        is_stopped = self._server.is_stopped(name, int(version))
                        failure = self._hung(f"the process of model {name}", is_stopped)
                case Pulse.ALIVE | Pulse.CLOSED:
                    self._heard_s[path.stem] = self._clock()
                case Pulse.ENGINE_DEAD:
                    self._heard_s[path.stem] = self._clock()
                    dead_engines.add((name, int(version)))
            if failure is None:
                continue
            if not self._lose(name, int(version), failure):
                return failure
            self._lost.add(path.stem)
        self._refused, self.dead_engines = refused, dead_engines
        return None

    def _silent_server(self) -> str | None:
        if self._clock() < self._next_http_s:
            return None
        self._next_http_s = self._clock() + _HTTP_PERIOD_S
        if self._server.answers(timeout_s=_ANSWER_S):
            self._heard_s[""] = self._clock()
        elif self._is_hung(""):
            return self._hung("tritonserver", self._server.is_stopped())
        return None

    def _hung(self, what: str, is_stopped: bool) -> str:
        why = ", stopped by a signal (SIGSTOP)" if is_stopped else ""
        return f"{what} has not answered for {self._hang_timeout_s:g} s{why}"

    def _is_hung(self, name: str) -> bool:
        return self._clock() - self._heard_s.setdefault(name, self._clock()) >= self._hang_timeout_s
