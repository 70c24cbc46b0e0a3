# SPDX-License-Identifier: Apache-2.0
"""Channels to a gRPC endpoint, with TLS or without, which are opened anew when certificate files are replaced."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from clients.access import Access, grpc_endpoint
from trireme.base.errors import SpecError

Options = Sequence[tuple[str, Any]]
Channel = Any  # grpc has no types
_FILES = ("ca_file", "cert_file", "key_file")


def open_channel(url: str, access: Access, options: Options) -> Channel:
    """Return a channel for code that waits, or for gevent.

    Raises:
        RequestError, SpecError: the address or a file is not what it should be.
    """
    target, access = grpc_endpoint(url, access)
    if not access.uses_tls:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, _credentials(access), options=_with_name(access, options))


def open_aio_channel(url: str, access: Access, options: Options) -> Channel:
    """Return a channel for the running event loop.

    Raises what `open_channel` raises.
    """
    target, access = grpc_endpoint(url, access)
    if not access.uses_tls:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, _credentials(access), options=_with_name(access, options))


class RenewedChannel:
    """A channel to a Triton that is opened anew when its certificate files are replaced. Create it in an event loop.

    gRPC reads certificates once for a channel. Certificates that live for hours are replaced in place, and a channel
    that has to connect again would show the old one. Calls that run keep their channel; new ones get the new one.
    """

    def __init__(self, url: str, access: Access, options: Options) -> None:
        self._url, self._options = url, options
        self._access = grpc_endpoint(url, access).access
        self._closing: set[asyncio.Task[None]] = set()
        self._state = _state_of(self._access)
        self._line = self._open()

    def take(self) -> "Line":
        """Return Triton's stub for one call, on a channel that stays until it is given back."""
        self._renew()
        self._line.num_calls += 1
        return self._line

    def give_back(self, line: "Line") -> None:
        """Say that the call has ended."""
        line.num_calls -= 1
        if line is not self._line and line.num_calls == 0:
            self._close(line)

    async def close(self) -> None:
        """Close it; calls that run are cancelled."""
        await self._line.channel.close()
        for closing in list(self._closing):
            await closing

    def _open(self) -> "Line":
        return Line(open_aio_channel(self._url, self._access, self._options))

    def _renew(self) -> None:
        state = _state_of(self._access)
        if state == self._state:
            return
        with contextlib.suppress(SpecError):  # half of them are replaced: the next call looks again
            old, self._line = self._line, self._open()
            self._state = state
            if old.num_calls == 0:
                self._close(old)

    def _close(self, line: "Line") -> None:
        task = asyncio.get_running_loop().create_task(line.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class Line:
    """A channel, its stub, and how many calls run on it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self.num_calls = 0


def _credentials(access: Access) -> Any:
    return grpc.ssl_channel_credentials(access.pem("ca_file"), access.pem("key_file"), access.pem("cert_file"))


def _with_name(access: Access, options: Options) -> Options:
    name = access.server_name
    return options if name is None else (*options, ("grpc.ssl_target_name_override", name))


def _state_of(access: Access) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes when a file is written anew, or the link to it is."""
    if not access.uses_tls:
        return ()
    found: list[tuple[int, int, int] | None] = []
    for path in filter(None, (getattr(access, name) for name in _FILES)):
        try:
            status = Path(path).stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
