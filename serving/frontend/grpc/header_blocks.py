# SPDX-License-Identifier: Apache-2.0
"""Header blocks of gRPC: those of clients are read and written anew, so that one header can be left out."""

from urllib.parse import quote

import hpack
from hpack.hpack import encode_integer

from serving.frontend.grpc.http2_frames import ProtocolError

# All headers of a request together; gRPC's own limit is 8 KiB, beyond which it refuses, softly, up to 16.
MAX_BYTES = 16_384
# Triton 2.51 dies of SIGSEGV when a request of a stream with this header fails while another runs.
_DEADLY = frozenset({b"triton_grpc_error"})
# Decided by here and by Triton, as the pseudo-headers are: both have to read the same.
_SINGLE = frozenset({b"content-type", b"grpc-encoding"})

Headers = list[tuple[bytes, bytes]]


class HeaderReader:
    """Reads the header blocks of one connection, in their order: each depends on those before it."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_BYTES)

    def read(self, block: bytes) -> Headers:
        """Return the headers of one block, lower case names first to last.

        Raises:
            ProtocolError: it cannot be read, is too long, or says twice what Triton might read the other of.
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
    """Return the headers that Triton may see, without those of `names` and those that end it."""
    return [(name, value) for name, value in headers if name not in names and name.lower() not in _DEADLY]


def write(headers: Headers) -> bytes:
    """Return a block of literals that enter no table (RFC 7541, section 6.2.2): no other block depends on it."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


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
        found = [(b":status", b"200"), (b"content-type", b"application/grpc"), *found]
    return write(found)


def _text(value: bytes) -> bytes:
    return bytes(encode_integer(len(value), 7)) + value
