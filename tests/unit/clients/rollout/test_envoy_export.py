# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout export --format envoy` on the real Envoy, between two small gRPC servers."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest
from envoy_between import Between, Client, validate
from envoy_here import needs_envoy

from clients.rollout.records.file_lock import alone
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from trireme.commands import run_command

pytestmark = [pytest.mark.slow, needs_envoy]
RDS = "http.trireme.rds.trireme.update_success"
LEASE_S = 2.0
LOG = logging.getLogger(__name__)  # pytest -o log_cli=true --log-cli-level=info


def export(*args: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command("rollout", ["export", *args])
    assert ended.value.code == 0


@pytest.fixture
def between(tmp_path: Path) -> Between:
    return Between(tmp_path)


def config_at(tmp_path: Path, between: Between, *args: str) -> Path:
    config = tmp_path / "envoy.yaml"
    export("--format", "envoy", *between.options, "--out", str(config), *args)
    validate(config)
    return config


def test_twenty_thousand_requests_meet_the_share_within_a_point(tmp_path: Path, between: Between) -> None:
    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--share", "10")) as client:
            found = await client.ask_often(20_000)
            assert found.total() == 20_000
            assert abs(found["candidate"] / 20_000 - 0.10) < 0.01  # 4.7 standard deviations
            assert between.candidate.num_requests == found["candidate"]

    asyncio.run(run())


def test_a_header_pins_a_request_whatever_the_share(tmp_path: Path, between: Between) -> None:
    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--share", "0")) as client:
            assert await client.ask_often(200) == {"stable": 200}
            for release in ("candidate", "stable"):
                pin = [("x-trireme-release", release)]
                assert await client.ask_often(50, pin) == {release: 50}
                assert await client.stream(pin) == release
            assert await client.ask_often(50, [("x-trireme-release", "another")]) == {"stable": 50}

    asyncio.run(run())


async def of_keys(client: Client, number: int) -> set[int]:
    """Return the keys that the candidate answers; each is asked twice."""
    headers = [[("x-trireme-key", f"user-{key}")] for key in range(number)]
    found = [await client.ask_each(headers) for _ in range(2)]
    assert found[0] == found[1]
    return {key for key, name in enumerate(found[0]) if name == "candidate"}


def keys_at(tmp_path: Path, *args: str, number: int = 2000) -> set[int]:
    async def run() -> set[int]:
        between = Between(tmp_path)
        async with between.run(config_at(tmp_path, between, *args)) as client:
            return await of_keys(client, number)

    return asyncio.run(run())


def test_keys_stay_and_only_move_into_the_candidate_as_its_share_grows(tmp_path: Path) -> None:
    at = {share: keys_at(tmp_path, "--share", share, "--salt", "a1") for share in ("5", "25", "100")}
    assert at["5"] < at["25"] < at["100"]
    assert len(at["100"]) == 2000
    assert abs(len(at["5"]) / 2000 - 0.05) < 0.02  # 4 standard deviations
    assert abs(len(at["25"]) / 2000 - 0.25) < 0.04


def test_another_salt_takes_other_keys(tmp_path: Path) -> None:
    one, other = (keys_at(tmp_path, "--share", "25", "--salt", salt) for salt in ("a1", "b2"))
    assert 0.15 < len(one & other) / len(one) < 0.35  # a quarter by chance, all if the salt did nothing


def test_what_is_no_grpc_is_not_found(tmp_path: Path, between: Between) -> None:
    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--share", "50")):
            reader, writer = await asyncio.open_connection(*between.listen.split(":"))
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
            writer.close()

    asyncio.run(run())


class Rollout:
    """A rollout in a store, driven by this process as long as `driving` holds."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "rollouts.sqlite"
        self.routes = folder / "routes.yaml"
        plan = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.05, 0.25, 0.5, 1.0), lease_s=LEASE_S)
        with Store(self.store) as store:
            self.number = store.begin("chat", plan.text(), why="").id
        self.driving = contextlib.ExitStack()
        self.drive()

    def drive(self) -> None:
        self.driving.enter_context(alone(self.store))

    def enter(self, phase: Phase, step: int = 0) -> None:
        with Store(self.store) as store:
            store.enter(self.number, phase, why="", step=step)

    @contextlib.contextmanager
    def followed(self) -> Iterator[subprocess.Popen[str]]:
        """Run the export command with `--follow`, as a user starts it."""
        arguments = ["--format", "envoy-routes", "--store", str(self.store), "--out", str(self.routes), "--follow"]
        command = [sys.executable, "-m", "trireme", "rollout", "export", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: self.routes.exists() or process.poll() is not None)
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield process
        finally:
            process.terminate()
            process.wait(20)
            assert process.stderr
            process.stderr.close()

    def says(self, share: str) -> bool:
        return f"now {share} %" in self.routes.read_text()


def until(is_so: Callable[[], bool], timeout_s: float = 20.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Rollout]:
    found = Rollout(tmp_path)
    with found.driving:
        yield found


async def load(client: Client, stop: asyncio.Event) -> tuple[int, list[str]]:
    """Send requests and streams until `stop`; return the number of requests, and the answering release of each stream.

    None may fail.
    """
    streams: list[asyncio.Task[str]] = []
    num_asked = 0
    while not stop.is_set():
        streams.append(asyncio.create_task(client.stream()))
        num_asked += (await client.ask_often(40)).total()
    return num_asked, await asyncio.gather(*streams)


def test_the_share_changes_under_load_without_a_failed_request_or_a_broken_stream(
    tmp_path: Path, between: Between, rollout: Rollout
) -> None:
    async def moved(change: Callable[[], None]) -> float:
        """Return the seconds until Envoy has the rollout's share."""
        before, since_s = await asyncio.to_thread(between.statistic, RDS), time.monotonic()
        change()
        while await asyncio.to_thread(between.statistic, RDS) == before:
            assert time.monotonic() < since_s + 20
            await asyncio.sleep(0.02)
        return time.monotonic() - since_s

    async def run() -> None:
        config = config_at(tmp_path, between, "--routes-file", str(rollout.routes))
        stop = asyncio.Event()
        async with between.run(config) as client:
            running = asyncio.create_task(load(client, stop))
            five = await client.ask_often(3000)
            took = [await moved(lambda: rollout.enter(Phase.RUNNING, step=1))]
            twenty_five = await client.ask_often(3000)
            took.append(await moved(lambda: rollout.enter(Phase.ROLLING_BACK, step=1)))
            await asyncio.sleep(0.5)  # what was on its way has arrived
            sent = between.candidate.num_requests
            assert await client.ask_often(2000) == {"stable": 2000}
            stop.set()
            num_asked, streams = await running
            assert between.candidate.num_requests == sent  # nothing more, and its streams ended there, whole
            assert abs(five["candidate"] / 3000 - 0.05) < 0.02  # 5 standard deviations
            assert abs(twenty_five["candidate"] / 3000 - 0.25) < 0.04
            assert {"stable", "candidate"} == set(streams)
            LOG.info("%d requests, %d streams, seconds until a change holds: %s", num_asked + 8000, len(streams), took)
            assert max(took) < LEASE_S

    rollout.enter(Phase.RUNNING, step=0)
    with rollout.followed():
        validated = tmp_path / "inline.yaml"
        export("--format", "envoy", *between.options, "--out", str(validated), "--store", str(rollout.store))
        validate(validated)
        asyncio.run(run())


def test_a_promoted_candidate_keeps_all_requests_and_the_follower_ends(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=2)
    with rollout.followed() as follower:
        assert rollout.says("50")
        rollout.enter(Phase.PROMOTING, step=2)
        until(lambda: rollout.says("100"))
        rollout.enter(Phase.SETTLING, step=2)
        rollout.enter(Phase.PROMOTED, step=2)
        assert follower.wait(20) == 0
        assert rollout.says("100")
        assert follower.stderr
        assert [line.split(": ")[1] for line in follower.stderr.read().splitlines()] == [
            "50 % to the candidate (running)",
            "100 % to the candidate (promoting)",
        ]


def test_a_rollout_that_nobody_drives_takes_no_new_requests(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with rollout.followed() as follower:
        assert rollout.says("25")
        since_s = time.monotonic()
        rollout.driving.close()  # as if its process were killed
        until(lambda: rollout.says("0"))
        assert time.monotonic() - since_s < 2 * LEASE_S
        rollout.drive()
        until(lambda: rollout.says("25"))
        rollout.enter(Phase.ROLLED_BACK)
        assert follower.wait(20) == 0
        assert rollout.says("0")


def test_a_broken_routes_file_is_what_the_test_would_see(tmp_path: Path, between: Between) -> None:
    routes = tmp_path / "routes.yaml"
    export("--format", "envoy-routes", "--share", "0", "--out", str(routes))
    routes.write_text(routes.read_text().replace("name: stable\n", "name: missing\n", 1))

    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--routes-file", str(routes))) as client:
            with pytest.raises(grpc.aio.AioRpcError):
                await client.ask()

    asyncio.run(run())
