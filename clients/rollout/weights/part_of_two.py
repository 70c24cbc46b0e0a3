# SPDX-License-Identifier: Apache-2.0
"""The part of a rollout's split that one of two servers makes, where a router has split between them already.

It sends nothing elsewhere: it marks as many of its requests as the other server's are compared with, so that how they
end is told by the servers themselves, as on one server.
"""

from collections.abc import Sequence
from itertools import pairwise

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.server_split import SplittingServer
from ensemble_configs.split.outcome_journal import Journal
from ensemble_configs.split.release_split import ReleaseShare

_COMPARED = (Phase.RUNNING, Phase.PAUSED, Phase.HELD)


class PartOfTwo:
    """A server of the two; a `clients.rollout.server_split.SplittingServer`.

    Args:
        release: the release that it serves.
    """

    def __init__(self, server: SplittingServer, release: int) -> None:
        self._server = server
        self._release = release

    def split(self, rollout: Rollout, plan: Plan, shares: Sequence[ReleaseShare]) -> str | None:
        """Let the server mark the requests that are compared; None where none are, and it may be loading."""
        if rollout.phase not in _COMPARED:
            return None
        return self._server.split(rollout, plan, part_of(shares, self._release))

    def journal(self, name: str) -> Journal:
        """Return the server's journal by its name."""
        return self._server.journal(name)


def part_of(shares: Sequence[ReleaseShare], release: int) -> tuple[ReleaseShare, ...]:
    """Return the shares of one release, spread over all of [0, 1); it serves what comes even where it has no share.

    At 5 % the stable server has 0.90 uncompared and 0.05 compared, of its own requests 90/95 and 5/95.
    """
    ends = pairwise((0.0, *(each.upto for each in shares)))
    own = [(upto - begin, each) for (begin, upto), each in zip(ends, shares, strict=True) if each.release == release]
    total, end, found = sum(width for width, _ in own), 0.0, []
    for width, each in own:
        end += width / total
        found.append(ReleaseShare(upto=end, release=release, arm=each.arm))
    if not found:
        return (ReleaseShare(upto=1.0, release=release),)
    return (*found[:-1], ReleaseShare(upto=1.0, release=release, arm=found[-1].arm))
