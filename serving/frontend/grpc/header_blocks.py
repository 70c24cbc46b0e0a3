# SPDX-License-Identifier: Apache-2.0
"""Header blocks of gRPC: clients' blocks are read and written anew, so that one header can be left out."""

from urllib.parse import quote

import hpack
from hpack.hpack import encode_integer

from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.http2_frames import Frame, ProtocolError

# All headers of a request together; gRPC's own limit is 8 KiB, beyond which it refuses, softly, up to 16.
MAX_BYTES = 16_384
# Triton 2.51 dies of SIGSEGV when a request of a stream with this header fails while another runs.
_DEADLY = frozenset({b"triton_grpc_error"})
# This relay and Triton both decide by these, as by the pseudo-headers: both have to read one value.
_SINGLE = frozenset({b"content-type", b"grpc-encoding"})

Headers = list[tuple[bytes, bytes]]


class HeaderReader:
    """A reader of the header blocks of one connection, in their order: each depends on those before it."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_BYTES)
        self._open: tuple[int, int, bytes] | None = None  # stream, flags and what came of a block in several frames

    @property
    def is_open(self) -> bool:
        """Return whether a block has begun and not ended."""
        return self._open is not None

    def take(self, frame: Frame) -> tuple[int, Headers] | None:
        """Return the flags and headers of the block that a frame ends; None: the block goes on in the next frame.

        Args:
            frame: HEADERS, or CONTINUATION.

        Raises:
            ProtocolError: the block cannot be read (see `read`), or a CONTINUATION follows no block.
        """
        flags, block = frame.flags, h2.body_of(frame) if frame.kind == h2.HEADERS else frame.payload
        if frame.kind == h2.CONTINUATION:
            if self._open is None or self._open[0] != frame.stream_id:
                raise ProtocolError("headers go on that did not begin")
            _, begun_flags, begun = self._open
            flags, block = begun_flags | frame.flags & h2.END_HEADERS, begun + block
        if len(block) > MAX_BYTES:
            raise ProtocolError("headers are too long")
        if not flags & h2.END_HEADERS:
            self._open = (frame.stream_id, flags, block)
            return None
        self._open = None
        return flags, self.read(block)

    def read(self, block: bytes) -> Headers:
        """Return the headers of one block, lower case names first to last.

        Raises:
            ProtocolError: the block cannot be read, is too long, or repeats a header of which Triton might read the
            other.
        """
        try:
            headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except hpack.HPACKError as exc:
            raise ProtocolError(f"headers cannot be read: {exc!r}") from exc
        single = [name for name, _ in headers if name.startswith(b":") or name in _SINGLE]
        if len(set(single)) != len(single):
            raise ProtocolError("a header that there is one of comes twice")
        return headers


def without(headers: Headers, names: frozenset[bytes]) -> Headers:
    """Return the headers that Triton may see, without `names` and the headers that end it."""
    return [(name, value) for name, value in headers if name not in names and name.lower() not in _DEADLY]


def write(headers: Headers) -> bytes:
    """Return a block of literals that enter no table (RFC 7541, section 6.2.2): no other block depends on it."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def header_frames(headers: Headers, flags: int, stream_id: int, *, max_bytes: int) -> list[bytes]:
    """Return headers as frames with payloads of at most `max_bytes`; the stream ends with them if `flags` say so."""
    block = write(headers)
    pieces = [block[start : start + max_bytes] for start in range(0, len(block), max_bytes)] or [b""]
    frames = []
    for index, piece in enumerate(pieces):
        kind, own = (h2.CONTINUATION, 0) if index else (h2.HEADERS, flags & h2.END_STREAM)
        last = h2.END_HEADERS if index == len(pieces) - 1 else 0
        frames.append(h2.make_frame(kind, own | last, stream_id, piece))
    return frames


def as_trailers(block: bytes, stream_id: int, *, max_bytes: int) -> bytes:
    """Return the frames of the only headers of an answer as those that follow a message.

    Args:
        block: frames of one header block, which depends on no other.
        stream_id: of the stream that ends with the headers.
        max_bytes: the longest payload of a frame.
    """
    buffer, reader, found = bytearray(block), HeaderReader(), None
    while found is None and (frame := h2.take_frame(buffer, max_bytes=MAX_BYTES * 2)) is not None:
        found = reader.take(frame)
    headers = [] if found is None else found[1]
    kept = [(name, value) for name, value in headers if not name.startswith(b":") and name != b"content-type"]
    return b"".join(header_frames(kept, h2.END_STREAM, stream_id, max_bytes=max_bytes))


def answer_block() -> bytes:
    """Return the headers that an answer of gRPC begins with."""
    return write([(b":status", b"200"), (b"content-type", b"application/grpc")])


def status_block(code: int, message: str, *, is_first: bool) -> bytes:
    """Return the headers that end a call of gRPC.

    Args:
        code: gRPC's status code.
        message: for a person; sent as gRPC wants it, other bytes than printable ASCII percent-encoded.
        is_first: whether the call has had no answer yet.
    """
    told = quote(message, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}~")
    found: Headers = [(b"grpc-status", str(code).encode()), (b"grpc-message", told.encode())]
    if is_first:
        return answer_block() + write(found)
    return write(found)


def _text(value: bytes) -> bytes:
    return bytes(encode_integer(len(value), 7)) + value
