# SPDX-License-Identifier: Apache-2.0
"""The keys of a provider over time: rotation, a provider that is away, and callers who make it work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from manual_clock import UNIX_S, ManualClock
from oidc_provider import SigningKey

from clients.openai_api.api_error import ApiError
from gateway.access.oidc.key_set import KeySet
from gateway.access.oidc.provider_keys import LEAST_REFETCH_S, ProviderKeys
from trireme.base.errors import Unavailable

OLD, NEW = SigningKey("old"), SigningKey("new")


class Scripted:
    """A provider whose keys a test says. Attributes: `num_asked`: how often."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys_now: list[SigningKey] | None = list(keys)
        self.num_asked = 0

    async def keys(self) -> KeySet:
        self.num_asked += 1
        await asyncio.sleep(0)
        if self.keys_now is None:
            raise Unavailable("the keys are not known: it is away")
        return KeySet([key.jwk for key in self.keys_now], algorithms=("ES256",))


def run(provider: Scripted, clock: ManualClock, test: Callable[[ProviderKeys], Awaitable[Any]]) -> None:
    async def inside() -> None:
        async with ProviderKeys(provider, refresh_s=3600, grace_s=4000, monotonic_s=clock) as keys:
            await test(keys)

    asyncio.run(inside())


async def refusal(keys: ProviderKeys, key_id: str) -> tuple[int, str]:
    with pytest.raises(ApiError) as refused:
        await keys.find(key_id, "ES256")
    return refused.value.status, refused.value.code


def test_a_known_key_costs_no_question() -> None:
    provider, clock = Scripted(OLD), ManualClock(UNIX_S)

    async def test(keys: ProviderKeys) -> None:
        for _ in range(50):
            assert (await keys.find("old", "ES256")).id == "old"
        assert provider.num_asked == 1

    run(provider, clock, test)


def test_a_new_key_is_found_at_once_and_the_old_one_goes_with_the_set() -> None:
    provider, clock = Scripted(OLD), ManualClock(UNIX_S)

    async def test(keys: ProviderKeys) -> None:
        old = await keys.find("old", "ES256")
        clock.now_s += LEAST_REFETCH_S
        provider.keys_now = [NEW, OLD]
        assert (await keys.find("new", "ES256")).id == "new"
        assert keys.is_known(old)
        provider.keys_now = [NEW]
        await keys.refresh()
        assert not keys.is_known(old)
        assert await refusal(keys, "old") == (401, "invalid_token")

    run(provider, clock, test)


def test_unknown_keys_make_the_provider_work_now_and_then() -> None:
    provider, clock = Scripted(OLD), ManualClock(UNIX_S)

    async def test(keys: ProviderKeys) -> None:
        await keys.find("old", "ES256")
        for _ in range(3):
            clock.now_s += LEAST_REFETCH_S
            before = provider.num_asked
            found = await asyncio.gather(*(refusal(keys, f"key {number}") for number in range(100)))
            assert set(found) == {(401, "invalid_token")}
            assert provider.num_asked == before + 1
        clock.now_s += LEAST_REFETCH_S / 2
        await refusal(keys, "another")
        assert provider.num_asked == before + 1

    run(provider, clock, test)


def test_known_keys_outlive_the_provider_for_their_grace(caplog: pytest.LogCaptureFixture) -> None:
    provider, clock = Scripted(OLD), ManualClock(UNIX_S)
    caplog.set_level(logging.INFO)

    async def test(keys: ProviderKeys) -> None:
        old = await keys.find("old", "ES256")
        provider.keys_now = None
        for _ in range(3):
            await keys.refresh()
        clock.now_s += 4000
        assert keys.is_known(old)
        assert (await keys.find("old", "ES256")).id == "old"
        assert await refusal(keys, "new") == (401, "invalid_token")
        clock.now_s += 1
        assert await refusal(keys, "old") == (503, "unavailable")
        with pytest.raises(ApiError, match="their provider is away"):
            keys.is_known(old)
        provider.keys_now = [OLD]
        await keys.refresh()
        assert keys.is_known(old)

    run(provider, clock, test)
    assert [record.levelname for record in caplog.records if record.name == "trireme.gateway"] == ["WARNING", "INFO"]


def test_without_any_set_nobody_can_tell_and_nobody_waits() -> None:
    provider, clock = Scripted(), ManualClock(UNIX_S)
    provider.keys_now = None

    async def test(keys: ProviderKeys) -> None:
        for _ in range(20):
            assert await refusal(keys, "old") == (503, "unavailable")
        assert provider.num_asked == 1
        provider.keys_now = [OLD]  # asked again after a second
        async with asyncio.timeout(20):
            while True:
                try:
                    await keys.find("old", "ES256")
                    break
                except ApiError:
                    await asyncio.sleep(0.05)

    run(provider, clock, test)


def test_a_fault_of_ours_does_not_end_the_looks() -> None:
    class Broken(Scripted):
        async def keys(self) -> KeySet:
            if self.num_asked < 1:
                self.num_asked += 1
                raise RuntimeError("a fault")
            return await super().keys()

    async def test(keys: ProviderKeys) -> None:
        assert await refusal(keys, "old") == (503, "unavailable")
        await keys.refresh()
        assert (await keys.find("old", "ES256")).id == "old"

    run(Broken(OLD), ManualClock(UNIX_S), test)
