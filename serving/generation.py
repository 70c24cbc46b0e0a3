# SPDX-License-Identifier: Apache-2.0
"""The engine step of the ensemble, without Triton: requests in, replies out, each request owned here from start to end.

Only the engine client's reader thread replies to a running request, so a reply can never overtake another or follow the
last one. Whoever wants a request to end asks the engine, and the engine's answer ends it.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ensemble_configs.deployment import ReleaseSpec
from ensemble_configs.errors import RequestCancelled, RequestError, ServerError, ServingError, Unavailable
from serving.chunk_gather import ChunkGather
from serving.detokenization import TextDecoder
from serving.engine_client import EngineClient
from serving.engine_messages import Step
from serving.engines.base import EngineInfo, EngineStats, FinishReason, GenerationRequest, TokenChunk
from serving.requests import DecodedRequest, RequestDecoder
from serving.running_request import Reply, ReplySink, RunningRequest
from serving.stop_strings import check_stop_strings
from serving.stream_state import Census, StreamContext, context_decoder

_log = logging.getLogger("trireme.generation")

# A direct caller's departure is Triton's to tell, a message to the server for each request; an ensemble's takes a census.
_CANCEL_CHECK_S = 0.04
_CENSUS_S = 0.08


_CLIENT_GONE = RequestCancelled("the client went away or cancelled the request")


class GenerationService:
    """Runs the requests of one release on its engine."""

    def __init__(
        self,
        release: ReleaseSpec,
        release_dir: Path,
        *,
        on_stats: Callable[[EngineStats], None],
        take_census: Callable[[Census], Iterable[int]],
    ) -> None:
        """Load the engine; returns when it is ready.

        Args:
            on_stats: called after every step.
            take_census: which of the ensemble's streams nobody reads, told by postprocessing.

        Raises:
            ServingError: it cannot be loaded.
        """
        self._release = release
        self._on_stats = on_stats
        self._take_census = take_census
        self._text = TextDecoder.from_spec(release.tokenizer)
        self._running: dict[int, RunningRequest] = {}
        self._lock = threading.Lock()  # of _running: both ends of a request's life
        self._keys = itertools.count(1)
        self._lost_streams: list[int] = []
        self._refusal: Unavailable | None = None
        self._gather = ChunkGather(max_delay_s=release.responses.max_chunk_delay_ms / 1000)
        self._engine = EngineClient(release_dir, on_steps=self._take_steps, on_death=self._fail_all)
        self.info: EngineInfo = self._engine.start()
        self._decoder = RequestDecoder(self.info)
        for watch, period_s in ((self._cancel_abandoned, _CANCEL_CHECK_S), (self._cancel_unread, _CENSUS_S)):
            threading.Thread(target=_repeat, args=(watch, period_s), name=watch.__name__, daemon=True).start()

    def start(self, tensors: Mapping[str, npt.NDArray[np.generic]], sink: ReplySink, *, request_id: str = "") -> None:
        """Take one request; returns at once, the replies come through `sink`.

        Raises:
            ServingError: the request is refused, and `sink` was not called.
        """
        decoded = self._decoder.decode(tensors)
        context = _context(decoded)
        if decoded.options.stop:
            self._stop(request_id, context)
            sink.send(Reply(token_ids=[], is_final=True))
            return
        request = self._request(decoded, context)
        excluded = decoded.options.exclude_input_in_output
        if excluded is None:
            excluded = self._release.responses.exclude_input_in_output
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._running[request.key] = RunningRequest(sink, request_id, decoded.options, context, not excluded)
        try:
            self._engine.submit(request)
        except Unavailable:
            if self._pop(request.key) is not None:  # else the engine's death has already been told to the sink
                raise

    @property
    def num_running(self) -> int:
        """Requests that have not had their last reply."""
        return len(self._running)

    def refuse_new(self, because: Unavailable) -> None:
        """From now on every new request is refused; every one that was not is counted as running."""
        with self._lock:
            self._refusal = because

    def cancel_all(self, because: ServingError) -> None:
        """End every running request; each fails with `because`."""
        self._cancel(list(self._running.items()), because)

    def close(self) -> None:
        """Stop the engine; what still runs gets no further reply."""
        self._engine.close()

    def _request(self, decoded: DecodedRequest, context: StreamContext | None) -> GenerationRequest:
        options = decoded.options
        strings = context.stop_strings if context else self._stop_strings(options.stop_words_list)
        return GenerationRequest(
            key=next(self._keys), input_ids=options.input_ids, sampling=decoded.sampling, stop_strings=strings
        )

    def _stop_strings(self, words: list[list[int]] | None) -> tuple[str, ...]:
        """Upstream's ``[2, n]`` token ids as the text they stand for: it matches however the model tokenizes it."""
        if words is None:
            return ()
        ids, offsets = words[0], [offset for offset in words[1] if offset > 0]
        return check_stop_strings(self._text.decode(ids[start:end]) for start, end in itertools.pairwise([0, *offsets]))

    def _stop(self, request_id: str, context: StreamContext | None) -> None:
        """The contract's stop request: it ends the running request of the same id with what it has."""
        if not request_id and context is None:
            raise RequestError("a stop request needs the request id of the request to stop", field="request_id")
        named = [
            (key, running)
            for key, running in list(self._running.items())
            if (running.context is not None and running.context.key == context.key if context else running.request_id == request_id)
        ]
        self._cancel(named, None)

    def _cancel(self, running: Iterable[tuple[int, RunningRequest]], error: ServingError | None) -> None:
        for key, request in running:
            request.cancel_error = error
            request.is_ending = True
            self._engine.cancel(key)

    def _pop(self, key: int) -> RunningRequest | None:
        with self._lock:
            return self._running.pop(key, None)

    # On the reader's thread.

    def _take_steps(self, steps: list[Step]) -> None:
        for chunk in self._gather.due(chunk for step in steps for chunk in step.chunks):
            running = self._running.get(chunk.key)
            if running is not None:
                self._take_chunk(chunk, running)
        self._on_stats(steps[-1].stats)

    def _take_chunk(self, chunk: TokenChunk, running: RunningRequest) -> None:
        is_last = chunk.finish_reason is not None or chunk.error is not None
        if is_last:
            self._pop(chunk.key)
        try:
            if chunk.error is not None:
                self._fail(running, EngineRefusal(chunk.error))
            elif chunk.finish_reason is FinishReason.CANCELLED and running.cancel_error is not None:
                self._fail(running, running.cancel_error)
            else:
                reply = running.reply_to(chunk)
                if reply is not None:
                    running.sink.send(reply)
                    running.num_replies += 1
        except Exception:  # one client's broken pipe must not end the reader of all
            _log.exception("a reply could not be sent; its request is ended")
            if running.context is not None:
                self._lost_streams.append(running.context.key)
            if self._pop(chunk.key) is not None:
                self._engine.cancel(chunk.key)

    def _fail(self, running: RunningRequest, error: ServingError) -> None:
        if running.context is not None:
            self._lost_streams.append(running.context.key)
        running.sink.fail(error)

    def _fail_all(self, error: Unavailable) -> None:
        with self._lock:
            lost = list(self._running.values())
            self._running.clear()
        self._gather.clear()
        for running in lost:
            self._fail(running, error)

    # On threads of their own: whose client has gone?

    def _cancel_abandoned(self) -> None:
        direct = [(key, running) for key, running in list(self._running.items()) if running.context is None]
        self._cancel([item for item in direct if not item[1].is_ending and item[1].sink.is_cancelled()], _CLIENT_GONE)

    def _cancel_unread(self) -> None:
        streams = {
            running.context.key: (key, running)
            for key, running in list(self._running.items())
            if running.context is not None and running.num_replies and not running.is_ending
        }
        lost_keys = tuple(self._lost_streams)
        if streams or lost_keys:
            num_chunks = {key: running.num_replies for key, (_, running) in streams.items()}
            unread = self._take_census(Census(num_chunks, lost_keys))
            del self._lost_streams[: len(lost_keys)]
            self._cancel([streams[key] for key in unread], _CLIENT_GONE)


class EngineRefusal(ServerError):
    """An error that the engine's process wrote; its text already has its token."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.args = (text,)
        self.code = text[1:].partition(" ")[0].rstrip("]")


def _repeat(work: Callable[[], None], period_s: float) -> None:
    while True:
        time.sleep(period_s)
        try:
            work()
        except Exception:  # one failure must not end the watch over all that follow
            _log.exception("%s failed; it is tried again", work.__name__)


def _context(decoded: DecodedRequest) -> StreamContext | None:
    packed = decoded.options.stream_context
    if packed is None:
        return None
    try:
        return context_decoder.decode(packed)
    except msgspec.DecodeError as exc:
        raise RequestError("stream_context is for the ensemble's own use; leave it out", field="stream_context") from exc
