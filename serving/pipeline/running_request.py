# SPDX-License-Identifier: Apache-2.0
"""A request between its arrival and its last reply: it turns the engine's chunks into the contract's replies."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from serving.engines.seam.base import Beam, ExtraOutputs, FinishReason, PerfMetrics, TokenChunk
from serving.engines.seam.packed_array import PackedArray
from serving.requests.engine_request import ResponseOptions
from serving.requests.extra_outputs import merged
from serving.requests.stream_state import StreamContext, StreamState
from serving.telemetry.request_observer import SequenceObserver
from trireme.base.errors import ServingError

_NOTHING_YET = PerfMetrics(0, 0, 0, 0, 0, 0, 0)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A response to a request: the new tokens of a stream, or all tokens at once."""

    token_ids: list[int]  # in a whole response also those of the prompt, unless excluded
    is_final: bool
    num_input_tokens: int | None = None  # None: not asked for, as for every field below
    num_output_tokens: int | None = None  # generated tokens in this reply
    num_cached_tokens: int | None = None  # of the prompt, with the last reply, where the engine tells
    finish_reason: FinishReason | None = None  # with the last reply
    release: int | None = None  # that answers, with the first reply
    generated_ids: list[int] | None = None  # in this reply
    stream_state: StreamState | None = None
    log_probs: list[float] | None = None  # of the generated tokens in this reply
    cum_log_prob: float | None = None  # of all generated tokens up to here
    batch_index: int | None = None  # of the prompt, where a request has several
    sequence_index: int | None = None  # where a prompt has several
    perf: PerfMetrics | None = None  # of all up to this reply
    extras: ExtraOutputs | None = None  # of beams as many as asked for, each with what `token_ids` has of the prompt

    @property
    def beams(self) -> list[Beam] | None:
        """Return the beams of a beam search, with `token_ids` those of the best beam; None: it was no beam search."""
        return None if self.extras is None else self.extras.beams


class ReplySink(Protocol):
    """The receiver of the replies to one request; called by one thread at a time, and never after its last call.

    Attributes:
        takes_one: the request gets one response, so it cannot stream (`decoupled: false`).
    """

    takes_one: bool

    def send(self, reply: Reply) -> None:
        """Send one reply. The last call is a reply with `is_final`, or `fail` where another reply raises."""

    def fail(self, error: ServingError) -> None:
        """Send an error as the last call, instead of a final reply."""

    def is_cancelled(self) -> bool:
        """Return whether no client waits for the replies any more."""

    def named_outputs(self) -> Collection[str]:
        """Return the outputs that the client asked for by name; empty if it named none and takes all outputs."""


@dataclass(slots=True)
class RunningRequest:
    """The state of a request while it runs."""

    sink: ReplySink
    request_id: str  # given by the client; may be empty or used twice
    options: ResponseOptions
    context: StreamContext | None
    is_prompt_echoed: bool
    observer: SequenceObserver
    returns_log_probs: bool = False
    stream_name: str = ""  # given by the server's frontend, which reports by it that the client has left
    is_direct: bool = False  # its replies go past Triton, but for the last
    sequence_index: int = 0  # among those of one prompt; each has a stream of its own
    release: int = 0
    kv_block_tokens: int = 0
    # How a cancelled request fails; None: it ends well, with what it has.
    cancel_error: ServingError | None = None
    is_unread: bool = False  # its client has gone for certain: the server's frontends drop what comes
    is_ending: bool = False  # the engine has been asked to stop it
    num_replies: int = 0
    is_over: bool = False  # the sink has had its last call
    # Triton frees a request with its last response: to ask for its cancellation at that moment crashes the server.
    _sink_lock: threading.Lock = field(default_factory=threading.Lock)
    _is_continued: bool = False  # the tokens that the answer began with elsewhere are in a reply, or held
    _held_ids: list[int] = field(default_factory=list)  # until the end, when not streaming
    _held_log_probs: list[float] = field(default_factory=list)
    _held_extras: ExtraOutputs | None = None
    _context_logits: PackedArray | None = None  # of a stream
    _cum_log_prob: float = 0.0

    @property
    def told(self) -> dict[str, object]:
        """Return the fields of a log line that name this request."""
        return {"request_id": self.request_id, **self.observer.request.told, "is_of_request": True}

    def send(self, reply: Reply) -> None:
        """Hand a reply to the sink; do nothing where the sink has had its last call (the engine died meanwhile)."""
        with self._sink_lock:
            if self.is_over:
                return
            self.is_over = reply.is_final
            self.sink.send(reply)
        self.num_replies += 1

    def fail(self, error: ServingError) -> None:
        """Send an error as the sink's last call, if the sink has had no last call."""
        with self._sink_lock:
            if self.is_over:
                return
            self.is_over = True
            self.sink.fail(error)

    def disown(self) -> None:
        """Leave the sink to the caller; this request never calls it again."""
        with self._sink_lock:
            self.is_over = True

    def is_cancelled(self) -> bool:
        """Return whether no client waits for the replies any more; False once the sink has had its last call."""
        with self._sink_lock:
            return not self.is_over and self.sink.is_cancelled()

    def is_stream(self, key: int) -> bool:
        """Return whether this is a sequence of the request that the ensemble's stream `key` belongs to."""
        return self.context is not None and self.context.key - self.sequence_index == key

    def reply_to(self, chunk: TokenChunk) -> Reply | None:
        """Return the reply that a chunk without an error makes; None: the chunk makes no reply."""
        options, is_final = self.options, chunk.finish_reason is not None
        token_ids, log_probs = chunk.token_ids, chunk.log_probs or []
        self._cum_log_prob += sum(log_probs)
        if options.continued_ids and not self._is_continued:
            self._is_continued = True
            token_ids = [*options.continued_ids, *token_ids]
        if not options.is_streaming:
            self._held_ids += token_ids
            self._held_log_probs += log_probs
            token_ids, log_probs = self._held_ids, self._held_log_probs
            if chunk.extras is not None:
                self._held_extras = merged(self._held_extras, chunk.extras)
            if not is_final:
                return None
        prompt = options.input_ids if self.is_prompt_echoed and not options.is_streaming else []
        extras = self._streamed_extras(chunk, is_final=is_final) if options.is_streaming else self._held_extras
        beams = extras.beams[: options.num_return_sequences] if extras is not None and extras.beams else None
        return Reply(
            token_ids=[*prompt, *token_ids] if prompt else token_ids,
            is_final=is_final,
            num_input_tokens=len(options.input_ids) if options.return_num_input_tokens else None,
            num_output_tokens=_num_tokens(token_ids, beams) if options.return_num_output_tokens else None,
            num_cached_tokens=self._num_cached_tokens(chunk) if is_final and options.return_num_cached_tokens else None,
            finish_reason=chunk.finish_reason if options.return_finish_reason else None,
            release=self.release if options.return_release and not self.num_replies else None,
            generated_ids=token_ids if options.return_token_ids else None,
            stream_state=self._stream_state(is_final, len(prompt)),
            log_probs=log_probs if self.returns_log_probs else None,
            cum_log_prob=self._cum_log_prob if self.returns_log_probs else None,
            perf=self._perf(chunk, has_tokens=bool(token_ids)) if options.return_perf_metrics else None,
            extras=extras if beams is None else _with_beams(extras, beams, prompt),
        )

    def _streamed_extras(self, chunk: TokenChunk, *, is_final: bool) -> ExtraOutputs | None:
        """Return a chunk's extra outputs, with the logits of the prompt in the first reply and, once more, in the last.

        Upstream sends these logits in each reply, and its client prints those of the last.
        """
        extras = chunk.extras
        if extras is not None and extras.context_logits is not None:
            self._context_logits = extras.context_logits
        elif is_final and self._context_logits is not None:
            extras = msgspec.structs.replace(extras or ExtraOutputs(), context_logits=self._context_logits)
        return extras

    def _perf(self, chunk: TokenChunk, *, has_tokens: bool) -> PerfMetrics | None:
        perf = chunk.perf
        if perf is None and not has_tokens and not self.num_replies:
            perf = _NOTHING_YET  # it was stopped before it began, and its client looks at each output
        # The engine sees a request only when its step is over, which may take a while.
        return None if perf is None else msgspec.structs.replace(perf, arrival_time_ns=self.observer.arrival_ns)

    def _num_cached_tokens(self, chunk: TokenChunk) -> int | None:
        cached = None if chunk.perf is None else chunk.perf.cached_tokens(self.kv_block_tokens)
        # TensorRT-LLM counts a block that is found in part as one.
        return None if cached is None else min(cached, len(self.options.input_ids))

    def _stream_state(self, is_final: bool, num_prompt_tokens: int) -> StreamState | None:
        if self.context is None:
            return None
        return StreamState(
            key=self.context.key,
            is_final=is_final,
            stop_strings=self.context.stop_strings if self.num_replies == 0 else (),
            num_prompt_tokens=num_prompt_tokens,
        )


def _num_tokens(token_ids: list[int], beams: list[Beam] | None) -> int:
    return len(token_ids) if beams is None else sum(len(beam.token_ids) for beam in beams)


def _with_beams(extras: ExtraOutputs | None, beams: list[Beam], prompt: list[int]) -> ExtraOutputs:
    """Return the beams of a reply, behind the prompt where the prompt is echoed."""
    assert extras is not None, "the beams are from there"
    behind = [msgspec.structs.replace(beam, token_ids=[*prompt, *beam.token_ids]) if prompt else beam for beam in beams]
    return msgspec.structs.replace(extras, beams=behind)
