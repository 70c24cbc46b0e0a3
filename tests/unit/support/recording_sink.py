# SPDX-License-Identifier: Apache-2.0
"""A sink for the replies to one request in a test, and a check that they end once and in one thread at a time."""

import threading
from collections.abc import Callable

from serving.pipeline.running_request import Reply
from trireme.base.errors import ServingError


class RecordingSink:
    """A sink that keeps every call.

    What a sink must never see is noted, not raised: the caller would swallow it.
    """

    takes_one = False

    def __init__(
        self,
        *,
        before_send: Callable[[Reply], None] = lambda _: None,
        before_poll: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a sink.

        Args:
            before_send: called before each reply is kept; it may raise, or wait.
            before_poll: called before each `is_cancelled`; it may raise, or wait.
        """
        self.replies: list[Reply] = []
        self.error: ServingError | None = None
        self.is_abandoned = False
        self.violations: list[str] = []
        self._before_send = before_send
        self._before_poll = before_poll
        self._is_ended = threading.Event()
        self._is_busy = threading.Lock()

    def send(self, reply: Reply) -> None:
        """Keep a reply; with `is_final` the last call."""
        with _alone(self, "send"):
            self._before_send(reply)
            self.replies.append(reply)
            if reply.is_final:
                self._is_ended.set()

    def fail(self, error: ServingError) -> None:
        """Keep the error, the last call."""
        with _alone(self, "fail"):
            self.error = error
            self._is_ended.set()

    def is_cancelled(self) -> bool:
        """Return whether the test has walked away."""
        with _alone(self, "is_cancelled"):
            self._before_poll()
            return self.is_abandoned

    def named_outputs(self) -> tuple[str, ...]:
        """Return no names: the test takes every output."""
        return ()

    @property
    def is_ended(self) -> bool:
        """Return whether the last call has come."""
        return self._is_ended.is_set()

    @property
    def token_ids(self) -> list[int]:
        """Return every token id so far."""
        return [token_id for reply in self.replies for token_id in reply.token_ids]

    def wait(self, timeout_s: float = 20.0) -> "RecordingSink":
        """Return the sink, once the last call has come."""
        assert self._is_ended.wait(timeout_s), f"no end after {len(self.replies)} replies"
        return self


class _alone:  # noqa: N801  reads as a phrase where it is used
    """A block that notes a call that comes during another call, or after the last one."""

    def __init__(self, sink: RecordingSink, call: str) -> None:
        self._sink, self._call = sink, call

    def __enter__(self) -> None:
        if self._sink.is_ended:
            self._sink.violations.append(f"{self._call} after the end")
        if not self._sink._is_busy.acquire(blocking=False):
            self._sink.violations.append(f"{self._call} during another call")
            self._sink._is_busy.acquire()

    def __exit__(self, *_: object) -> None:
        self._sink._is_busy.release()
