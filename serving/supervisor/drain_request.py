# SPDX-License-Identifier: Apache-2.0
"""`drain` on the control socket: whoever asks waits until the supervision has done it, and hears how it goes.

It is done once. Who asks while it goes on is told what was said so far, and waits for the same end; who asks later is
answered at once.
"""

import threading
from collections.abc import Callable, Mapping

from serving.supervisor.drain import Outcome
from trireme.base.errors import ServerError
from trireme.base.unix_rpc import Handler, Say


class DrainRequest:
    """Asked for by callers of the control socket, each in a thread; done and told by the supervision's.

    Args:
        wake: makes the supervision see that the server is asked to stop.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._outcome: Outcome | None = None

    def handlers(self) -> dict[str, Handler]:
        """By operation. ``drain`` answers with its ``outcome``, as `Outcome` has them."""
        return {"drain": self._answer}

    def note(self, line: str) -> None:
        """Progress, for all who wait."""
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def finish(self, outcome: Outcome) -> None:
        """Nobody's stream runs any more; the first outcome counts."""
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
        """Say each line; the outcome when there is one."""
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
