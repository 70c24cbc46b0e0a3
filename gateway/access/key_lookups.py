# SPDX-License-Identifier: Apache-2.0
"""Questions for single keys, asked of the database together: those that come while one is out go with the next."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from gateway.access.key_record import KeyRecord

Ask = Callable[[Collection[str]], Awaitable[Mapping[str, KeyRecord]]]


class KeyLookups:
    """The questions of one process: however many callers bring unknown keys, one statement at a time asks for them.

    Args:
        ask: reads the keys with some ids.
        turn: held while a question is out; what else reads the database holds it too.
    """

    def __init__(self, ask: Ask, turn: asyncio.Lock) -> None:
        self._ask, self._turn = ask, turn
        self._ids: set[str] = set()
        self._next: asyncio.Task[Mapping[str, KeyRecord]] | None = None

    async def find(self, key_id: str) -> KeyRecord | None:
        """Return a key; None: there is none with this id.

        Raises:
            ServingError: the question failed.
        """
        self._ids.add(key_id)
        if self._next is None:
            self._next = asyncio.create_task(self._together())
        found = await asyncio.shield(self._next)  # whoever leaves does not end it for the others
        return found.get(key_id)

    async def _together(self) -> Mapping[str, KeyRecord]:
        async with self._turn:
            ids, self._ids, self._next = self._ids, set(), None
            return await self._ask(ids)
