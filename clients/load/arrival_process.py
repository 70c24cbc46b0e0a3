# SPDX-License-Identifier: Apache-2.0
"""The two ways of putting a load on a server, in one process: when requests are due, or when the one before is done.

An open loop sends each request when it is due, whatever the server does, and its latency counts from then: a server
that stalls cannot make its own load lighter, nor hide the wait (coordinated omission). A closed loop says what so many
users get who each wait for their answers, and no more.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from clients.load.load_plan import Session
from clients.load.send import Sender
from clients.load.server_down import next_pause_s
from clients.load.sessions_ahead import SessionsAhead
from clients.load_run.load_record import UNANSWERED, LoadRecord

Note = Callable[[LoadRecord], None]


async def open_loop(sender: Sender, sessions: Iterable[Session], *, start_ns: int, note: Note) -> None:
    """Send every session when it is due, until they end or the sender is stopped, and wait for the last end."""
    async with asyncio.TaskGroup() as running:
        for session in sessions:
            assert session.due_s is not None
            due_ns = round(session.due_s * 1e9)
            if await sender.is_stopped_within((start_ns + due_ns - time.monotonic_ns()) / 1e9):
                return
            running.create_task(_converse(sender, session, due_ns=due_ns, note=note))


async def closed_loop(
    sender: Sender, sessions: SessionsAhead, *, num_users: int, end_ns: int | None, note: Note
) -> None:
    """Let each user begin a session when the one before is over.

    A user whose request nobody answered waits a little before the next session.

    Args:
        end_ns: on the monotonic clock: no session begins after it; None: until `sessions` end.
    """

    async def user() -> None:
        pause_s = 0.0
        while (session := await sessions.take()) is not None:
            if await sender.is_stopped_within(pause_s) or (end_ns is not None and time.monotonic_ns() >= end_ns):
                return
            was_answered = await _converse(sender, session, due_ns=None, note=note)
            pause_s = 0.0 if was_answered else next_pause_s(pause_s)

    async with asyncio.TaskGroup() as running:
        for _ in range(num_users):
            running.create_task(user())


async def _converse(sender: Sender, session: Session, *, due_ns: int | None, note: Note) -> bool:
    """Send a session's requests one by one; return False where nobody answered the last one."""
    history = ""
    for number, turn in enumerate(session.turns):
        if await sender.is_stopped_within(turn.think_s):
            break
        record, answer = await sender.send(session, number, history, due_ns=None if number else due_ns)
        if sender.stop.is_set() and not record.is_done:  # we ended it ourselves
            sender.note_unended(record)
            break
        note(record)
        if not record.is_done:
            return record.reason not in UNANSWERED
        history += turn.text + answer
    return True
