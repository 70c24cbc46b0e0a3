# SPDX-License-Identifier: Apache-2.0
"""The residency of a pool's engines: the engine that was used least recently gives way to an engine that is wanted.

A loaded engine holds its part of the pool in the server's ledger.
"""

from pathlib import Path

from ensemble_configs.spec.release_spec import OnDemandSpec
from serving.shared_budget.ledger_views import MemberState
from serving.shared_budget.shared_ledger import SharedLedger


class Residency:
    """The part of one engine in its pool; for one thread.

    Args:
        ledger_file: ledger of the server.
        spec: pool of the engine, with the sizes of both.
        member: name of the engine, for people and in file names.
    """

    def __init__(self, ledger_file: Path, spec: OnDemandSpec, *, member: str) -> None:
        """Join the pool.

        Raises:
            SpecError: another engine of the pool gives the pool another size.
        """
        self._pool = f"pool_{spec.pool}"
        self._amount = {self._pool: spec.memory_mib}
        self._ledger = SharedLedger(ledger_file, member=member, weight=1.0, counts={self._pool: spec.pool_mib})
        self._member = member
        self._used = _UseTimes(ledger_file.parent)
        self.is_in = False

    def try_enter(self) -> bool:
        """Take the engine's part of the pool; False: it is not free, or another engine's turn, so ask again soon."""
        self.is_in = self._ledger.try_acquire(self._amount)
        return self.is_in

    def leave(self) -> None:
        """Give the engine's part of the pool back: the engine is not in memory any more."""
        self.is_in = False
        self._ledger.release(self._amount)

    def want_nothing(self) -> None:
        """Withdraw the claim on memory: no request waits for the engine any more."""
        self._ledger.withdraw()

    def note_use(self) -> None:
        """Note that a request has asked for the engine."""
        self._used.note(self._member)

    def is_in_the_way(self, *, is_idle: bool) -> bool:
        """Return whether this engine should give way to a wanted engine that does not fit beside the loaded engines.

        Idle engines go first, least recently used first, and no more of them than make enough room. A busy engine asks
        last, when its slice of time is over: idle engines have gone by then.
        """
        members = [member for member in self._ledger.members() if self._pool in (*member.held, *member.wanted)]
        wanted = [member.wanted[self._pool] for member in members if member.wanted.get(self._pool)]
        if not wanted:
            return False
        use = self._ledger.resources()[self._pool]
        missing = min(wanted) - (use.count - use.held)
        if missing <= 0:
            return False
        return not is_idle or self._is_among_the_first(members, missing)

    def _is_among_the_first(self, members: list[MemberState], missing: int) -> bool:
        """Return whether this engine is one of the least recently used engines that together free `missing` MiB."""
        holders = sorted((member for member in members if member.held.get(self._pool)), key=self._last_use)
        for member in holders:
            if member.name == self._member:
                return True
            missing -= member.held[self._pool]
            if missing <= 0:
                return False
        return False

    def _last_use(self, member: MemberState) -> float:
        return self._used.of(member.name)

    def close(self) -> None:
        """Leave the pool."""
        self._ledger.close()


class _UseTimes:
    """The times of the last request for each engine, kept as the times of empty files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, member: str) -> None:
        path = self._path(member)
        path.touch(mode=0o600)

    def of(self, member: str) -> float:
        """Return the time of the engine's last use in seconds of the system's clock; 0: never."""
        try:
            return self._path(member).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _path(self, member: str) -> Path:
        return self._folder / f"used-{member.replace('/', '-')}"
