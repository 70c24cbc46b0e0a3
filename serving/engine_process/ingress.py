# SPDX-License-Identifier: Apache-2.0
"""The ingress beside the engine: a thread that takes callers' messages, and answers at once those that need no step.

An engine belongs to the thread that steps it. Here requests join the queue or are refused, requests with a passed
deadline get their error, and cancelled requests leave the queue; only the stepping thread stops running requests.
"""

import threading
from types import TracebackType

from serving.admission.admitting_engine import AdmittingEngine
from serving.engine_process.connections import HEARTBEAT_S, EngineConnections
from serving.engines.seam.base import Engine, FinishReason, GenerationRequest, TokenChunk
from trireme.base.errors import RequestError, Unavailable

_ENDS_S = 5.0


def begin(engine: Engine, request: GenerationRequest) -> TokenChunk | None:
    """Add a request to the engine, and return its last chunk if the engine refuses it."""
    try:
        engine.add(request)
    except (RequestError, Unavailable) as exc:
        return TokenChunk(request.key, [], error=str(exc))
    return None


def stop(engine: Engine, key: int) -> TokenChunk:
    """Stop a request, and return its last chunk."""
    perf = engine.perf_of(key)
    engine.cancel(key)
    return TokenChunk(key, [], FinishReason.CANCELLED, perf=perf)


class Ingress:
    """The ingress thread as a context manager: the thread runs inside the context."""

    def __init__(self, engine: AdmittingEngine, connections: EngineConnections) -> None:
        self._engine = engine
        self._connections = connections
        self._news = threading.Condition()  # of the three fields below
        self._has_news = False
        self._to_stop: list[int] = []
        self._failure: BaseException | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="ingress", daemon=True)

    def __enter__(self) -> "Ingress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        self._connections.wake()
        self._thread.join(_ENDS_S)  # not for ever: it may be sending to a caller that does not read

    def hears(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for messages, and return whether some came since the last call.

        Raises:
            ChannelClosed: the owner is gone.
        """
        with self._news:
            if timeout_s and not self._has_news:
                self._news.wait(timeout_s)
            if self._failure is not None:
                raise self._failure
            found, self._has_news = self._has_news, False
            return found

    def keys_to_stop(self) -> list[int]:
        """Return the keys of requests that the stepping thread is to stop, each once."""
        with self._news:
            keys, self._to_stop = self._to_stop, []
            return keys

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._meet(self._connections.receive(timeout_s=min(HEARTBEAT_S, self._engine.next_late_in_s())))
        except BaseException as exc:  # without this thread no message is read, so the stepping thread ends, too
            self._tell_stepper([], exc)

    def _meet(self, commands: list[GenerationRequest | int]) -> None:
        ends: list[TokenChunk] = []
        to_stop: list[int] = []
        for command in commands:
            if not isinstance(command, int):
                if (refusal := begin(self._engine, command)) is not None:
                    ends.append(refusal)
            elif self._engine.leave(command):
                ends.append(TokenChunk(command, [], FinishReason.CANCELLED))
            else:
                to_stop.append(command)
        ends += self._engine.refuse_late()
        self._connections.send(ends, None)
        if commands:
            self._tell_stepper(to_stop, None)

    def _tell_stepper(self, to_stop: list[int], failure: BaseException | None) -> None:
        with self._news:
            self._has_news = True
            self._to_stop += to_stop
            self._failure = failure
            self._news.notify()
