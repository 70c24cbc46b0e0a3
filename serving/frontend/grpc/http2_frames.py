# SPDX-License-Identifier: Apache-2.0
"""Frames of HTTP/2, RFC 9113: cut out of bytes, and made."""

import struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20
NO_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0x0, 0x8, 0xB  # section 7
HEAD_BYTES = 9
LEAST_MAX_FRAME_BYTES = 16_384  # every peer takes frames up to this size
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5  # settings
_HEAD = struct.Struct(">BHBBI")
_SETTING = struct.Struct(">HI")
_STREAM_ID = 0x7FFF_FFFF


class ProtocolError(Exception):
    """The error of a connection that cannot go on: its bytes are not HTTP/2, or exceed a limit."""


class Frame(NamedTuple):
    """A frame of HTTP/2 with its fields and its raw bytes."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    raw: bytes  # all its bytes, the head included


def take_frame(buffer: bytearray, *, max_bytes: int) -> Frame | None:
    """Remove the first frame from `buffer` and return it; None while the frame is incomplete.

    Raises:
        ProtocolError: its payload is longer than `max_bytes`.
    """
    if len(buffer) < HEAD_BYTES:
        return None
    high, low, kind, flags, stream_id = _HEAD.unpack_from(buffer)
    length = (high << 16) | low
    if length > max_bytes:
        raise ProtocolError(f"a frame of {length} bytes; {max_bytes} are taken")
    end = HEAD_BYTES + length
    if len(buffer) < end:
        return None
    raw = bytes(buffer[:end])
    del buffer[:end]
    return Frame(kind, flags, stream_id & _STREAM_ID, raw[HEAD_BYTES:], raw)


def make_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame's bytes."""
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream_id) + payload


def reset(stream_id: int, code: int) -> bytes:
    """Return the frame that ends one stream."""
    return make_frame(RST_STREAM, 0, stream_id, struct.pack(">I", code))


def give_back(num_bytes: int, stream_id: int = 0) -> bytes:
    """Return the frame that lets the peer send `num_bytes` more. Args: `stream_id`: 0: on the connection."""
    return make_frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", num_bytes))


def go_away(last_stream_id: int, code: int, why: str) -> bytes:
    """Return the frame that ends a connection."""
    return make_frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + why.encode())


def body_of(frame: Frame) -> bytes:
    """Return the payload of a DATA or HEADERS frame, without its padding and its priority.

    Raises:
        ProtocolError: the padding is longer than the frame.
    """
    start, end = 0, len(frame.payload)
    if frame.flags & PADDED:
        if not frame.payload:
            raise ProtocolError("padding is announced and not there")
        start, end = 1, end - frame.payload[0]
    if frame.kind == HEADERS and frame.flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise ProtocolError("a frame is shorter than its padding")
    return frame.payload[start:end]


def setting_of(settings: bytes, which: int) -> int | None:
    """Return a setting in the payload of a SETTINGS frame, such as `MAX_FRAME_SIZE`; None: it is not there."""
    found = None
    for name, value in _SETTING.iter_unpack(settings[: len(settings) // _SETTING.size * _SETTING.size]):
        if name == which:
            found = value
    return found


def with_setting(settings: bytes, which: int, value: int) -> bytes:
    """Return the SETTINGS frame with this payload and one more setting, which is read last."""
    return make_frame(SETTINGS, 0, 0, settings + _SETTING.pack(which, value))


def given_back(payload: bytes) -> int:
    """Return how many bytes a WINDOW_UPDATE frame with this payload gives back; 0: it is no such payload."""
    return struct.unpack(">I", payload)[0] & _STREAM_ID if len(payload) == 4 else 0
