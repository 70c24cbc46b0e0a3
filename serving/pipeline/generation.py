# SPDX-License-Identifier: Apache-2.0
"""The engine step of the ensemble, without Triton: requests in, replies out, each request owned here from start to end.

Only one response worker replies to a running request (`serving.pipeline.response_workers`), so a reply can never
overtake another or follow the last one. To end a request, a caller asks the engine, and the engine's answer ends the
request. A dead engine gives no answer: then the reader of the engine's steps fails the requests that are left.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.disaggregation.prefill_servers import PrefillServers
from serving.disaggregation.prefilled_engine import PrefilledEngine, refuse_handed_over
from serving.engine_process.engine_client import EngineClient
from serving.engine_process.engine_messages import Step
from serving.engine_process.engine_sources import EngineSource
from serving.engines.seam.base import EngineInfo, EngineStats, GenerationRequest, TokenChunk
from serving.pipeline.chunk_replies import ChunkReplies, note
from serving.pipeline.direct.direct_replies import DIRECT_REPLIES
from serving.pipeline.late_refusal import error_for_client
from serving.pipeline.left_clients import LeftClients
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.request_sequences import Generation, RequestSequences
from serving.pipeline.response_checks import check_response
from serving.pipeline.response_workers import ResponseWorkers
from serving.pipeline.running_request import Reply, ReplySink, RunningRequest
from serving.pipeline.sequence_group import SequenceGroup
from serving.process.left_streams import LEFT_STREAMS
from serving.process.stub_warm_up import import_for_first_request
from serving.requests.prompt_batch import Row
from serving.requests.request_parameters import with_timeout
from serving.requests.stream_state import StreamCheck, StreamContext
from serving.telemetry.request_metrics import RequestMetrics
from serving.text.detokenization import TextDecoder
from trireme.base.errors import RequestError, ServingError, Unavailable

_log = logging.getLogger("trireme.generation")

_METRICS_S = 0.25


class GenerationService:
    """The engine step of one release: it runs requests on the release's engine."""

    def __init__(
        self,
        release: ReleaseSpec,
        source: EngineSource,
        *,
        metrics: RequestMetrics,
        on_stats: Callable[[EngineStats], None] = lambda _: None,
        find_abandoned: Callable[[StreamCheck], Iterable[int]] | None = None,
        client_check_s: float = 0.04,
    ) -> None:
        """Start the engine, or connect to it, and return when the engine is ready.

        Args:
            release: the release to serve.
            source: the process or connection that the engine comes from.
            metrics: counts and times of requests.
            on_stats: called after every engine step that reports its figures.
            find_abandoned: asks postprocessing which of the streams with a context nobody reads. None: there is no step
                behind this step, and each sink knows about its own client.
            client_check_s: seconds between two checks of each sink for its client; a check costs a message to the
                server and back.

        Raises:
            ServingError: the engine cannot be loaded.
        """
        if release.is_warmed_up:
            import_for_first_request()
        self._release = release
        self._text = text = TextDecoder.from_spec(release.tokenizer)
        self._on_stats = on_stats
        self._running: dict[int, RunningRequest] = {}
        self._lock = threading.Lock()  # of _running and _refusal: both ends of a request's life
        self._refusal: Unavailable | None = None
        self._workers = ResponseWorkers(
            self._take_chunk, delay_s=self._chunk_delay_s, is_direct=self._is_direct, flush=DIRECT_REPLIES.flush
        )
        self._engine = EngineClient(source, on_steps=self._take_steps, on_death=self._fail_all)
        self._prefilled: PrefilledEngine | None = None
        if release.prefill_servers is not None:
            note = metrics.note_remote_prefill
            servers = PrefillServers(release.prefill_servers, release=release.release, note=note)
            self._prefilled = PrefilledEngine(self._engine, servers, self._fail_late)
        self._left = LeftClients(
            self._running_now, self._cancel, drop=self._engine.cancel, find_abandoned=find_abandoned
        )
        self._replies = ChunkReplies(self._left.forget_text)
        self._asked = RequestSequences(release, text, self._engine.start(), metrics)
        self._is_closed = threading.Event()
        self._end_listening = LEFT_STREAMS.listen(self._left.cancel_departed)
        for watch, period_s in {**self._left.watches(client_check_s), metrics.flush: _METRICS_S}.items():
            args = (watch, period_s, self._is_closed)
            threading.Thread(target=_repeat_until, args=args, name=watch.__name__, daemon=True).start()

    def start(
        self,
        tensors: Mapping[str, npt.NDArray[np.generic]],
        sink: ReplySink,
        origin: RequestOrigin = NO_ORIGIN,
        *,
        is_context_only: bool = False,
        was_taken: bool = False,
    ) -> None:
        """Take one request and return at once; the replies come through `sink`.

        Args:
            tensors: tensors by the names of `tensorrt_llm`'s inputs; a row for each prompt.
            sink: takes the replies.
            origin: origin of the request; its timeout is a deadline where there is admission, without effect elsewhere,
                as upstream has it.
            is_context_only: prefill and hand over only, for disaggregated serving.
            was_taken: the request was accepted before, so it is no new request that may be refused.

        Raises:
            ServingError: the request is refused, and `sink` was not called.
        """
        if self._prefilled is not None:
            refuse_handed_over(tensors)
        if self.info.is_admitting:
            tensors = with_timeout(tensors, origin.timeout_us)
        prompts = self._asked.prompts(tensors, is_context_only=is_context_only)
        origin.observer.note_read(prompts[0].request.scheduling, prompts[0].context)
        if prompts[0].request.options.stop:
            for prompt in prompts:
                self._stop(origin.request_id, prompt.context)
            sink.send(Reply(token_ids=[], is_final=True))
            return
        check_response((prompt.request.options for prompt in prompts), sink, self.info)
        sequences, group = self._asked.sequences(prompts, sink, origin, on_failure=self._left.orphan)
        with self._lock:
            refusal = None if was_taken else self._refusal
            if refusal is None:
                self._running.update((request.key, running) for request, running in sequences)
        if refusal is not None:
            for _, running in sequences:
                running.observer.note_refusal()
            raise refusal
        self._submit_all(sequences, group, tensors)
        if origin.stream_name in LEFT_STREAMS:
            self._left.cancel_departed()

    def warm_up(self, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Read a request that no client sent, without the engine, so that a client's first request takes no longer."""
        with contextlib.suppress(RequestError):  # the engine is too small for it
            for prompt in self._asked.prompts(tensors):
                self._text.decode(prompt.request.options.input_ids)

    @property
    def info(self) -> EngineInfo:
        """Return the description that the engine gives of itself."""
        return self._engine.info

    @property
    def is_engine_up(self) -> bool:
        """Return whether the engine takes requests; False while a dead engine is being started again."""
        return self._engine.is_up

    @property
    def num_running(self) -> int:
        """Return the number of requests that have not had their last reply."""
        return len(self._running)

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every new request from now on; every request that was not refused is counted as running."""
        with self._lock:
            self._refusal = because

    def cancel_all(self, because: ServingError) -> None:
        """End every running request with the error `because`."""
        self._cancel(self._running_now(), because)

    def close(self) -> None:
        """Stop the engine; a request that still runs gets no further reply."""
        self._is_closed.set()
        self._end_listening()
        if self._prefilled is not None:
            self._prefilled.close()
        self._engine.close()
        self._workers.close()

    def _submit_all(self, sequences: list[Generation], group: SequenceGroup | None, tensors: Row) -> None:
        if group is None and self._prefilled is not None:
            [(request, running)] = sequences
            if self._prefilled.submit(request, tensors, request_id=running.request_id):
                if running.is_ending:  # its end was asked for before the prefill
                    self._prefilled.cancel(request.key)
                return
        try:
            for request, running in sequences:
                self._submit(request, running)
        except Exception as exc:
            if group is None:
                raise
            for request, running in sequences:
                if self._pop(request.key) is not None:
                    running.observer.note_refusal()
            message, facts = "a request could not be handed to the engine", {"is_of_request": True}
            error = error_for_client(exc, message, log=_log, facts=facts)
            group.fail(error)  # not raised: another sequence may have replied

    def _submit(self, request: GenerationRequest, running: RunningRequest) -> None:
        try:
            self._engine.submit(request, request_id=running.request_id)
        except Exception:
            if self._pop(request.key) is not None:  # else the engine's death has already been told to the sink
                running.observer.note_refusal()
                running.disown()
                raise
        if running.is_ending:  # its end was asked for before the engine knew the request
            self._engine.cancel(request.key)

    def _stop(self, request_id: str, context: StreamContext | None) -> None:
        """End the running request with this request id, with the tokens it has: the contract's stop request.

        The running request may have come through any model: upstream's clients send the stop to `tensorrt_llm`.
        """
        if not request_id and context is None:
            raise RequestError("a stop request needs the request id of the request to stop", field="request_id")
        self._cancel(
            [
                (key, running)
                for key, running in self._running_now()
                if (running.is_stream(context.key) if context else running.request_id == request_id)
            ],
            None,
        )
        if context is None:
            self._engine.stop_elsewhere(request_id)

    def _cancel(self, running: Iterable[tuple[int, RunningRequest]], error: ServingError | None) -> None:
        for key, request in running:
            request.cancel_error = error
            request.is_ending = True
            if self._prefilled is None or not self._prefilled.cancel(key):
                self._engine.cancel(key)

    def _pop(self, key: int) -> RunningRequest | None:
        with self._lock:
            return self._running.pop(key, None)

    def _running_now(self) -> list[tuple[int, RunningRequest]]:
        with self._lock:
            return list(self._running.items())

    # On the reader's thread. It sends the engine nothing, for the engine may be waiting for it to read.

    def _take_steps(self, steps: list[Step]) -> None:
        self._workers.put(chunk for step in steps for chunk in step.chunks)
        for step in reversed(steps):
            if step.stats is not None:
                self._tell_stats(step.stats)
                return

    # On the thread of a response worker, or of the reader once the engine is dead.

    def _chunk_delay_s(self) -> float:
        """Return the seconds that a chunk may wait, more with more streams.

        Few streams get their tokens promptly, and many streams do not spend the machine on responses.
        """
        limits = self._release.responses
        longest_s = limits.max_chunk_delay_ms / 1000
        if not limits.target_chunks_per_s:
            return longest_s
        return min(longest_s, max(1, len(self._running)) / limits.target_chunks_per_s)

    def _is_direct(self, key: int) -> bool:
        running = self._running.get(key)
        return running is not None and running.is_direct

    def _take_chunk(self, chunk: TokenChunk) -> None:
        running = self._running.get(chunk.key)
        if running is None:
            return
        if chunk.finish_reason is not None or chunk.error is not None:
            self._pop(chunk.key)
        note(chunk, running)
        try:
            self._replies.send(chunk, running)
        except Exception:  # one client's broken pipe must not end the response worker of many
            _log.exception("a reply could not be sent; its request is ended", extra=running.told)
            if self._pop(chunk.key) is not None:
                self._left.orphan([chunk.key])
            self._replies.give_up(running)

    def _fail_late(self, key: int, exc: Exception) -> None:
        """End a request that cannot be handed to the engine behind its prefill; its caller has returned."""
        running = self._pop(key)
        if running is not None:  # else the engine's death has already been told to the sink
            running.observer.note_refusal()
            message = "a request could not be handed to the engine behind its prefill"
            self._replies.fail_if_possible(running, error_for_client(exc, message, log=_log, facts=running.told))

    def _fail_all(self, error: Unavailable) -> None:
        if self._prefilled is not None:
            self._prefilled.forget_all()
        with self._lock:
            lost = list(self._running.values())
            self._running.clear()
        self._workers.clear()
        for running in lost:
            running.is_ending = True
            note(TokenChunk(0, [], error=str(error)), running)
            self._replies.fail_if_possible(running, error)
        idle = EngineStats(
            num_running=0,
            num_waiting=0,
            num_used_kv_blocks=0,
            num_kv_blocks=self.info.num_kv_blocks,
            num_steps=0,
            is_up=False,
        )
        self._tell_stats(idle)

    def _tell_stats(self, stats: EngineStats) -> None:
        try:
            self._on_stats(stats)
        except Exception:  # a gauge that cannot be set must not end the reader of all
            _log.exception("the engine's stats could not be shown")


def _repeat_until(work: Callable[[], None], period_s: float, is_over: threading.Event) -> None:
    while not is_over.wait(period_s):
        try:
            work()
        except Exception:  # one failure must not end the watch over all that follow
            _log.exception("%s failed; it is tried again", work.__name__)
