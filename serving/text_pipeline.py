# SPDX-License-Identifier: Apache-2.0
"""Text in, text out, in one process: tokenizer, engine step and detokenizer, wired as Triton's own ensemble wires them.

A response passes one model instead of three, and its client is this model's own: a request is cancelled wherever it
is, also before its first token.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ensemble_configs.errors import ServingError
from ensemble_configs.tensors import CLIENT_INPUTS, PROMPT_TENSORS, Tensor
from serving.detokenization import StreamText, TextDecoder
from serving.generation import GenerationService
from serving.prompt_step import PromptStep
from serving.reply_tensors import text_tensors
from serving.running_request import Reply
from serving.text_step import add_chunk, beam_texts

Tensors = Mapping[str, npt.NDArray[np.generic]]


class TensorSink(Protocol):
    """Where the responses to one request go."""

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """One response, by the names of the ensemble's outputs."""

    def fail(self, error: ServingError) -> None:
        """The last call, instead of a final response."""

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""


class _TextSink:
    """Replies of the engine step, as text."""

    def __init__(self, sink: TensorSink, decoder: TextDecoder) -> None:
        self._sink = sink
        self._decoder = decoder
        self._texts: dict[int, StreamText] = {}  # of a request with several sequences, each has its own
        self.fail = sink.fail
        self.is_cancelled = sink.is_cancelled

    def send(self, reply: Reply) -> None:
        state = reply.stream_state
        if state is None:  # the answer to a stop request
            texts = [""]
        elif reply.beams is not None:
            texts = beam_texts(self._decoder, state, [beam.token_ids for beam in reply.beams])
        else:
            if state.key not in self._texts:
                self._texts[state.key] = StreamText(self._decoder, state.stop_strings)
            texts = [add_chunk(self._texts[state.key], state, reply.token_ids)]
        self._sink.send(text_tensors(reply, texts), is_final=reply.is_final)


class TextPipeline:
    """The steps of one release behind one name."""

    def __init__(self, service: GenerationService, prompt_step: PromptStep, decoder: TextDecoder) -> None:
        self._service = service
        self._prompt_step = prompt_step
        self._decoder = decoder

    def start(self, tensors: Tensors, sink: TensorSink, *, request_id: str = "") -> None:
        """Take one request by the names of the ensemble's inputs; returns at once, the responses come through `sink`.

        Raises:
            ServingError: the request is refused, and `sink` was not called.
        """
        prompt = self._prompt_step.prepare(_renamed(tensors, _TO_PROMPT_STEP))
        engine = {**_renamed(tensors, _TO_ENGINE_STEP), **_renamed(prompt, _FROM_PROMPT_TO_ENGINE)}
        self._service.start(engine, _TextSink(sink, self._decoder), request_id=request_id)


def _names(rows: tuple[Tensor, ...], giver: str, taker: str) -> dict[str, str]:
    pairs = ((row.name_at(giver), row.name_at(taker)) for row in rows)
    return {given: taken for given, taken in pairs if given and taken}


_TO_PROMPT_STEP = _names(CLIENT_INPUTS, "ensemble", "preprocessing")
_TO_ENGINE_STEP = _names(CLIENT_INPUTS, "ensemble", "tensorrt_llm")
_FROM_PROMPT_TO_ENGINE = _names(PROMPT_TENSORS, "preprocessing", "tensorrt_llm")


def _renamed(tensors: Tensors, names: Mapping[str, str]) -> dict[str, npt.NDArray[np.generic]]:
    return {names[name]: array for name, array in tensors.items() if name in names}
