# SPDX-License-Identifier: Apache-2.0
"""`drain` on the control socket: each caller waits until the supervision has drained the server, and hears how it goes.

The drain happens once. A caller that comes while it goes on gets the lines said so far, and waits for its end; a caller
that comes later is answered at once.
"""

import threading
from collections.abc import Callable, Mapping

from serving.supervisor.drain import Outcome
from trireme.base.errors import ServerError
from trireme.base.unix_rpc import Handler, Say


class DrainRequest:
    """A request to drain, made by callers of the control socket in threads of their own, answered by the supervision.

    Args:
        wake: makes the supervision see that the server is asked to stop.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._outcome: Outcome | None = None

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation: ``drain`` answers with its ``outcome``, a value of `Outcome`."""
        return {"drain": self._answer}

    def note(self, line: str) -> None:
        """Pass a line of progress on to every waiting caller."""
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def finish(self, outcome: Outcome) -> None:
        """Record that no stream runs any more, and answer every caller; the first outcome counts."""
        with self._changed:
            self._outcome = self._outcome or outcome
            self._changed.notify_all()

    def _answer(self, question: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del question
        self._wake()
        outcome = self._follow(say)
        if outcome is Outcome.LOST:
            raise ServerError("tritonserver failed while it was drained, and its streams with it; its log says why")
        return {"outcome": outcome.value}

    def _follow(self, say: Say) -> Outcome:
        """Say each line of progress, and return the outcome when there is one."""
        num_said, outcome = 0, None
        while outcome is None:
            lines, outcome = self._news(num_said)
            for line in lines:
                say(line)
            num_said += len(lines)
        return outcome

    def _news(self, num_known: int) -> tuple[list[str], Outcome | None]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._lines) > num_known or self._outcome is not None)
            return self._lines[num_known:], self._outcome
