# SPDX-License-Identifier: Apache-2.0
"""The messages between an adapter and a guard, a JSON object in each packet of a socket pair."""

import socket

import msgspec

from trireme.base.known_types import known

MAX_LINES = 40  # of the engine's log that are kept
MAX_LINE_CHARS = 400
_MAX_PACKET_BYTES = 1 << 17


class Order(msgspec.Struct, tag="order"):
    """The first message from adapter to guard: the engine to start; its packet carries the engine's descriptors."""

    command: list[str]
    socket_path: str  # where the engine fetches its descriptors: a launcher hands none on
    folder: str  # of the launcher's files
    rank_words: list[str]
    cpus: list[int] | None
    close_timeout_s: float
    left_files: list[str] = []


class Loaded(msgspec.Struct, tag="loaded"):
    """The message from adapter to guard that the engine serves."""


class Closing(msgspec.Struct, tag="closing"):
    """The message from adapter to guard that the engine's connection is closed: engine and ranks end by themselves."""


class End(msgspec.Struct, tag="end"):
    """The message from adapter to guard to end the engine now."""


class RankFound(msgspec.Struct, tag="rank_found"):
    """The message from guard to adapter that a rank runs; the adapter ends the rank if the guard is killed."""

    pid: int
    start_ticks: int  # another process with the same number began at another time


class RankDied(msgspec.Struct, tag="rank_died"):
    """The message from guard to adapter that a rank is gone while its engine is not being closed."""

    pid: int
    command: str


class SharedFilesFound(msgspec.Struct, tag="shared_files_found"):
    """The message from guard to adapter of files in shared memory; the adapter removes them if the guard is killed."""

    names: list[str]


class Ended(msgspec.Struct, tag="ended"):
    """The last message from guard to adapter: only processes that cannot be killed still run."""

    status: int
    lines: list[str]  # last lines that the engine and its ranks logged
    pids: list[int]  # of every process that was seen to run


FromAdapter = Order | Loaded | Closing | End
FromGuard = RankFound | RankDied | SharedFilesFound | Ended


def send(sock: socket.socket, message: FromAdapter | FromGuard, *, fds: tuple[int, ...] = ()) -> None:
    """Send one message.

    Args:
        sock: socket to the other side.
        message: message to send.
        fds: descriptors to send along.

    Raises:
        OSError: the other side is gone.
    """
    packet = msgspec.json.encode(message)
    socket.send_fds(sock, [packet], list(fds))


def receive_order(sock: socket.socket) -> tuple[Order, list[int]]:
    """Return the first message of an adapter, and the descriptors that came with it."""
    packet, fds, _, _ = socket.recv_fds(sock, _MAX_PACKET_BYTES, 8)
    return msgspec.json.decode(packet, type=known(Order)), fds


def receive(sock: socket.socket, kind: type[object]) -> object | None:
    """Return the next message, of the union `kind`; None: the other side is gone."""
    try:
        packet = sock.recv(_MAX_PACKET_BYTES)
    except OSError:
        return None
    return msgspec.json.decode(packet, type=known(kind)) if packet else None
