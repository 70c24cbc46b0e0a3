# SPDX-License-Identifier: Apache-2.0
"""Shadow requests: copies go to the candidate, their answers to nobody; no user waits for one."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kept_outcomes import merge
from kserve_server import HANG, KServeServer, response, story

from clients.rollout.recent_clients import RecentClients
from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.routing.routed_client import RoutedClient
from clients.streaming import GenerateRequest

pytestmark = pytest.mark.slow

REQUEST = GenerateRequest(text_input="hi", max_tokens=4)
LEASE_S = 30.0
Script = Callable[[Any], list[Any]]


class Shadow:
    """A rollout that copies every request."""

    def __init__(self, path: Path, max_copies: int) -> None:
        self._path = path
        plan = Plan(
            mode=Mode.SHADOW,
            candidate=2,
            stable=1,
            release={},
            salt="s",
            shares=(1.0,),
            lease_s=LEASE_S,
            max_copies=max_copies,
        )
        with Store(path) as store:
            self._number = store.begin("chat", plan.text(), why="").id
            store.enter(self._number, Phase.RUNNING, why="", step=0)
        self.front = RolloutApi(path, self._number, "", merge, host="127.0.0.1", port=0)

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return the last outcome of each arm."""
        with Store(self._path) as store:
            found: Any = store.evidence(self._number, 0) or {"outcomes": []}
        return {one["arm"]: one for one in found["outcomes"]}


@pytest.fixture
def shadow(tmp_path: Path) -> Iterator[Shadow]:
    found = Shadow(tmp_path / "rollouts.sqlite", max_copies=2)
    with contextlib.closing(found.front):
        yield found


def candidate(*steps: Any) -> Script:
    return lambda request: list(steps) if request.model_name == "ensemble_canary" else story()


def models(server: KServeServer) -> list[str]:
    return sorted(request.model_name for request in server.requests)


async def text_of(client: RoutedClient, request: GenerateRequest = REQUEST) -> str:
    return "".join([chunk.text async for chunk in client.generate(request)])


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("copy", "agreement"),
    [(story(), 1.0), ([response("Once more", num_output_tokens=2, finish_reason="stop", final=True)], 5 / 13)],
    ids=["the same text", "another"],
)
def test_both_are_told_of_and_the_user_gets_one(shadow: Shadow, copy: list[Any], agreement: float) -> None:
    with KServeServer(candidate(*copy)) as server:

        async def run() -> None:
            async with RoutedClient(server.url, shadow.front.url) as client:
                assert await text_of(client) == "Once upon ünd"
                await until(lambda: len(shadow.outcomes()) == 2)

        asyncio.run(run())
        assert models(server) == ["ensemble", "ensemble_canary"]
    found = shadow.outcomes()
    assert found["candidate"]["agreement"] == pytest.approx(agreement)
    assert "agreement" not in found["baseline"]


def test_texts_that_are_drawn_by_lot_are_not_compared(shadow: Shadow) -> None:
    sampled = msgspec.structs.replace(REQUEST, top_p=0.9)
    with KServeServer(*story()) as server:

        async def run() -> None:
            async with RoutedClient(server.url, shadow.front.url) as client:
                await text_of(client, sampled)
                await until(lambda: len(shadow.outcomes()) == 2)

        asyncio.run(run())
    assert "agreement" not in shadow.outcomes()["candidate"]


def test_a_candidate_that_hangs_holds_nobody_up_and_takes_no_more_than_it_may(shadow: Shadow) -> None:
    with KServeServer(candidate(HANG)) as server:

        async def run() -> None:
            async with RoutedClient(server.url, shadow.front.url) as client:
                begun_s = time.monotonic()
                for _ in range(5):
                    assert await text_of(client) == "Once upon ünd"
                assert time.monotonic() - begun_s < 5
                await until(lambda: models(server).count("ensemble_canary") == 2)

        asyncio.run(run())
        assert models(server).count("ensemble") == 5
        assert models(server).count("ensemble_canary") == 2
    assert shadow.outcomes() == {}, "only pairs are compared"


def test_a_copy_that_takes_too_long_is_the_candidates_error(shadow: Shadow) -> None:
    with KServeServer(candidate(HANG)) as server:

        async def run() -> None:
            async with RoutedClient(server.url, shadow.front.url) as client:
                chunks = client.generate(REQUEST, timeout_s=0.5)
                assert "".join([chunk.text async for chunk in chunks]) == "Once upon ünd"
                await until(lambda: len(shadow.outcomes()) == 2)

        asyncio.run(run())
    found = shadow.outcomes()
    assert found["candidate"]["error"] == "DEADLINE"
    assert "error" not in found["baseline"]


def test_what_its_user_leaves_is_left_by_the_copy(shadow: Shadow) -> None:
    with KServeServer(lambda _: [response("Once", num_output_tokens=1), HANG]) as server:

        async def run() -> None:
            async with RoutedClient(server.url, shadow.front.url) as client:
                async with contextlib.aclosing(client.generate(REQUEST)) as chunks:
                    assert (await anext(chunks)).text == "Once"
                assert await asyncio.to_thread(server.was_cancelled.wait, 5)

        asyncio.run(run())
    assert shadow.outcomes() == {}


def test_copies_are_divided_among_the_clients_that_ask() -> None:
    now_s = [0.0]
    clients = RecentClients(lambda: now_s[0])
    assert clients.part("a", 5, lease_s=3) == 5
    assert clients.part("b", 5, lease_s=3) == 2
    assert clients.part("a", 5, lease_s=3) == 3
    now_s[0] = 2.0
    clients.part("a", 5, lease_s=3)
    now_s[0] = 4.0
    assert clients.part("", 5, lease_s=3) == 0, "who has no name has no part"
    assert clients.part("a", 5, lease_s=3) == 5, "who has not asked for a lease is gone"
