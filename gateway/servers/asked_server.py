# SPDX-License-Identifier: Apache-2.0
"""A server that is being asked: how it answers, or fails, is noted of it once, whatever is asked."""

from types import TracebackType
from typing import Self

from gateway.servers.failures import has_no_room, is_fault
from gateway.servers.server import Server
from trireme.base.errors import RequestError, ServingError, Unavailable

_FULL_S = 1.0  # what a server without room is passed over for, if it does not say


class AskedServer:
    """A request at a server, for as long as it runs. Args: `server`: counts it, and is judged by its end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_told = False
        self.has_begun = False

    def __enter__(self) -> Self:
        self._is_trial = self._server.begin()
        return self

    def note_answer(self) -> None:
        """Note that the server answers."""
        self._server.breaker.succeed()
        self._is_told = self.has_begun = True

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(exc, ServingError):
            self._note_failure(exc)
        self._server.num_running -= 1
        if not self._is_told:
            self._server.breaker.leave(is_trial=self._is_trial)

    def _note_failure(self, exc: ServingError) -> None:
        if self.has_begun and exc.facts.get("reason") == "silent":
            self._is_told = False  # it may be this one request that waits: the server is asked itself how it is
        elif is_fault(exc):
            self._server.breaker.fail(is_trial=self._is_trial)
            self._is_told = True
        elif isinstance(exc, RequestError | Unavailable):  # it answers
            self._server.breaker.succeed()
            self._is_told = True
        if has_no_room(exc):
            hint_ms = exc.facts.get("retry_after_ms")
            self._server.note_full(hint_ms / 1000 if isinstance(hint_ms, int | float) else _FULL_S)
