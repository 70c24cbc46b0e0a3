# SPDX-License-Identifier: Apache-2.0
"""The last step of the ensemble, without Triton: the text of every stream, kept between its chunks.

Chunks come in order and from one thread. A stream is known by the name that `preprocessing` gave it; tokens without a name
(a caller of `postprocessing` alone) are decoded by themselves, as upstream does.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ensemble_configs.release import load_release
from serving.detokenization import StreamText, TextDecoder
from serving.stream_state import StreamState, state_decoder

_CANCEL_CHECK_S = 0.04  # asking Triton costs a message to the server; not for every chunk


@dataclass(slots=True)
class _Stream:
    text: StreamText
    next_check_s: float
    is_stopping: bool = False


class TextStep:
    """The streams of one release."""

    def __init__(self, decoder: TextDecoder, *, stop_stream: Callable[[int], None]) -> None:
        """Args: `stop_stream` tells the engine step that nobody reads a stream any more."""
        self._decoder = decoder
        self._stop_stream = stop_stream
        self._streams: dict[int, _Stream] = {}

    @classmethod
    def from_release(cls, folder: Path, *, stop_stream: Callable[[int], None]) -> "TextStep":
        """Raises: SpecError: no such release, or no usable tokenizer in it."""
        return cls(TextDecoder.from_spec(load_release(folder).tokenizer), stop_stream=stop_stream)

    @property
    def num_streams(self) -> int:
        """Streams whose last chunk has not come."""
        return len(self._streams)

    def texts(self, tensors: Mapping[str, npt.NDArray[np.generic]], *, is_cancelled: Callable[[], bool]) -> npt.NDArray[np.generic]:
        """The new text of each beam: ``[beams]`` bytes objects, UTF-8.

        Args:
            tensors: ``TOKENS_BATCH [1, beams, n]``, ``SEQUENCE_LENGTH [1, beams]``, perhaps ``STREAM_STATE [1, n]``.
            is_cancelled: whether the client of this stream has gone.
        """
        beams = [
            tokens[:length].tolist()
            for tokens, length in zip(tensors["TOKENS_BATCH"][0], tensors["SEQUENCE_LENGTH"][0], strict=True)
        ]
        packed = tensors.get("STREAM_STATE")
        if packed is None:
            texts = [self._decoder.decode(ids) for ids in beams]
        else:
            texts = [self._stream_text(state_decoder.decode(packed.tobytes()), beams[0], is_cancelled)]
        return np.array([text.encode() for text in texts], dtype=np.object_)

    def _stream_text(self, state: StreamState, token_ids: list[int], is_cancelled: Callable[[], bool]) -> str:
        for key in state.lost_keys:
            self._streams.pop(key, None)
        stream = self._streams.get(state.key)
        if stream is None:
            stream = _Stream(StreamText(self._decoder, state.stop_strings), time.monotonic() + _CANCEL_CHECK_S)
            self._streams[state.key] = stream
        prompt = stream.text.push_prompt(token_ids[: state.num_prompt_tokens]) if state.num_prompt_tokens else ""
        text = prompt + stream.text.push(token_ids[state.num_prompt_tokens :])
        if state.is_final:
            del self._streams[state.key]
            return text + stream.text.finish()
        self._check_cancelled(state.key, stream, is_cancelled)
        return text

    def _check_cancelled(self, key: int, stream: _Stream, is_cancelled: Callable[[], bool]) -> None:
        now_s = time.monotonic()
        if stream.is_stopping or now_s < stream.next_check_s:
            return
        stream.next_check_s = now_s + _CANCEL_CHECK_S
        if is_cancelled():
            stream.is_stopping = True
            self._stop_stream(key)
