# SPDX-License-Identifier: Apache-2.0
"""A rollout moves the weights of the real Envoy, between two small gRPC servers, and no request fails."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from envoy_between import Between, Client, validate
from envoy_here import needs_envoy
from rollout_world import World

from clients.rollout.records.state import OperatorCommand, Phase
from clients.rollout.records.store import Store
from clients.rollout.weights.envoy_admin import weight_in_force
from clients.rollout.weights.envoy_file import EnvoyFile
from clients.rollout.weights.router import Router, owner_of
from trireme.commands import run_command

pytestmark = [pytest.mark.slow, needs_envoy]
LOG = logging.getLogger(__name__)  # pytest -o log_cli=true --log-cli-level=info


async def load(client: Client, stop: asyncio.Event, *, asked: int) -> tuple[int, list[str]]:
    """Send requests and streams until `stop`; none may fail. Return how many, and who answered each stream.

    Args:
        asked: the more, the more often.
    """
    streams: list[asyncio.Task[str]] = []
    num_asked = 0
    while not stop.is_set():
        streams.append(asyncio.create_task(client.stream()))
        num_asked += (await client.ask_often(asked // 50)).total()
        await asyncio.sleep(40 / asked)
    return num_asked, await asyncio.gather(*streams)


def configured(tmp_path: Path, between: Between, routes: Path) -> Path:
    config = tmp_path / "envoy.yaml"
    arguments = ["--format", "envoy", *between.options, "--routes-file", str(routes), "--out", str(config)]
    with pytest.raises(SystemExit) as ended:
        run_command("rollout", ["export", *arguments])
    assert ended.value.code == 0
    validate(config)
    return config


@pytest.mark.parametrize("end", [Phase.PROMOTED, Phase.ROLLED_BACK])
@pytest.mark.parametrize("asked", [500, pytest.param(2000, marks=pytest.mark.soak)])
def test_the_weights_of_a_rollout_move_without_a_failed_request(tmp_path: Path, end: Phase, asked: int) -> None:
    between, routes = Between(tmp_path), tmp_path / "routes.yaml"
    world = World(
        tmp_path, weights=f"envoy:{routes}", second_server="/b", second_url="b:1", lease_s=0.5, shares=(0.05, 0.5, 1.0)
    )
    found: list[float | None] = []

    def live(num_ticks: int) -> Phase:
        """Tick in a new life of the controller; a second of the rollout's clock passes with each tick."""
        weights = EnvoyFile(routes, salt=world.plan.salt, admins=[between.admin])
        with Store(world.path, world.now) as store:
            controller = world.controller(store, Router(weights, world.plan, world.number))
            for _ in range(num_ticks):
                rollout = controller.tick()
                found.append(weight_in_force(between.admin))
                world.now_s, world.num_requests = world.now_s + 1, world.num_requests + 6
                if rollout.phase.is_over:
                    return rollout.phase
                time.sleep(0.05)
            return store.get(world.number).phase

    async def run() -> None:
        stop = asyncio.Event()
        async with between.run(configured(tmp_path, between, routes)) as client:
            running = asyncio.create_task(load(client, stop, asked=asked))
            phase = await asyncio.to_thread(live, 3)
            assert phase is Phase.RUNNING
            phase = await asyncio.to_thread(live, 3)
            assert found[-1] == 5000
            halves = [asyncio.create_task(client.stream()) for _ in range(32)]  # a slow machine begins few by `load`
            half = await client.ask_often(asked)
            if end is Phase.PROMOTED:
                world.verdict = "pass"
            else:
                with Store(world.path) as store:
                    store.queue_command(world.number, OperatorCommand.ABORT, why="a person said so")
            while phase not in (Phase.PROMOTED, Phase.ROLLED_BACK):
                phase = await asyncio.to_thread(live, 20)  # and dies, and lives again
            assert phase is end
            await asyncio.sleep(0.3)  # what was on its way has arrived
            sent = between.candidate.num_requests
            assert await client.ask_often(asked) == {"stable": asked}
            stop.set()
            num_asked, streams = await running
            streams += await asyncio.gather(*halves)
            assert between.candidate.num_requests == sent
            assert abs(half["candidate"] / asked - 0.5) < 5 * 0.5 / asked**0.5  # 5 standard deviations
            assert {"stable", "candidate"} == set(streams)
            LOG.info("%d requests, %d streams, weights %s", num_asked + 2 * asked, len(streams), found)

    EnvoyFile(routes, salt=world.plan.salt).set(0, owner_of(world.plan, world.number))  # or Envoy does not start
    asyncio.run(run())
    assert [weight for weight, before in zip(found, [None, *found], strict=False) if weight != before] == (
        [0, 500, 5000, 10_000, 0] if end is Phase.PROMOTED else [0, 500, 5000, 0]
    )
    assert "Weights of" not in routes.read_text()
