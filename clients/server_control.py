# SPDX-License-Identifier: Apache-2.0
"""The caller's end of the control socket of `trireme serve` (`serving.triton.control`)."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from clients.error_tokens import parse_error
from trireme.base.errors import Unavailable
from trireme.base.unix_socket import connect_socket

_CONNECT_S = 5.0


class ServerControl:
    """One server, from the machine that it runs on.

    Args:
        path: the socket, `build/NAME/control.sock` of the folder that `trireme serve` was called in.
        timeout_s: the longest silence within a change; a release may take long to load.
        tell: is told what the server says meanwhile.
    """

    def __init__(self, path: Path, *, timeout_s: float = 3600.0, tell: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._tell = tell

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        """Do one thing, and wait until it is done.

        Raises:
            Unavailable: no server is there, or it went away meanwhile.
            ServingError: what the server says against it.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_S)
                connect_socket(connection, self._path)
                connection.settimeout(self._timeout_s)
                connection.sendall(json.dumps({"op": operation, **question}).encode() + b"\n")
                for message in _messages(connection):
                    if "say" in message:
                        self._tell(str(message["say"]))
                    elif "error" in message:
                        raise parse_error(str(message["error"]))
                    else:
                        done = message["done"]
                        assert isinstance(done, dict)
                        return done
        except FileNotFoundError as exc:
            raise Unavailable(
                f"no server has its control socket at {self._path}; start it with `trireme serve`, or name the folder "
                "that it was started in",
                reason="unreachable",
            ) from exc
        except OSError as exc:
            raise Unavailable(
                f"the server behind {self._path} does not answer: {exc}; start it with `trireme serve` if it has ended",
                reason="unreachable",
            ) from exc
        # What was asked for may be done; every operation may be asked for again.
        raise Unavailable(f"the server behind {self._path} went away before it was done", reason="restarting")


def _messages(connection: socket.socket) -> Iterator[dict[str, object]]:
    with connection.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)
