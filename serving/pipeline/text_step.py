# SPDX-License-Identifier: Apache-2.0
"""The last step of the ensemble, without Triton: the text of every stream, kept between its chunks.

Chunks come in order and from one thread. A stream is known by the name that `preprocessing` gave it; tokens without a
name (from a caller of `postprocessing` alone) are decoded by themselves, as upstream does.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ensemble_configs.render.release_file import load_release
from serving.process.stub_warm_up import import_for_first_request
from serving.requests.list_sizes import check_list_size
from serving.requests.required_tensors import check_required
from serving.requests.stream_state import StreamCheck, StreamState, unpack_final_states, unpack_state
from serving.text.detokenization import StreamText, TextDecoder
from trireme.base.errors import RequestError

_CANCEL_CHECK_S = 0.04  # a message to the server each time: not for every chunk


@dataclass(slots=True)
class _Stream:
    text: StreamText
    next_check_s: float
    num_chunks: int = 0
    is_abandoned: bool = False


class TextStep:
    """The text step of one release, with the text of its open streams."""

    def __init__(self, decoder: TextDecoder, *, max_seq_len: int | None = None) -> None:
        """Begin without streams.

        Args:
            decoder: text decoder of the release.
            max_seq_len: tokens that a text may have; None: any number.
        """
        self._decoder = decoder
        self._max_seq_len = max_seq_len
        self._streams: dict[int, _Stream] = {}

    @classmethod
    def from_release(cls, folder: Path) -> "TextStep":
        """Load the tokenizer of a release, and warm up where the deployment asks for it.

        Args:
            folder: version folder of the model, with the release file.

        Raises:
            SpecError: there is no such release, or no usable tokenizer in it.
        """
        release = load_release(folder)
        step = cls(TextDecoder.from_spec(release.tokenizer), max_seq_len=release.engine.max_seq_len)
        if release.is_warmed_up:
            import_for_first_request()
            step.respond({"TOKENS_BATCH": np.zeros((1, 1, 1), dtype=np.int32)})
        return step

    @property
    def num_streams(self) -> int:
        """Return the number of streams whose last chunk has not come."""
        return len(self._streams)

    def respond(
        self, tensors: Mapping[str, npt.NDArray[np.generic]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> npt.NDArray[np.object_]:
        """Return the new text of each beam, ``[batch * beams]`` UTF-8; for a `StreamCheck`, keys of unread streams.

        Args:
            tensors: ``TOKENS_BATCH [batch, beams, n]``, perhaps ``SEQUENCE_LENGTH [batch, beams]``; with
                ``STREAM_STATE [1, n]`` the tokens of one stream, with ``[rows, n]`` the whole texts of several streams.
            is_cancelled: returns whether the client of this chunk's stream has gone.

        Raises:
            RequestError: tokens are missing or more than a text may have, there are not as many lengths as beams, or
                the engine step did not write the state.
        """
        check_required("postprocessing", tensors)
        if self._max_seq_len is not None:
            check_list_size("TOKENS_BATCH", "tokens", tensors["TOKENS_BATCH"].shape[-1], max_seq_len=self._max_seq_len)
        beams = _beams(tensors["TOKENS_BATCH"], tensors.get("SEQUENCE_LENGTH"))
        packed = tensors.get("STREAM_STATE")
        if packed is None:
            answers = [self._decoder.decode(ids).encode() for ids in beams]
        elif len(packed) > 1:
            answers = self._whole_texts(unpack_final_states(packed), beams)
        else:
            match unpack_state(packed.tobytes()):
                case StreamCheck(num_chunks, lost_keys):
                    for key in lost_keys:
                        self._streams.pop(key, None)
                    answers = [msgspec.msgpack.encode(self._unread(num_chunks))]
                case state if len(beams) > 1:
                    answers = beam_texts(self._decoder, state, beams)
                case state:
                    answers = [self._text(state, beams[0], is_cancelled).encode()]
        return np.array(answers, dtype=np.object_)

    def _whole_texts(self, states: list[StreamState], beams: list[list[int]]) -> list[bytes]:
        """Return the texts of a response with several whole streams, which all have the same number of beams."""
        if len(beams) % len(states):
            raise RequestError(f"STREAM_STATE has {len(states)} rows for {len(beams)} beams", field="STREAM_STATE")
        width = len(beams) // len(states)
        return [
            text
            for row, state in enumerate(states)
            for text in beam_texts(self._decoder, state, beams[row * width : (row + 1) * width])
        ]

    def _text(self, state: StreamState, token_ids: list[int], is_cancelled: Callable[[], bool]) -> str:
        now_s = time.monotonic()
        stream = self._streams.get(state.key)
        if stream is None:
            stream = self._streams[state.key] = _Stream(
                StreamText(self._decoder, state.stop_strings), now_s + _CANCEL_CHECK_S
            )
        stream.num_chunks += 1
        if state.is_final:
            del self._streams[state.key]
        elif now_s >= stream.next_check_s:
            stream.next_check_s = now_s + _CANCEL_CHECK_S
            stream.is_abandoned = stream.is_abandoned or is_cancelled()
        return add_chunk(stream.text, state, token_ids)

    def _unread(self, num_chunks: Mapping[int, int]) -> list[int]:
        """Return the streams whose client has gone, or that did not get all their chunks.

        A stream that has ended meanwhile is among them, and ends twice.
        """
        return [key for key, sent in num_chunks.items() if not self._is_read(key, sent)]

    def _is_read(self, key: int, num_sent: int) -> bool:
        stream = self._streams.get(key)
        return stream is not None and not stream.is_abandoned and stream.num_chunks >= num_sent


def add_chunk(text: StreamText, state: StreamState, token_ids: list[int]) -> str:
    """Return the new text that one chunk of a stream makes."""
    prompt = text.push_prompt(token_ids[: state.num_prompt_tokens]) if state.num_prompt_tokens else ""
    new = prompt + text.push(token_ids[state.num_prompt_tokens :])
    return new + text.finish() if state.is_final else new


def beam_texts(decoder: TextDecoder, state: StreamState, beams: list[list[int]]) -> list[bytes]:
    """Return the whole text of each beam in UTF-8: a beam search has one chunk."""
    return [add_chunk(StreamText(decoder, state.stop_strings), state, token_ids).encode() for token_ids in beams]


def _beams(tokens: npt.NDArray[np.generic], lengths: npt.NDArray[np.generic] | None) -> list[list[int]]:
    """Return the token ids of each beam of each request, without padding."""
    if tokens.ndim != 3:  # Triton's stub drops the batch dimension of a batch of none
        raise RequestError(
            f"TOKENS_BATCH has the shape {list(tokens.shape)}; send [batch, beams, tokens], none of them 0",
            field="TOKENS_BATCH",
        )
    beams: list[list[int]] = [beam for request in tokens.tolist() for beam in request]
    if lengths is None:
        return beams
    if lengths.size != len(beams):
        raise RequestError(
            f"SEQUENCE_LENGTH has {lengths.size} values for {len(beams)} beams",
            field="SEQUENCE_LENGTH",
            value=lengths.size,
        )
    return [beam[:length] for beam, length in zip(beams, lengths.reshape(-1).tolist(), strict=True)]
