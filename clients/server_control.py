# SPDX-License-Identifier: Apache-2.0
"""The control socket of `trireme serve` for commands on its machine, with errors that say what to do."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ensemble_configs.split.outcome_journal import OUTCOMES, JournalReader
from trireme.base.errors import Unavailable
from trireme.base.unix_rpc import call

_UNIQUE_NAME = re.compile(r".+-[0-9a-f]{8}-[0-9a-f]{8}")


class ServerControl:
    """The control of one server, from the machine that it runs on.

    Args:
        path: the socket, `build/NAME/control.sock` of the folder that `trireme serve` was called in.
        timeout_s: the longest silence within a change; a release may take long to load.
        tell: is told what the server says meanwhile.

    Attributes:
        controller: the process that asks, for a server that is steered by one (`clients.rollout.steering_lease`).
    """

    def __init__(self, path: Path, *, timeout_s: float = 3600.0, tell: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._tell = tell
        self.controller = ""

    def journal(self, name: str) -> JournalReader:
        """Return the journal of outcomes that the server calls by a name, or by its path on this machine."""
        return JournalReader(self._path.parent / OUTCOMES / name)

    def journal_name(self, answer: Mapping[str, object]) -> str:
        """Return what `journal` takes, of the answer of `split`."""
        name = str(answer["name"])
        # A journal that was begun by an earlier version has a name that others may have, and is counted by its path.
        return name if _UNIQUE_NAME.fullmatch(name) else str(answer["journal"])

    def seen_from_here(self, status: Mapping[str, object]) -> Mapping[str, object]:
        """Return a server's status with the addresses by which this machine reaches it: as the server says."""
        return status

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        """Do one thing, and wait until it is done.

        Raises:
            Unavailable: no server is there, or it went away meanwhile.
            ServingError: what the server says against it.
        """
        if self.controller:
            question["controller"] = self.controller
        try:
            return call(self._path, operation, question, timeout_s=self._timeout_s, tell=self._tell)
        except FileNotFoundError as exc:
            raise Unavailable(
                f"no server has its control socket at {self._path}; start it with `trireme serve`, or name the folder "
                "that it was started in",
                reason="unreachable",
            ) from exc
        except ConnectionResetError as exc:
            # What was asked for may be done; every operation may be asked for again.
            raise Unavailable(
                f"the server behind {self._path} went away before it was done", reason="restarting"
            ) from exc
        except OSError as exc:
            raise Unavailable(
                f"the server behind {self._path} does not answer: {exc}; start it with `trireme serve` if it has ended",
                reason="unreachable",
            ) from exc
