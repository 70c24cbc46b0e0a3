# SPDX-License-Identifier: Apache-2.0
"""Releases of a model that does not fit twice: each on a server of its own, with the same steps as on one.

The second server is nobody's but the rollout's: it is made to serve the candidate, takes its share and then all, while
the first unloads the stable release and loads the candidate. Clients that ask for the split notice nothing.
"""

import contextlib
import time
from collections.abc import Generator, Mapping
from typing import Any

from clients.rollout.judging.replay import PromptScores, replay
from clients.rollout.local_server import LocalServer
from clients.rollout.records.held_out import HeldOut, prompts_of
from trireme.base.errors import ServingError, Unavailable

_LOOK_S = 0.5


class TwoServers:
    """As `clients.rollout.controller.Server` has it.

    Args:
        first: serves the stable release, and at the end the candidate.
        second: serves the candidate meanwhile.
        release: the candidate on the first server, for it has that server's folders and GPUs.
        stable: what that one serves until then, and again if the candidate does not answer there.
        drain_timeout_s: for streams of what goes there.
    """

    def __init__(
        self,
        first: LocalServer,
        second: LocalServer,
        release: Mapping[str, Any],
        stable: Mapping[str, Any],
        *,
        drain_timeout_s: float,
    ) -> None:
        self._first = first
        self._second = second
        self._release = release
        self._stable = stable
        self._drain_timeout_s = drain_timeout_s

    def add(self, release: Mapping[str, object], *, is_canary: bool) -> None:
        """As `Server`; the release is the second server's."""
        del is_canary
        self._second.replace(release, drain_timeout_s=self._drain_timeout_s)

    def try_out(self, number: int) -> None:
        """As `Server`."""
        self._second.try_out(number)

    def replay(self, held_out: HeldOut, number: int) -> Generator[list[PromptScores], None, None]:
        """As `Server`: each release where it is served."""
        yield from replay(
            prompts_of(held_out),
            stable=self._first.target(),
            candidate=self._second.target(number),
            num_at_a_time=held_out.num_at_a_time,
        )

    def lives(self) -> Mapping[str, object]:
        """As `Server`."""
        return self._second.stable_lives()

    def promote(self, number: int) -> None:
        """As `Server`: nobody is sent to the first server while it is loaded anew."""
        assert number == self._release["release"]
        try:
            self._first.replace(self._release, drain_timeout_s=self._drain_timeout_s)
            self._first.try_out(number)
        except Unavailable:
            raise  # it is asked again
        except ServingError:
            self._serve_stable_again()
            raise

    def _serve_stable_again(self) -> None:
        """The second server answers everybody until the first serves what it did."""
        while True:
            with contextlib.suppress(Unavailable):
                self._first.replace(self._stable, drain_timeout_s=0)
                self._first.try_out(int(self._stable["release"]))
                return
            time.sleep(_LOOK_S)

    def settle(self) -> None:
        """As `Server`: there is nothing beside the stable release on either."""

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """As `Server`: what the second serves is its operator's to stop, and the first has unloaded its own."""
