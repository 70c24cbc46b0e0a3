# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout export --format envoy` on the real Envoy, between two small gRPC servers."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from envoy_between import Between, Client, validate
from envoy_here import needs_envoy

from trireme.commands import run_command

pytestmark = [pytest.mark.slow, needs_envoy]


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


@pytest.mark.parametrize(
    ("number", "points"), [(2_000, 3.16), pytest.param(20_000, 1, marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_requests_meet_the_share_within_some_points(
    tmp_path: Path, between: Between, number: int, points: float
) -> None:
    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--share", "10")) as client:
            found = await client.ask_often(number)
            assert found.total() == number
            assert abs(found["candidate"] / number - 0.10) < points / 100  # 4.7 standard deviations
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


def keys_at(folder: Path, *args: str, number: int) -> set[int]:
    async def run() -> set[int]:
        between = Between(folder)
        async with between.run(config_at(folder, between, *args)) as client:
            return await of_keys(client, number)

    return asyncio.run(run())


@pytest.fixture(scope="module", params=[400, pytest.param(2000, marks=pytest.mark.soak)], ids=["few", "many"])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory, number: int) -> set[int]:
    return keys_at(tmp_path_factory.mktemp("quarter"), "--share", "25", "--salt", "a1", number=number)


def test_keys_stay_and_only_move_into_the_candidate_as_its_share_grows(
    tmp_path: Path, quarter: set[int], number: int
) -> None:
    few, all_ = (keys_at(tmp_path, "--share", share, "--salt", "a1", number=number) for share in ("5", "100"))
    assert few < quarter < all_
    assert len(all_) == number
    for found, share in ((few, 0.05), (quarter, 0.25)):
        assert abs(len(found) / number - share) < 4 * (share * (1 - share) / number) ** 0.5


def test_another_salt_takes_other_keys(tmp_path: Path, quarter: set[int], number: int) -> None:
    other = keys_at(tmp_path, "--share", "25", "--salt", "b2", number=number)
    assert 0.15 < len(quarter & other) / len(quarter) < 0.35  # a quarter by chance, all if the salt did nothing


def test_what_is_no_grpc_is_not_found(tmp_path: Path, between: Between) -> None:
    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--share", "50")):
            reader, writer = await asyncio.open_connection(*between.listen.split(":"))
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
            writer.close()

    asyncio.run(run())


def test_a_broken_routes_file_is_what_the_test_would_see(tmp_path: Path, between: Between) -> None:
    routes = tmp_path / "routes.yaml"
    export("--format", "envoy-routes", "--share", "0", "--out", str(routes))
    routes.write_text(routes.read_text().replace("name: stable\n", "name: missing\n", 1))

    async def run() -> None:
        async with between.run(config_at(tmp_path, between, "--routes-file", str(routes))) as client:
            with pytest.raises(grpc.aio.AioRpcError):
                await client.ask()

    asyncio.run(run())
