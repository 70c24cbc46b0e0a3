# SPDX-License-Identifier: Apache-2.0
"""The messages of an adapter and a guard, a JSON object in each packet of a socket pair."""

import socket

import msgspec

MAX_LINES = 40  # of the engine's log, that are kept
MAX_LINE_CHARS = 400
_MAX_PACKET_BYTES = 1 << 17


class Order(msgspec.Struct, tag="order"):
    """Adapter to guard, first: what to start. The packet carries the descriptors that are the engine's."""

    command: list[str]
    socket_path: str  # where the engine fetches them: a launcher hands none on
    folder: str  # of the launcher's files
    rank_words: list[str]
    cpus: list[int] | None
    close_timeout_s: float


class Loaded(msgspec.Struct, tag="loaded"):
    """Adapter to guard: the engine serves."""


class Closing(msgspec.Struct, tag="closing"):
    """Adapter to guard: the engine was hung up on and ends by itself; so do its ranks."""


class End(msgspec.Struct, tag="end"):
    """Adapter to guard: end it now."""


class RankFound(msgspec.Struct, tag="rank_found"):
    """Guard to adapter: a rank runs; should the guard be killed, the adapter ends it."""

    pid: int
    created_s: float  # as psutil has it: another process with the same number was created at another time


class RankDied(msgspec.Struct, tag="rank_died"):
    """Guard to adapter: a rank is gone while its engine is not being closed."""

    pid: int
    command: str


class Ended(msgspec.Struct, tag="ended"):
    """Guard to adapter, last: nothing runs any more, but for what cannot be killed."""

    status: int
    lines: list[str]  # the last ones that the engine and its ranks logged
    pids: list[int]  # of all that was seen to run
    left: list[str]  # what survived SIGKILL


FromAdapter = Order | Loaded | Closing | End
FromGuard = RankFound | RankDied | Ended


def send(sock: socket.socket, message: FromAdapter | FromGuard, *, fds: tuple[int, ...] = ()) -> None:
    """Send one message. Raises: OSError: the other side is gone."""
    packet = msgspec.json.encode(message)
    socket.send_fds(sock, [packet], list(fds))


def receive_order(sock: socket.socket) -> tuple[Order, list[int]]:
    """Return the first message of an adapter, and the descriptors that came with it."""
    packet, fds, _, _ = socket.recv_fds(sock, _MAX_PACKET_BYTES, 8)
    return msgspec.json.decode(packet, type=Order), fds


def receive(sock: socket.socket, kind: type[object]) -> object | None:
    """Return the next message, of this union; None: the other side is gone."""
    try:
        packet = sock.recv(_MAX_PACKET_BYTES)
    except OSError:
        return None
    return msgspec.json.decode(packet, type=kind) if packet else None
