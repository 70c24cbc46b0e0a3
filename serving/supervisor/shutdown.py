# SPDX-License-Identifier: Apache-2.0
"""The shutdown of a server on request: drained, and then stopped, or kept as it is until a signal comes.

A signal asks for both. A caller of the control socket asks for the drain alone: what it calls before somebody else
sends the signal, such as a pod's preStop hook, is over when the streams are, and not when the process is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from serving.supervisor.drain import Outcome, drain
from serving.supervisor.drain_request import DrainRequest
from serving.supervisor.health import Health
from serving.supervisor.stop_signal import StopSignal
from serving.triton.triton_process import TritonProcess

_GLANCE_S = 0.5


@dataclass(frozen=True)
class Shutdown:
    """The shutdown, which the supervising thread runs once `stop` is asked for."""

    stop: StopSignal
    request: DrainRequest
    health: Health
    delay_s: float
    timeout_s: float
    tell: Callable[[str], None]  # progress for a person

    def leave(self, server: TritonProcess, failure: Callable[[], str | None]) -> None:
        """Drain a serving server; return when it is to be stopped.

        Args:
            failure: says what is wrong with the server; None: nothing.
        """
        self.health.enter("draining")
        self._note("draining; Ctrl-C again stops at once" if self.stop.count else "draining, as `trireme drain` asks")
        outcome = drain(
            server,
            timeout_s=self.timeout_s,
            delay_s=self.delay_s,
            failure=failure,
            is_hurried=lambda: self.stop.count > 1,
            tell=self._note,
        )
        self.finish(outcome)
        if outcome is Outcome.LOST:  # its remaining processes may not know that they are to refuse new requests
            return
        while not self.stop.wait_for_signal(_GLANCE_S):
            if server.exit_status is not None:
                self.tell(f"tritonserver ended with status {server.exit_status}; it was drained, and is left so")
                return

    def finish(self, outcome: Outcome) -> None:
        """Record that no stream runs any more."""
        self.health.enter("drained")
        self.request.finish(outcome)
        if not self.stop.count:
            self.tell("drained; SIGTERM ends this process")

    def wait(self) -> None:
        """Wait, with no server any more, until a signal comes."""
        while not self.stop.wait_for_signal(_GLANCE_S):
            pass

    def _note(self, line: str) -> None:
        self.request.note(line)
        self.tell(line)
