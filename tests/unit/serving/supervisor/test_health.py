# SPDX-License-Identifier: Apache-2.0
"""The answers to a probe in each phase of a server's life, with their reasons."""

import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from manual_clock import ManualClock

from serving.supervisor.health import MAX_SILENCE_S, Health, HealthServer, Phase
from trireme.base.errors import SpecError


def answers(health: Health) -> tuple[bool, bool, bool]:
    return health.live().is_yes, health.started().is_yes, health.ready().is_yes


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (["loading"], (True, False, False)),
        (["loading", "serving"], (True, True, True)),
        (["serving", "restarting"], (True, True, False)),
        (["serving", "restarting", "serving"], (True, True, True)),
        (["serving", "draining"], (True, True, False)),
    ],
)
def test_live_started_and_ready_in_each_phase(phases: list[Phase], expected: tuple[bool, bool, bool]) -> None:
    health = Health()
    for phase in phases:
        health.enter(phase)
    assert answers(health) == expected


def test_a_dead_engine_makes_it_unready_until_it_is_back() -> None:
    health = Health()
    health.enter("serving")

    health.note_dead_engines(["chat_tensorrt_llm"])
    assert answers(health) == (True, True, False)
    assert "chat_tensorrt_llm" in health.ready().why

    health.note_dead_engines([])
    assert answers(health) == (True, True, True)


@pytest.mark.parametrize("phase", ["loading", "serving", "restarting"])
def test_a_supervision_that_does_not_go_round_is_not_live(phase: Phase) -> None:
    clock = ManualClock()
    health = Health(clock)
    health.enter(phase)

    clock.now_s += MAX_SILENCE_S
    assert health.live().is_yes
    clock.now_s += 1
    assert not health.live().is_yes
    assert f"{MAX_SILENCE_S + 1:.0f} s" in health.live().why
    health.beat()
    assert health.live().is_yes


def test_an_end_may_take_as_long_as_its_streams() -> None:
    clock = ManualClock()
    health = Health(clock)
    health.enter("draining")
    clock.now_s += 10 * MAX_SILENCE_S
    assert health.live().is_yes


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


@pytest.fixture
def serving() -> Iterator[tuple[Health, int]]:
    health = Health()
    with contextlib.closing(HealthServer(health, "127.0.0.1", 0)) as server:
        yield health, server.port


def test_a_yes_is_200_and_a_no_is_503_with_the_reason(serving: tuple[Health, int]) -> None:
    health, port = serving
    assert ask(port, "/live") == (200, {"ok": True, "why": "loading"})
    assert ask(port, "/started") == (503, {"ok": False, "why": "loading"})
    assert ask(port, "/ready") == (503, {"ok": False, "why": "loading"})

    health.enter("serving")
    assert ask(port, "/ready?verbose") == (200, {"ok": True, "why": "serving"})


def test_another_path_is_told_which_there_are(serving: tuple[Health, int]) -> None:
    assert ask(serving[1], "/healthz") == (404, {"error": "there are /live, /started, /ready"})


def test_a_caller_that_says_nothing_keeps_nobody_waiting(serving: tuple[Health, int]) -> None:
    with socket.create_connection(("127.0.0.1", serving[1])):
        assert ask(serving[1], "/live")[0] == 200


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_ipv6_too() -> None:
    with contextlib.closing(HealthServer(Health(), "::1", 0)) as server:
        assert ask(server.port, "/live", "[::1]")[0] == 200


def test_a_port_that_is_taken_is_refused_by_name(serving: tuple[Health, int]) -> None:
    with pytest.raises(SpecError, match=rf"--health-port {serving[1]} on 127.0.0.1") as caught:
        HealthServer(Health(), "127.0.0.1", serving[1])
    assert caught.value.facts["field"] == "health_port"
