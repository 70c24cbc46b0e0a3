# SPDX-License-Identifier: Apache-2.0
"""The way to an engine by way of prefill servers: a long prompt is computed there, and its answer is made here."""

import threading
from collections.abc import Callable

import msgspec

from serving.disaggregation.prefill_servers import PrefillServers
from serving.engine_process.engine_client import EngineClient
from serving.engines.seam.base import GenerationRequest
from serving.requests.prompt_batch import Row
from trireme.base.errors import RequestError


def refuse_handed_over(tensors: Row) -> None:
    """Refuse what says where KV cache is to be read from, where this server asks the prefill servers itself.

    Raises:
        RequestError: there is `context_phase_params`, by which a client could send the engine to any address.
    """
    if "context_phase_params" in tensors:
        raise RequestError(
            "context_phase_params is this server's own business, which has prefill_servers; leave it out, or ask a "
            "server without them",
            field="context_phase_params",
        )


class PrefilledEngine:
    """An engine whose long prompts other servers compute; what none of them computes, the engine does.

    A request that is cancelled while its prompt is computed elsewhere is still handed to the engine, and cancelled
    there: the engine's answer ends the request, as any other's, and frees what the other server holds for it.
    """

    def __init__(
        self, engine: EngineClient, servers: PrefillServers, on_failure: Callable[[int, Exception], None]
    ) -> None:
        """Take over `servers`.

        Args:
            engine: the connection to the engine.
            servers: the prefill servers of the release.
            on_failure: called with the key of a request that cannot be handed to the engine behind its prefill.
        """
        self._engine, self._servers, self._on_failure = engine, servers, on_failure
        self._lock = threading.Lock()  # of the two below
        self._asked: dict[int, tuple[GenerationRequest, str]] = {}
        self._cancelled: set[int] = set()

    def submit(self, request: GenerationRequest, row: Row, *, request_id: str = "") -> bool:
        """Have a request's prompt computed elsewhere, and return whether that is done; False: hand it to the engine.

        Args:
            request: request of one prompt and one sequence, under a key that is unique here.
            row: tensors of its prompt.
            request_id: the request id that the client gave.
        """
        if not self._engine.is_up or not self._servers.takes(request):
            return False
        with self._lock:
            self._asked[request.key] = (request, request_id)
        self._servers.ask(request.key, row, lambda phase: self._go_on(request.key, phase), request_id=request_id)
        return True

    def cancel(self, key: int) -> bool:
        """End what is asked for a request, and return whether anything was; its end comes from the engine."""
        with self._lock:
            if key not in self._asked:
                return False
            self._cancelled.add(key)
        self._servers.cancel(key)
        return True

    def forget_all(self) -> None:
        """End what is asked; for an engine that has died, and with the engine all its requests."""
        with self._lock:
            keys = list(self._asked)
            self._asked.clear()
            self._cancelled.clear()
        for key in keys:
            self._servers.cancel(key)

    def close(self) -> None:
        """Close the connections to the servers."""
        self._servers.close()

    def _go_on(self, key: int, phase: bytes | None) -> None:
        with self._lock:
            found = self._asked.get(key)
        if found is None:  # the engine has died meanwhile
            return
        request, request_id = found
        sampling = msgspec.structs.replace(request.sampling, context_phase_params=phase)
        failure: Exception | None = None
        try:
            self._engine.submit(msgspec.structs.replace(request, sampling=sampling), request_id=request_id)
        except Exception as exc:
            failure = exc
        with self._lock:  # not before: a cancel that comes first would be of a key that the engine does not know
            self._asked.pop(key, None)
            is_cancelled = key in self._cancelled
            self._cancelled.discard(key)
        if failure is not None:
            self._on_failure(key, failure)
        elif is_cancelled:
            self._engine.cancel(key)
