# SPDX-License-Identifier: Apache-2.0
"""The connections of an engine's process: the adapter that started it (the owner), and later clients (clients).

Each caller has keys of its own for its requests.
"""

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

import msgspec

from serving.engine_process.engine_messages import (
    Broken,
    Cancel,
    Channel,
    ChannelClosed,
    Command,
    Ready,
    Step,
    Stop,
    Submit,
)
from serving.engines.seam.base import EngineInfo, EngineStats, FinishReason, GenerationRequest, TokenChunk

HEARTBEAT_S = 1.0  # longest time between two reports to the owner from an engine that is well
STATS_S = 0.05  # time between two reports of stats while it works


@dataclass(eq=False)
class _Caller:
    channel: Channel
    is_owner: bool
    engine_keys: dict[int, int] = field(default_factory=dict)  # the engine's key by the caller's key
    chunks: list[TokenChunk] = field(default_factory=list)  # to be sent


@dataclass(frozen=True, slots=True)
class _Request:
    caller: _Caller
    key: int  # given by the caller
    request_id: str  # given by the client; may be empty or used twice


class EngineConnections:
    """The channels of an engine's process; requests go in and chunks come out by the engine's keys.

    One thread receives. Other threads may send at the same time, and `wake` the receiver.

    Args:
        owner: channel of the owner; its end is the end of the engine.
        clients: listening socket for clients; the end of a client is the end of its requests.
    """

    def __init__(self, owner: Channel, clients: socket.socket | None, info: EngineInfo) -> None:
        self._info = info
        self._clients = clients
        self._selector = selectors.DefaultSelector()
        self._waking, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()  # of the fields below, and of those of callers
        self._requests: dict[int, _Request] = {}  # by the engine's key
        self._talkers: set[_Caller] = set()  # with chunks to be sent
        self._last_key = 0
        self._owner_heard_s = float("-inf")
        self._owner = self._welcome(owner, is_owner=True)
        if clients is not None:
            clients.setblocking(False)
            self._selector.register(clients, selectors.EVENT_READ)

    def receive(self, *, timeout_s: float) -> list[GenerationRequest | int]:
        """Wait up to `timeout_s` for messages, and return requests to run and keys of requests to stop.

        Raises:
            ChannelClosed: the owner is gone.
        """
        commands: list[GenerationRequest | int] = []
        for ready, _ in self._selector.select(timeout_s):
            if ready.fileobj is self._woken:
                self._woken.recv(64)
            elif ready.data is None:
                self._let_in()
            else:
                commands += self._read(ready.data)
        return commands

    def wake(self) -> None:
        """Let `receive` return in the thread that waits there."""
        self._waking.send(b"\0")

    def send(self, chunks: list[TokenChunk], stats: EngineStats | None) -> None:
        """Send every caller the chunks of its requests.

        For the gauges, the owner gets reports of steps without a chunk of its own, too: one in `STATS_S`, and one at
        the end of all work.

        Args:
            chunks: chunks by the engine's keys.
            stats: the engine's stats after a step; None: the chunks are ends of requests beside a step.

        Raises:
            ChannelClosed: the owner is gone.
        """
        with self._lock:
            self._send(chunks, stats)

    def _send(self, chunks: list[TokenChunk], stats: EngineStats | None) -> None:
        for chunk in chunks:
            request = self._requests.get(chunk.key)
            if request is None:  # stopped twice: by its caller, and by the end of its caller or by its request id
                continue
            caller, key = request.caller, request.key
            if chunk.finish_reason is not None or chunk.error is not None:
                del self._requests[chunk.key], caller.engine_keys[key]
            chunk.key = key
            self._put(chunk, caller)
        if stats is not None and self._is_owner_due(stats):
            self._talkers.add(self._owner)
        talkers, self._talkers = self._talkers, set()
        for caller in talkers:
            step, caller.chunks = Step(caller.chunks, stats), []
            try:
                caller.channel.send(step)
            except ChannelClosed:  # of a client: its end is read where its commands are
                if caller.is_owner:
                    raise

    def _is_owner_due(self, stats: EngineStats) -> bool:
        now_s = time.monotonic()
        is_busy = bool(stats.num_running or stats.num_waiting)
        if is_busy and now_s < self._owner_heard_s + STATS_S:
            return False
        self._owner_heard_s = now_s
        return True

    def tell_all(self, broken: Broken) -> None:
        """Send every caller the error that ended the engine.

        Raises:
            ChannelClosed: the owner is gone.
        """
        with self._lock:
            for registered in list(self._selector.get_map().values()):
                if registered.data is not None and not registered.data.is_owner:
                    with contextlib.suppress(ChannelClosed):
                        registered.data.channel.send(broken)
            self._owner.channel.send(broken)

    def close(self) -> None:
        """Close the channel to every caller."""
        for registered in list(self._selector.get_map().values()):
            if registered.data is not None:
                registered.data.channel.close()
        self._selector.close()
        self._waking.close()
        self._woken.close()

    def _put(self, chunk: TokenChunk, caller: _Caller) -> None:
        caller.chunks.append(chunk)
        self._talkers.add(caller)

    def _let_in(self) -> None:
        assert self._clients is not None
        try:
            sock, _ = self._clients.accept()
        except OSError:  # it went away again
            return
        sock.setblocking(True)
        try:
            self._welcome(Channel(sock, Command), is_owner=False)
        except ChannelClosed:
            sock.close()

    def _welcome(self, channel: Channel, *, is_owner: bool) -> _Caller:
        channel.send(Ready(self._info))
        caller = _Caller(channel, is_owner)
        self._selector.register(channel, selectors.EVENT_READ, caller)
        return caller

    def _read(self, caller: _Caller) -> list[GenerationRequest | int]:
        try:
            commands = caller.channel.receive(is_blocking=False)
        except ChannelClosed:
            if caller.is_owner:
                raise
            with self._lock:
                return self._forget(caller)
        with self._lock:
            return [translated for command in commands for translated in self._translate(command, caller)]

    def _translate(self, command: object, caller: _Caller) -> list[GenerationRequest | int]:
        match command:
            case Submit(request, request_id):
                self._last_key += 1
                self._requests[self._last_key] = _Request(caller, request.key, request_id)
                caller.engine_keys[request.key] = self._last_key
                return [msgspec.structs.replace(request, key=self._last_key)]
            case Cancel(key):
                if key not in caller.engine_keys:  # it has just ended, or never was
                    self._put(TokenChunk(key, [], FinishReason.CANCELLED), caller)
                    return []
                return [caller.engine_keys[key]]
            case Stop(request_id):
                return [
                    key
                    for key, request in self._requests.items()
                    if request.request_id == request_id and request.caller is not caller
                ]
        raise AssertionError(f"not a command: {command!r}")

    def _forget(self, client: _Caller) -> list[GenerationRequest | int]:
        """Remove a client that is gone, and return the keys of its requests, to stop them without a reply."""
        self._selector.unregister(client.channel)
        client.channel.close()
        return list(client.engine_keys.values())
