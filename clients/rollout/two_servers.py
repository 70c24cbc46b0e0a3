# SPDX-License-Identifier: Apache-2.0
"""The rollout of a release that does not fit beside the stable one: each is on a server of its own.

The second server is nobody's but the rollout's: it is made to serve the candidate, takes its share and then all, while
the first unloads the stable release and loads the candidate. Clients that ask for the split notice nothing.
"""

import contextlib
import time
from collections.abc import Generator, Mapping
from typing import Any

from clients.rollout.judging.replay import PromptScores, replay
from clients.rollout.records.held_out import HeldOut, prompts_of
from clients.rollout.replicas import AnyServer
from trireme.base.errors import ServingError, Unavailable

_LOOK_S = 0.5


class TwoServers:
    """A `clients.rollout.controller.Server` that is made of two servers.

    Args:
        first: serves the stable release, and at the end the candidate.
        second: serves the candidate meanwhile.
        release: the candidate on the first server, for it has that server's folders and GPUs.
        stable: the release that the first server serves until then, and again if the candidate does not answer there.
        drain_timeout_s: how long the streams of a release that goes may take.
    """

    def __init__(
        self,
        first: AnyServer,
        second: AnyServer,
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
        """Load a release on the second server, in the place of what that one serves."""
        del is_canary
        self._second.replace(release, drain_timeout_s=self._drain_timeout_s)

    def try_out(self, number: int) -> None:
        """Let the candidate on the second server answer as many requests as it takes at a time."""
        self._second.try_out(number)

    def replay(self, held_out: HeldOut, number: int) -> Generator[list[PromptScores], None, None]:
        """Ask each release the held-out prompts on the server that serves it, and yield scores as they come."""
        yield from replay(
            prompts_of(held_out),
            stable=self._first.target(),
            candidate=self._second.target(number),
            num_at_a_time=held_out.num_at_a_time,
        )

    def lives(self) -> Mapping[str, object]:
        """Return the engine process of the second server's release."""
        return self._second.stable_lives()

    def promote(self, number: int) -> None:
        """Load the candidate on the first server; no client is sent there meanwhile."""
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
        """Load the stable release on the first server again; the second one answers everybody until then."""
        while True:
            with contextlib.suppress(Unavailable):
                self._first.replace(self._stable, drain_timeout_s=0)
                self._first.try_out(int(self._stable["release"]))
                return
            time.sleep(_LOOK_S)

    def settle(self) -> None:
        """Do nothing: neither server has another release beside its stable one."""

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """Do nothing: the operator stops the second server, and the first has unloaded its old release."""
