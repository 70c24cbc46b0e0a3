# SPDX-License-Identifier: Apache-2.0
"""The responses that models send to this frontend past Triton (`serving.pipeline.direct_replies` is their side)."""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from serving.process.reply_socket import HEAD, HELLO

if TYPE_CHECKING:
    from serving.frontend.grpc.grpc_relay import ClientConnection

_log = logging.getLogger("trireme.frontend")

_BACKLOG = 64  # models, one process each
_READ_BYTES = 262_144


class DirectResponses:
    """The socket for models, and the streams that their messages are for."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._listener: socket.socket | None = None
        self._models: dict[socket.socket, bytes] = {}  # with the beginning of a message that has not come whole
        self._streams: dict[bytes, tuple[ClientConnection, int]] = {}

    @property
    def is_open(self) -> bool:
        """Return whether models can reach this frontend."""
        return self._listener is not None

    def listen(self, path: Path) -> None:
        """Take models at this socket from now on, and at no other."""
        self.close()
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.setblocking(False)
            listener.bind(str(path))
            listener.listen(_BACKLOG)
        except OSError as exc:
            listener.close()
            _log.warning("responses go through Triton alone: no socket at %s: %s", path, exc)
            return
        self._listener, self._path = listener, path
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Take no models any more."""
        loop = asyncio.get_running_loop()
        for each in [*self._models, *([self._listener] if self._listener else [])]:
            loop.remove_reader(each)
            each.close()
        self._models.clear()
        self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def expect(self, name: str, connection: "ClientConnection", stream_id: int) -> None:
        """Have messages for a stream go to a client."""
        self._streams[name.encode()] = (connection, stream_id)

    def forget(self, name: str) -> None:
        """Drop what still comes for a stream."""
        self._streams.pop(name.encode(), None)

    def drain(self) -> None:
        """Hand on everything that has been written up to now: whatever Triton says next was said later."""
        for model in list(self._models):
            self._read(model)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            model, _ = listener.accept()
            model.setblocking(False)
            model.send(HELLO)  # an empty buffer takes one byte
            self._models[model] = b""
            asyncio.get_running_loop().add_reader(model, self._read, model)

    def _read(self, model: socket.socket) -> None:
        touched: dict[ClientConnection, None] = {}
        is_over = False
        size = _READ_BYTES
        while size == _READ_BYTES:
            try:
                data = model.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            is_over = not data
            size = len(data)
            self._models[model] = self._take(self._models[model] + data, touched)
        for connection in touched:
            connection.flush_direct()
        if is_over:  # Triton ends its requests
            asyncio.get_running_loop().remove_reader(model)
            model.close()
            del self._models[model]

    def _take(self, data: bytes, touched: "dict[ClientConnection, None]") -> bytes:
        """Hand on the whole messages in `data`; return the rest."""
        start, size = 0, len(data)
        while size - start >= HEAD.size:
            length, name_length = HEAD.unpack_from(data, start)
            name_end = start + HEAD.size + name_length
            end = name_end + length
            if end > size:
                break
            found = self._streams.get(data[start + HEAD.size : name_end])
            if found is not None:  # else its client has left
                connection, stream_id = found
                connection.take_direct(stream_id, data[name_end:end])
                touched[connection] = None
            start = end
        return data[start:]
