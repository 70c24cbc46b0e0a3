# SPDX-License-Identifier: Apache-2.0
"""The controls of a server's replicas: of one, of several with addresses of their own, or of all behind one name."""

import socket
from collections.abc import Callable, Mapping, Sequence

from clients.rollout.local_server import Control
from trireme.base.errors import Unavailable

Resolve = Callable[[str, int], Sequence[str]]


class ServerControls:
    """The controls of a server, by replica.

    A replica that goes on under another address is another one: whoever counts on the first finds it gone.

    Args:
        find: returns what tells the replicas apart, at this moment; raises Unavailable while some are missing.
        make: returns the control of a replica.
        is_one: the server is one process, and nothing tells it from others.
    """

    def __init__(
        self, find: Callable[[], Sequence[str]], make: Callable[[str], Control], *, is_one: bool = False
    ) -> None:
        self._find = find
        self._make = make
        self._made: dict[str, Control] = {}
        self.is_one = is_one

    def all(self) -> Mapping[str, Control]:
        """Return the control of each replica that is there now, the same one each time.

        Raises:
            Unavailable: some are missing.
        """
        found = self._find()
        for each in found:
            if each not in self._made:
                self._made[each] = self._make(each)
        return {each: self._made[each] for each in found}


def one_control(control: Control) -> ServerControls:
    """Return the controls of a server that is one process."""
    return ServerControls(lambda: ("",), lambda _: control, is_one=True)


def addresses_of(host: str, port: int) -> Sequence[str]:
    """Return the addresses that a name has, sorted; of one family, since one server may have one of each.

    Raises:
        Unavailable: the name has none, or nobody says.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise Unavailable(f"{host} has no address: {exc}", reason="unreachable") from exc
    first = min(family for family, *_ in found)  # IPv4 before IPv6
    return sorted({str(address[0]) for family, *_, address in found if family is first})


def num_addresses(host: str, port: int) -> int:
    """Return how many addresses a name has; one where nobody says: whoever asks the server tells why."""
    try:
        return len(addresses_of(host, port))
    except Unavailable:
        return 1


def behind(host: str, port: int, num_replicas: int, resolve: Resolve = addresses_of) -> Callable[[], Sequence[str]]:
    """Return a function that finds the addresses of a name that has one for each replica."""

    def find() -> Sequence[str]:
        found = resolve(host, port)
        if len(found) != num_replicas:
            raise Unavailable(
                f"{host} has {len(found)} addresses now ({', '.join(found)}), and the rollout began with "
                f"{num_replicas}, one of each replica; start as many again",
                reason="replicas",
            )
        return found

    return find
