# SPDX-License-Identifier: Apache-2.0
"""The messages about a stream between the three steps of the ensemble, beside the contract's tensors.

Triton gives the steps behind a decoupled model no input but that model's own outputs, and a client's request id may be
empty or used twice. So `preprocessing` names each stream, the engine step carries the name through, and
`postprocessing` keeps its text under that name. Both tensors are MessagePack in ``[1, n] uint8``.
"""

import itertools
import secrets

import msgspec
import numpy as np
import numpy.typing as npt

from trireme.base.errors import RequestError
from trireme.base.known_types import known


class StreamContext(msgspec.Struct, frozen=True, array_like=True):
    """The message from preprocessing to tensorrt_llm, once for each request (`stream_context`)."""

    key: int
    stop_strings: tuple[str, ...] = ()
    traceparent: str = ""  # of preprocessing's own span, where a trace begins with it


class StreamState(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The message from tensorrt_llm to postprocessing, with every chunk (`stream_state`)."""

    key: int
    is_final: bool
    # Tokens of the prompt at the start of this chunk: no stop string is looked for in their text.
    num_prompt_tokens: int = 0
    # With the first chunk only. At the end of the struct, for text never ends with the byte that pads a batch.
    stop_strings: tuple[str, ...] = ()


class StreamCheck(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The abandoned-stream check from tensorrt_llm to postprocessing, by a call of its own: chunks sent to each stream.

    Only the step behind the engine can see that the client of an ensemble has gone: Triton tells the step with a chunk,
    or throws the chunk away before it gets there. This call queues behind the chunks that were sent.
    """

    num_chunks: dict[int, int]
    # Streams that ended with an error: postprocessing will see no more of them and forgets their text.
    lost_keys: tuple[int, ...] = ()


# A request with several sequences has a stream for each: it owns this many names, from its key on.
KEYS_PER_REQUEST = 128

# Unique among the streams of every preprocessing process that may feed one detokenizer.
_keys = itertools.count(secrets.randbits(55) * KEYS_PER_REQUEST, KEYS_PER_REQUEST)


def new_stream_key() -> int:
    """Return the first of the names that a new request owns for its streams; no name is used twice."""
    return next(_keys)


def pack(value: StreamContext | StreamState | StreamCheck) -> npt.NDArray[np.generic]:
    """Return a message as MessagePack, ``[1, n] uint8``."""
    return np.frombuffer(msgspec.msgpack.encode(value), dtype=np.uint8)[np.newaxis]


_context_decoder = msgspec.msgpack.Decoder(known(StreamContext))
_state_decoder: msgspec.msgpack.Decoder[StreamState | StreamCheck] = msgspec.msgpack.Decoder(
    known(StreamState | StreamCheck)
)
keys_decoder = msgspec.msgpack.Decoder(list[int])


# Behind a context or state that is shorter than another one of its batch: a byte that MessagePack and UTF-8 never use.
CONTEXT_PADDING = 0xC1
_PADDING = bytes([CONTEXT_PADDING])


def unpack_context(packed: bytes) -> StreamContext:
    """Return the stream context in `packed`, without its padding.

    Raises:
        RequestError: `preprocessing` did not write it.
    """
    try:
        return _context_decoder.decode(packed.rstrip(_PADDING))
    except msgspec.DecodeError as exc:
        raise _not_ours("stream_context") from exc


def unpack_state(packed: bytes) -> StreamState | StreamCheck:
    """Return the stream state or the abandoned-stream check in `packed`.

    Raises:
        RequestError: the engine step did not write it.
    """
    try:
        return _state_decoder.decode(packed)
    except msgspec.DecodeError as exc:
        raise _not_ours("stream_state") from exc


def unpack_final_states(packed: npt.NDArray[np.generic]) -> list[StreamState]:
    """Return the state of each row of a whole response, ``[rows, n] uint8``.

    Raises:
        RequestError: the engine step did not write them.
    """
    states = [unpack_state(row.tobytes().rstrip(_PADDING)) for row in packed]
    if not all(isinstance(state, StreamState) and state.is_final for state in states):
        raise _not_ours("stream_state")
    return states  # type: ignore[return-value]


def _not_ours(field: str) -> RequestError:
    return RequestError(f"{field} is for the ensemble's own use; leave it out", field=field)
