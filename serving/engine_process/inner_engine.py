# SPDX-License-Identifier: Apache-2.0
"""The inner engine, in a process of its own below the engine's process: its memory is free for certain at its end."""

import logging
import threading
from collections.abc import Iterator

from serving.engine_process.engine_messages import Broken, Cancel, Channel, ChannelClosed, Step, Submit
from serving.engine_process.engine_sources import EngineSource
from serving.engines.seam.base import EngineInfo, EngineStats, GenerationRequest, TokenChunk
from trireme.base.errors import ServingError, Unavailable

_log = logging.getLogger("trireme.on_demand")


class Loading:
    """The start of an inner process on a thread of its own: to load a model takes seconds or minutes."""

    def __init__(self, source: EngineSource) -> None:
        self._source = source
        self._result: InnerEngine | None = None
        self._error: ServingError | None = None
        self._thread = threading.Thread(target=self._load, name="load-engine", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            channel, info = self._source.connect()
        except ServingError as exc:
            self._error = exc
        except Exception as exc:  # requests that wait for the engine need the error
            _log.exception("the engine could not be loaded")
            self._error = Unavailable(f"the engine could not be loaded: {exc!r}", reason="engine_not_loaded")
        else:
            self._result = InnerEngine(self._source, channel, info)

    def is_done(self, *, timeout_s: float) -> bool:
        """Wait up to `timeout_s`, and return whether `result` returns at once."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> "InnerEngine":
        """Wait for the loaded engine and return it.

        Raises:
            ServingError: the engine could not be loaded.
        """
        self._thread.join()
        if self._error is not None:
            self._source.discard(ends_itself=False)
            raise self._error
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Stop loading, and end the process."""
        self._source.close()
        self._source.discard(ends_itself=False)
        self._thread.join()
        if self._result is not None:
            self._result.close()


class Ending:
    """The end of an inner process on a thread of its own: to free the memory of many GPUs takes tens of seconds."""

    def __init__(self, engine: "InnerEngine", *, ends_itself: bool) -> None:
        self._thread = threading.Thread(
            target=engine.close, kwargs={"ends_itself": ends_itself}, name="end-engine", daemon=True
        )
        self._thread.start()

    def is_done(self, *, timeout_s: float | None) -> bool:
        """Wait up to `timeout_s` (None: any time), and return whether the memory is free."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def no_stats(info: EngineInfo) -> EngineStats:
    """Return the stats of an engine that is not in memory."""
    return EngineStats(
        num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=info.num_kv_blocks, num_steps=0
    )


class InnerEngine:
    """A loaded engine at the other end of a channel."""

    def __init__(self, source: EngineSource, channel: Channel, info: EngineInfo) -> None:
        self.info = info
        self._source = source
        self._channel = channel
        self._running: set[int] = set()
        self.reason = "engine_died"  # of its end, once it has ended
        self.stats = no_stats(info)

    @property
    def is_busy(self) -> bool:
        """Return whether the engine has requests, or blocks of cancelled requests that are not free yet."""
        return bool(self._running) or self.stats.num_running + self.stats.num_waiting > 0

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            ChannelClosed: the engine has died.
        """
        self._channel.send(Submit(request))
        self._running.add(request.key)

    def cancel(self, key: int) -> None:
        """Stop a request, of which no chunk follows; ignore an unknown key."""
        if key in self._running:
            self._running.discard(key)
            try:
                self._channel.send(Cancel(key))
            except ChannelClosed:
                _log.info("the engine was gone before a request was cancelled")  # `chunks` reports it

    def chunks(self, *, timeout_s: float) -> list[TokenChunk]:
        """Wait up to `timeout_s` for chunks, and return them.

        Raises:
            ChannelClosed: the engine has died.
        """
        return [chunk for message in self._receive(timeout_s) for chunk in self._ours(message)]

    def _receive(self, timeout_s: float) -> list[object]:
        if timeout_s == 0.0:
            return self._channel.receive(is_blocking=False)
        return self._channel.receive(is_blocking=True, timeout_s=timeout_s)

    def _ours(self, message: object) -> Iterator[TokenChunk]:
        if isinstance(message, Broken):
            self.reason = message.reason
            _log.error("engine: %s", message.error)
        if not isinstance(message, Step):
            return
        self.stats = message.stats or self.stats
        for chunk in message.chunks:
            if chunk.key in self._running:
                if chunk.finish_reason is not None or chunk.error is not None:
                    self._running.discard(chunk.key)
                yield chunk

    def lost(self) -> list[int]:
        """Return the keys of the requests that have had no last chunk."""
        return sorted(self._running)

    def close(self, *, ends_itself: bool = True) -> None:
        """End the process, and return when it has ended and its memory is free."""
        self._channel.close()
        self._source.discard(ends_itself=ends_itself)
