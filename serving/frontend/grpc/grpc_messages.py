# SPDX-License-Identifier: Apache-2.0
"""The messages of one gRPC stream, as they come in pieces: each is measured, and checked once it is whole."""

import struct
import time
import zlib
from collections.abc import Callable

from trireme.base.byte_budget import ByteBudget
from trireme.base.errors import RequestError

_PREFIX = struct.Struct(">?I")  # whether it is compressed, and its length
_WINDOW_BITS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}


class TooLarge(RequestError):
    """The error of a message that is longer than the limit."""


class MessageReader:
    """A reader that follows what a client sends on one stream.

    Args:
        max_bytes: the longest message, before and after it is unpacked.
        budget: the byte budget of all streams.
        encoding: how compressed messages are packed, gRPC's header `grpc-encoding`.
        check: takes each whole message, unpacked.
    """

    def __init__(self, max_bytes: int, budget: ByteBudget, encoding: bytes, check: Callable[[bytes], None]) -> None:
        self._max_bytes = max_bytes
        self._budget = budget
        self._encoding = encoding
        self._check = check
        self._head = b""
        self._is_packed = False
        self._left = 0  # bytes of the message that are still to come
        self._message = bytearray()
        self.since_s: float | None = None  # when the current, incomplete message began
        self.num_bytes = 0  # announced length of that message

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the stream.

        Raises:
            RequestError: a message is too long, or is refused by `check`.
            Unavailable: too many bytes are on their way.
        """
        while piece:
            if len(self._head) < _PREFIX.size:
                missing = _PREFIX.size - len(self._head)
                self._head, piece = self._head + piece[:missing], piece[missing:]
                self.since_s = self.since_s or time.monotonic()
                if len(self._head) == _PREFIX.size:
                    self._begin()
                continue
            taken, piece = piece[: self._left], piece[self._left :]
            self._message += taken
            self._left -= len(taken)
            if not self._left:
                self._end()

    def close(self) -> None:
        """Forget the part of a message that has come: the rest will not."""
        self._budget.give(self.num_bytes)
        self.num_bytes = 0
        self.since_s = None
        self._message = bytearray()

    def _begin(self) -> None:
        self._is_packed, num_bytes = _PREFIX.unpack(self._head)
        self._refuse_beyond(num_bytes)
        self._budget.take(num_bytes)
        self._left = self.num_bytes = num_bytes
        if not num_bytes:
            self._end()

    def _end(self) -> None:
        message = bytes(self._message)
        self._head = b""
        self.close()
        if self._is_packed:
            message = self._unpack(message)
        self._check(message)

    def _unpack(self, message: bytes) -> bytes:
        bits = _WINDOW_BITS.get(self._encoding)
        if bits is None:
            raise RequestError(
                f"messages packed with {self._encoding.decode(errors='replace')[:40]!r} are not read; send them as "
                "they are, or with gzip",
                field="grpc-encoding",
            )
        unpacker = zlib.decompressobj(bits)
        try:
            found = unpacker.decompress(message, self._max_bytes + 1)
        except zlib.error as exc:
            raise RequestError(f"a message cannot be unpacked: {exc}", field="grpc-encoding") from exc
        self._refuse_beyond(len(found))
        return found

    def _refuse_beyond(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise TooLarge(
                f"a message of {num_bytes} bytes or more; at most {self._max_bytes} are taken "
                "(triton.max_request_bytes)",
                field="message_bytes",
                value=num_bytes,
            )
