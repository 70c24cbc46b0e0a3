# SPDX-License-Identifier: Apache-2.0
"""A name server for tests, whose answers change as a cluster's do: the addresses of the pods of a headless Service."""

import socket
import struct
import threading
from collections.abc import Mapping

_A, _IN = 1, 1
_TTL_S = 1


class NameServer:
    """A server that answers from its construction until it is closed.

    Args:
        addresses: by name without a dot at its end; may be changed at any time. Another name is unknown.
    """

    def __init__(self, addresses: Mapping[str, list[str]]) -> None:
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="name-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._is_closed = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", ("127.0.0.1", self.port))  # closing it would not end a thread that waits
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, peer = self._socket.recvfrom(4096)
            if self._is_closed:
                return
            self._socket.sendto(self._answer(question), peer)

    def _answer(self, message: bytes) -> bytes:
        """Return the answer to a question.

        RFC 1035, section 4: a header of 12 bytes, the question as it came, and an A record for each address.
        """
        labels, at = [], 12
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode())
            at += 1 + length
        end = at + 5
        kind = struct.unpack("!H", message[at + 1 : at + 3])[0]
        known = self._addresses.get(".".join(labels).lower())
        found = known if known is not None and kind == _A else []
        flags = 0x8180 | (3 if known is None else 0)
        header = message[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0)
        records = [struct.pack("!HHHIH", 0xC00C, _A, _IN, _TTL_S, 4) + socket.inet_aton(address) for address in found]
        return header + message[12:end] + b"".join(records)
