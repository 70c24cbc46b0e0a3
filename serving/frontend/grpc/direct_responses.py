# SPDX-License-Identifier: Apache-2.0
"""The responses that models send to this frontend past Triton (`serving.pipeline.direct` is their side)."""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import Protocol

from serving.process.reply_socket import HEAD, written_name

_log = logging.getLogger("trireme.frontend")

_BACKLOG = 64  # models, one process each
_READ_BYTES = 262_144


class Taker(Protocol):
    """The taker of the responses for the streams of one connection."""

    def take_direct(self, stream_id: int, message: bytes) -> None:
        """Take a response for a stream."""

    def flush_direct(self) -> None:
        """Send what was taken."""


class _Model:
    """A connection of a model's process."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.name: str | None = None  # None: it has not come yet
        self.rest = b""  # the beginning of a message that has not come whole


class DirectResponses:
    """The socket for models, and the streams that their messages are for."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._listener: socket.socket | None = None
        self._models: set[_Model] = set()
        self._by_name: dict[str, list[_Model]] = {}  # each version has a process of its own
        self._streams: dict[bytes, tuple[Taker, int]] = {}

    def listen(self, path: Path) -> None:
        """Take models at this socket from now on, and at no other."""
        self.close()
        if not path.parent.is_dir():  # that Triton has ended meanwhile; word of the next one will come
            return
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
        for model in list(self._models):
            self._forget(model)
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def has(self, model: str) -> bool:
        """Return whether a model is connected."""
        return model in self._by_name

    def name(self, model: str, stream_name: str) -> None:
        """Tell a model that Triton is about to have a request of a stream for it."""
        for each in self._by_name.get(model, ()):
            with contextlib.suppress(OSError):  # it has not read for long: the request is answered through Triton
                each.connection.send(written_name(stream_name))  # so short that all of it goes, or nothing

    def expect(self, name: str, taker: Taker, stream_id: int) -> None:
        """Have messages for a stream go to a client."""
        self._streams[name.encode()] = (taker, stream_id)

    def forget(self, name: str) -> None:
        """Drop what still comes for a stream."""
        self._streams.pop(name.encode(), None)

    def drain(self) -> None:
        """Hand on everything that has been written up to now: whatever Triton says next was said later."""
        for model in list(self._models):
            self._read(model)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            model = _Model(connection)
            self._models.add(model)
            asyncio.get_running_loop().add_reader(connection, self._read, model)

    def _read(self, model: _Model) -> None:
        touched: dict[Taker, None] = {}
        is_over, size = False, _READ_BYTES
        while size == _READ_BYTES:
            try:
                data = model.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            is_over, size = not data, len(data)
            data = model.rest + data
            if model.name is None:
                data = self._begin(model, data)
            model.rest = data if model.name is None else self._take(data, touched)
        for taker in touched:
            taker.flush_direct()
        if is_over:  # Triton ends its requests
            self._forget(model)

    def _begin(self, model: _Model, data: bytes) -> bytes:
        """Read the name of a model that has connected, if all of it is there; return what follows it."""
        if not data or len(data) <= data[0]:
            return data
        end = 1 + data[0]
        model.name = data[1:end].decode()
        self._by_name.setdefault(model.name, []).append(model)
        return data[end:]

    def _forget(self, model: _Model) -> None:
        asyncio.get_running_loop().remove_reader(model.connection)
        model.connection.close()
        self._models.discard(model)
        if model.name is not None:
            self._by_name[model.name].remove(model)
            if not self._by_name[model.name]:
                del self._by_name[model.name]

    def _take(self, data: bytes, touched: dict[Taker, None]) -> bytes:
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
                taker, stream_id = found
                taker.take_direct(stream_id, data[name_end:end])
                touched[taker] = None
            start = end
        return data[start:]
