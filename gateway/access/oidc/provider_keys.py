# SPDX-License-Identifier: Apache-2.0
"""The keys of a provider as one gateway knows them: read again and again, and used for a while when it is away."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol, Self

from gateway.access.oidc.key_set import KeySet, VerificationKey
from gateway.access.oidc.refusals import invalid_token, nobody_knows
from trireme.base.errors import ServingError

LEAST_REFETCH_S = 10.0  # whoever sends tokens of unknown keys makes the provider work so often at most
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0
_AWAY = "their provider is away"

_log = logging.getLogger("trireme.gateway")


class Publisher(Protocol):
    """A provider that publishes its keys."""

    async def keys(self) -> KeySet:
        """Return the keys of now.

        Raises:
            ServingError: they cannot be read.
        """


class ProviderKeys:
    """The keys of a provider, inside an `async with`.

    Args:
        refresh_s: between two looks at them.
        grace_s: how long they are used while the provider is away.
        monotonic_s: seconds of a clock that nobody sets.
    """

    def __init__(
        self,
        provider: Publisher,
        *,
        refresh_s: float,
        grace_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider, self._refresh_s, self._grace_s = provider, refresh_s, grace_s
        self._monotonic_s = monotonic_s
        self._keys: KeySet | None = None
        self._heard_s = 0.0  # when the last question was sent that was answered
        self._asked_s: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_away = False
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._following, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, key_id: str | None, algorithm: str) -> VerificationKey:
        """Return the key for a token; one that is not known may be new, so the provider is asked, now and then.

        Raises:
            ApiError: 401: the provider has no such key; 503: nobody knows its keys.
        """
        if self._keys is None and not self._is_away:  # the first answer is on its way
            await self.refresh()
        found = self._known().find(key_id, algorithm)
        if found is None and (self._asking is not None or self._may_ask()):
            await self.refresh()
            found = self._known().find(key_id, algorithm)
        if found is None:
            raise invalid_token("no key of the provider fits its kid and its algorithm")
        return found

    def is_known(self, key: VerificationKey) -> bool:
        """Return whether the provider still publishes a key.

        Raises:
            ApiError: 503: nobody knows its keys.
        """
        return key in self._known()

    async def refresh(self) -> None:
        """Read the keys, all together who wait for it; a provider that is away is told to the log, once."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        await asyncio.shield(self._asking)  # whoever leaves does not end it for the others

    def _known(self) -> KeySet:
        if self._keys is None or self._monotonic_s() - self._heard_s > self._grace_s:
            raise nobody_knows(_AWAY)
        return self._keys

    def _may_ask(self) -> bool:
        return self._asked_s is None or self._monotonic_s() - self._asked_s >= LEAST_REFETCH_S

    async def _ask(self) -> None:
        asked_s = self._asked_s = self._monotonic_s()
        try:
            self._keys = await self._provider.keys()
            self._heard_s = asked_s
        except Exception as exc:  # whatever it is, the next time may be better, and known keys have their grace
            self._tell_away(exc)
        else:
            if self._is_away:
                _log.info("the provider of tokens is back")
            self._is_away = False
        finally:
            self._asking = None

    async def _follow(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            with contextlib.suppress(ServingError):
                await self.refresh()
            if self._is_away:
                await asyncio.sleep(min(retry_s, self._refresh_s))
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            else:
                await asyncio.sleep(self._refresh_s)
                retry_s = _FIRST_RETRY_S

    def _tell_away(self, exc: Exception) -> None:
        if not self._is_away:
            said = exc.message if isinstance(exc, ServingError) else repr(exc)
            _log.warning("%s; those that are known are used for %g s", said, self._grace_s)
        self._is_away = True
