# SPDX-License-Identifier: Apache-2.0
"""The controls of a server's replicas: of one, of several with addresses of their own, or of all behind one name."""

from collections.abc import Callable, Mapping, Sequence

from clients.rollout.local_server import Control


class ServerControls:
    """The controls of a server, by replica.

    A replica that goes on under another address is another one: whoever counts on the first finds it gone.

    Args:
        find: returns what tells the replicas apart, at this moment; raises Unavailable while nobody knows.
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
            Unavailable: nobody knows which are there.
        """
        found = self._find()
        for each in found:
            if each not in self._made:
                self._made[each] = self._make(each)
        return {each: self._made[each] for each in found}


def one_control(control: Control) -> ServerControls:
    """Return the controls of a server that is one process."""
    return ServerControls(lambda: ("",), lambda _: control, is_one=True)
