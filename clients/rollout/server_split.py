# SPDX-License-Identifier: Apache-2.0
"""The split that servers make, and what they tell of requests: of each a thread keeps the split, another one counts.

A server goes by the split until its lease ends, so a rollout without its process takes no new requests. Outcomes are
read from the journal and counted with the cursor in one transaction: each once, whoever was killed.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from clients.rollout.judging.judges import Judge
from clients.rollout.records.rollout_plan import Mode, Plan, read_plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.records.store import Merge, Store
from clients.rollout.traffic import release_shares_now
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import Journal, JournalLine
from ensemble_configs.split.release_split import ReleaseShare
from trireme.base.errors import ServingError, Unavailable
from trireme.base.store_place import StorePlace

_LOOK_S = 0.1  # until a phase of the store reaches the servers
_REFRESH_S = 1.0
_COUNT_S = 0.5


class SplittingServer(Protocol):
    """A server that splits requests (`clients.rollout.local_server.LocalServer`)."""

    def split(self, rollout: Rollout, plan: Plan, shares: Sequence[ReleaseShare]) -> str | None:
        """Split the requests until the plan's lease is over, and return the journal's name; None: none."""

    def journal(self, name: str) -> Journal:
        """Return a journal by its name."""


class ServerSplit:
    """The keeper of one rollout's split, from its construction until it is closed.

    Args:
        place: of the store.
        number: number of the rollout.
        servers: those that split.
        judge: makes evidence of outcomes.
        tell: reporter of messages for people.
    """

    def __init__(
        self,
        place: StorePlace,
        number: int,
        servers: Sequence[SplittingServer],
        judge: Judge,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._place = place
        self._number = number
        self._servers = servers
        self._judge = judge
        self._tell = tell
        self._last_messages: dict[str, str] = {}  # by thread
        self._journals: dict[tuple[str, SplittingServer], Journal] = {}
        with Store(place) as store:  # a server may be away for long
            for name in store.journals(number):
                for server in servers:  # the name does not tell which of them has it; the others have no lines of it
                    self._add_journal(name, server)
        self._closing = threading.Event()
        self._told: dict[SplittingServer, tuple[object, float]] = {}
        self._threads = [
            self._thread(f"split {which}", partial(self._keep, each)) for which, each in enumerate(servers)
        ]
        self._threads += [
            self._thread(f"count {which}", partial(self._count, each), _COUNT_S) for which, each in enumerate(servers)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop, and count what is left, if the server is there; the lease of the split ends by itself."""
        self._closing.set()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(Unavailable):  # `trireme rollout run` counts the rest, or nobody needs it
            self.count()

    def _thread(self, name: str, work: Callable[[Store], None], period_s: float = _LOOK_S) -> threading.Thread:
        return threading.Thread(target=self._repeat, args=(work, period_s), name=name, daemon=True)

    def _add_journal(self, name: str, server: SplittingServer) -> None:
        self._journals.setdefault((name, server), server.journal(name))

    def _repeat(self, work: Callable[[Store], None], period_s: float) -> None:
        with contextlib.ExitStack() as held:
            store: Store | None = None
            while not self._closing.wait(period_s):
                try:
                    store = store or held.enter_context(Store(self._place))
                    work(store)
                except (ServingError, OSError) as exc:
                    self._tell_once(f"the split waits: {exc}")

    def _tell_once(self, text: str) -> None:
        of_thread = threading.current_thread().name
        if text != self._last_messages.get(of_thread):
            self._tell(text)
        self._last_messages[of_thread] = text

    def _keep(self, server: SplittingServer, store: Store) -> None:
        """Tell a server a split that has changed at once, and any split once a second."""
        rollout = store.get(self._number)
        now_s, state, told = time.monotonic(), (rollout.phase, rollout.step), self._told.get(server)
        if rollout.phase.is_over or rollout.phase is Phase.SETTLING:
            return  # the models serve the release that is the stable one by now: the split's lease ends
        if told and told[0] == state and now_s < told[1] + _REFRESH_S:
            return
        plan = read_plan(rollout.plan)
        name = server.split(rollout, plan, release_shares_now(rollout, plan))
        if name is not None:
            self._add_journal(name, server)
        self._told[server] = (state, now_s)
        self._last_messages.pop(threading.current_thread().name, None)

    def count(self) -> None:
        """Count the outcomes that the servers have written since the last call.

        Raises:
            Unavailable: the store is away.
        """
        with Store(self._place) as store:
            for server in self._servers:
                self._count(server, store)

    def _count(self, server: SplittingServer, store: Store) -> None:
        """Count what each journal of a server has; one that cannot be read now holds up no other."""
        errors = []
        for (name, of), journal in list(self._journals.items()):
            if of is not server:
                continue
            try:
                self._count_journal(store, name, journal)
            except (ServingError, OSError) as exc:
                errors.append(exc)
        if errors:
            self._tell_once(f"outcomes wait to be counted: {errors[0]}")
        else:
            self._last_messages.pop(threading.current_thread().name, None)

    def _count_journal(self, store: Store, name: str, journal: Journal) -> None:
        """Count a journal to its end; lines that somebody else counts meanwhile are not counted again."""
        while True:
            cursor = store.cursor(self._number, name)
            part = journal.read(cursor)
            if not part.lines:
                return
            own = [line for line in part.lines if line.rollout == self._number]
            plan = read_plan(store.get(self._number).plan)
            store.add_journal(
                self._number,
                name,
                part.cursor,
                {step: self._merge(lines) for step, lines in _by_step(own).items()},
                after=cursor,
                assigned=_assigned(own, plan),
            )

    def _merge(self, lines: Sequence[JournalLine]) -> Merge:
        return partial(_merged, self._judge, lines)


def _merged(judge: Judge, lines: Sequence[JournalLine], evidence: Mapping[str, object] | None) -> Mapping[str, object]:
    """Return evidence with outcomes at the times at which they ended, the oldest first."""
    found = evidence
    for at_s, outcomes in _by_second(lines).items():
        found = judge.merge(found, outcomes, at_s=at_s)
    assert found is not None, "there are lines"
    return found


def _by_second(lines: Sequence[JournalLine]) -> dict[float, list[Outcome]]:
    found: dict[float, list[Outcome]] = {}
    for line in sorted(lines, key=lambda each: each.at_s):
        found.setdefault(float(int(line.at_s)), []).append(line.outcome)
    return found


def _by_step(lines: Sequence[JournalLine]) -> dict[int, list[JournalLine]]:
    found: dict[int, list[JournalLine]] = {}
    for line in lines:
        found.setdefault(line.step, []).append(line)
    return found


def _assigned(lines: Sequence[JournalLine], plan: Plan) -> list[tuple[str, str]]:
    """Return the arm and unit of each request of an A/B test, for the assignment log."""
    if plan.mode is not Mode.AB:
        return []
    return [(line.outcome.arm, line.outcome.unit) for line in lines]
