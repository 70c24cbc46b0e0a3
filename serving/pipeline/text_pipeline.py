# SPDX-License-Identifier: Apache-2.0
"""The whole ensemble in one process: tokenizer, engine step and detokenizer, wired as Triton's own ensemble wires them.

A response passes one model instead of three, and this model knows its client: a request is cancelled in any step, also
before its first token.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ensemble_configs.render.release_file import load_release
from ensemble_configs.render.tensors import BLS_INPUTS, CLIENT_INPUTS, PROMPT_TENSORS, Tensor
from serving.engine_process.engine_sources import EngineSource
from serving.pipeline.generation import GenerationService
from serving.pipeline.long_prompts import LongPrompt, LongPrompts
from serving.pipeline.prompt_prefix import prefix_of
from serving.pipeline.prompt_step import PromptStep
from serving.pipeline.reply_tensors import text_tensors
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.running_request import Reply
from serving.pipeline.text_step import add_chunk, beam_texts
from serving.requests.stream_state import StreamState
from serving.requests.tensor_sink import Tensors, TensorSink
from serving.telemetry.request_metrics import RequestMetrics
from serving.text.detokenization import StreamText, TextDecoder
from trireme.base.errors import ServingError, Unavailable

_CLIENT_CHECK_S = 0.12  # a client that has gone is to be noticed within 250 ms


class _TextSink:
    """The sink that turns replies of the engine step into text: the new text, or the whole text so far."""

    def __init__(self, sink: TensorSink, decoder: TextDecoder, *, is_accumulating: bool) -> None:
        self._sink = sink
        self._decoder = decoder
        self._is_accumulating = is_accumulating
        # By stream: of a request with several sequences, each has its own.
        self._texts: dict[int, StreamText] = {}
        self._sent: dict[int, bytearray] = {}  # the text of a stream up to now, where responses accumulate
        self.takes_one = sink.takes_one
        self.fail = sink.fail
        self.is_cancelled = sink.is_cancelled
        self.named_outputs = sink.named_outputs

    def send(self, reply: Reply) -> None:
        state = reply.stream_state
        if state is None:  # the answer to a stop request
            texts = [b""]
        elif reply.beams is not None:
            texts = beam_texts(self._decoder, state, [beam.token_ids for beam in reply.beams])
        else:
            texts = [self._text(state, reply.token_ids)]
        self._sink.send(text_tensors(reply, texts), is_final=reply.is_final)

    def _text(self, state: StreamState, token_ids: list[int]) -> bytes:
        if state.key not in self._texts:
            self._texts[state.key] = StreamText(self._decoder, state.stop_strings)
        new = add_chunk(self._texts[state.key], state, token_ids).encode()
        if not self._is_accumulating:
            return new
        sent = self._sent.setdefault(state.key, bytearray())
        sent += new
        return bytes(sent)


class TextPipeline:
    """The prompt, engine and text steps of one release in one process."""

    def __init__(
        self,
        service: GenerationService,
        prompt_step: PromptStep,
        decoder: TextDecoder,
        *,
        is_accumulating: bool = False,
        tells_kv_events: bool = False,
    ) -> None:
        """Join the steps.

        Args:
            service: engine step.
            prompt_step: prompt step.
            decoder: text decoder of the release.
            is_accumulating: each response of a stream holds the stream's whole text so far, not only the new text.
            tells_kv_events: whether the engine is to know the numbers of prompts' beginnings.
        """
        self._service = service
        self._tells_kv_events = tells_kv_events
        self._prompt_step = prompt_step
        self._decoder = decoder
        self.is_accumulating = is_accumulating
        self._long = LongPrompts()

    @classmethod
    def from_release(
        cls, folder: Path, source: EngineSource, metrics: RequestMetrics, *, is_accumulating: bool = False
    ) -> "TextPipeline":
        """Load the release in a model's version folder, wait for its engine, and warm up.

        Raises:
            ServingError: there is no such release, or it has no engine.
        """
        release = load_release(folder)
        prompt_step = PromptStep.from_spec(release.tokenizer, max_seq_len=release.engine.max_seq_len)
        decoder = TextDecoder.from_spec(release.tokenizer)
        service = GenerationService(release, source, metrics=metrics, client_check_s=_CLIENT_CHECK_S)
        pipeline = cls(
            service,
            prompt_step,
            decoder,
            is_accumulating=is_accumulating,
            tells_kv_events=release.kv_events is not None,
        )
        if release.is_warmed_up:
            pipeline.warm_up()
        return pipeline

    def warm_up(self) -> None:
        """Take a request that no client sent through all steps before the engine; the engine warms up by itself."""
        prompt = self._prompt_step.warm_up()
        if prompt is not None:
            self._service.warm_up(_renamed(prompt, _FROM_PROMPT_TO_ENGINE))

    def start(self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin = NO_ORIGIN) -> None:
        """Take one request and return at once; the responses come through `sink`.

        A request with long text is read later, so its refusal comes through `sink`, too.

        Args:
            tensors: tensors by the names of the ensemble's inputs.
            sink: takes the responses.
            origin: origin of the request.

        Raises:
            ServingError: the request is refused, and `sink` was not called.
        """

        def begin(prompt: Tensors, *, was_taken: bool = True) -> None:
            origin.observer.note_tokenized()
            engine = {**_renamed(tensors, _TO_ENGINE_STEP), **_renamed(prompt, _FROM_PROMPT_TO_ENGINE)}
            text = _TextSink(sink, self._decoder, is_accumulating=self.is_accumulating)
            known = origin._replace(prefix=prefix_of(tensors)) if self._tells_kv_events else origin
            self._service.start(engine, text, known, was_taken=was_taken)

        given = _renamed(tensors, _TO_PROMPT_STEP)
        prepare = partial(self._prompt_step.prepare, given)
        if not self._long.take(given, LongPrompt(prepare, begin, sink, origin)):
            begin(prepare(), was_taken=False)

    @property
    def num_running(self) -> int:
        """Return the number of requests that have not had their last response."""
        return self._long.num_waiting + self._service.num_running  # in this order: one that begins is never in neither

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every new request from now on."""
        self._long.refuse_new(because)
        self._service.refuse_new(because)

    def cancel_all(self, because: ServingError) -> None:
        """End every running request with the error `because`."""
        self._long.cancel_all(because)
        self._service.cancel_all(because)

    def close(self) -> None:
        """Close the connection to the engine; a request that still runs gets no further response."""
        self._long.close()
        self._service.close()


def _names(rows: tuple[Tensor, ...], giver: str, taker: str) -> dict[str, str]:
    pairs = ((row.name_at(giver), row.name_at(taker)) for row in rows)
    return {given: taken for given, taken in pairs if given and taken}


_TO_PROMPT_STEP = _names(CLIENT_INPUTS, "ensemble", "preprocessing")
_TO_ENGINE_STEP = _names(CLIENT_INPUTS, "ensemble", "tensorrt_llm") | {row.bls: row.bls for row in BLS_INPUTS}
_FROM_PROMPT_TO_ENGINE = _names(PROMPT_TENSORS, "preprocessing", "tensorrt_llm")


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> dict[str, npt.NDArray[np.generic]]:
    return {names[name]: array for name, array in tensors.items() if name in names}
