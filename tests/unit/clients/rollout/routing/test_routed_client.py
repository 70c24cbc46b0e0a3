# SPDX-License-Identifier: Apache-2.0
"""A client that follows the rollout's split and reports outcomes; without the rollout, it uses the stable release."""

import asyncio
import json
import socket
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kept_outcomes import merge
from kserve_server import KServeServer, response, story

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.routing.routed_client import RoutedClient, Ticket
from clients.streaming import GenerateRequest
from ensemble_configs.split.places import place_of
from trireme.base.errors import RequestError, ServingError, Unavailable, format_token
from trireme.commands import run_command

REQUEST = GenerateRequest(text_input="hi", max_tokens=4)
LEASE_S = 30.0
KEY = next(key for key in map(str, range(100)) if place_of(key, "s") < 0.5)  # who is sent to the candidate at a half


class Rollout:
    """A rollout of release 2 beside release 1, at a share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        plan = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.25, 0.5), lease_s=LEASE_S, step_requests=1)
        with Store(path) as store:
            self.number = store.begin("chat", plan.text(), why="").id
        self.listen(0)

    def listen(self, port: int) -> None:
        self.front = RolloutApi(self.path, self.number, "", merge, host="127.0.0.1", port=port)

    def enter(self, phase: Phase, step: int = 0) -> None:
        with Store(self.path) as store:
            store.enter(self.number, phase, why="", step=step)

    def outcomes(self) -> list[dict[str, Any]]:
        with Store(self.path) as store:
            found = store.evidence(self.number, store.get(self.number).step) or {"outcomes": []}
        assert isinstance(found["outcomes"], list)
        return found["outcomes"]


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Rollout]:
    found = Rollout(tmp_path / "rollouts.sqlite")
    yield found
    found.front.close()


def ask(server: KServeServer, split_url: str, keys: Sequence[str | None], **times: float) -> list[str]:
    """Return the answers to requests sent one after the other."""

    async def run() -> list[str]:
        async with RoutedClient(server.url, split_url) as client:
            await asyncio.sleep(times.get("before_s", 0))
            return ["".join([chunk.text async for chunk in client.generate(REQUEST, key=key)]) for key in keys]

    return asyncio.run(run())


def models(server: KServeServer) -> list[str]:
    return [request.model_name for request in server.requests]


def test_requests_go_by_share_and_their_outcomes_come_back(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING)
    with KServeServer(*story()) as server:
        assert ask(server, rollout.front.url, [None] * 40) == ["Once upon ünd"] * 40
        assert 9 <= models(server).count("ensemble_canary") <= 11
    outcomes = rollout.outcomes()
    assert {one["arm"] for one in outcomes} == {"candidate", "baseline"}
    assert abs(len(outcomes) - 20) <= 2, "what is neither is not compared"
    for one in outcomes:
        assert (one["num_tokens"], one["finish_reason"], one.get("error", "")) == (4, "length", "")
        assert 0 < one["ttft_ms"] <= one["e2e_ms"]


def test_a_batch_that_is_refused_does_not_hold_up_the_next(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with KServeServer(*story()) as server:

        async def run() -> None:
            async with RoutedClient(server.url, rollout.front.url) as client:
                client._link._pending[b'{"rollout": 1, "outcomes": []}'] = (
                    time.monotonic()
                )  # of another version of this client
                await _one(client)

        asyncio.run(run())
    assert len(rollout.outcomes()) == 1


def test_a_batch_that_the_rollout_stumbles_over_does_not_hold_up_the_next(
    rollout: Rollout, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    count = rollout.front.count
    monkeypatch.setattr(rollout.front, "count", lambda body: 1 / 0 if b"strange" in body else count(body))
    with KServeServer(*story()) as server:

        async def run() -> None:
            async with RoutedClient(server.url, rollout.front.url) as client:
                client._link._pending[b"strange"] = time.monotonic()
                await _one(client)
                await client._link._flush()
                assert list(client._link._pending) == [b"strange"]

        asyncio.run(run())
    assert len(rollout.outcomes()) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_key_stays_with_its_release(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING)
    keys = [f"user {number}" for number in range(12)]
    with KServeServer(*story()) as server:
        ask(server, rollout.front.url, [*keys, *keys])
        sent = models(server)
    assert sent[:12] == sent[12:]
    assert set(sent) == {"ensemble", "ensemble_canary"}


def test_the_share_follows_the_rollout_while_clients_run(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with KServeServer(*story()) as server:

        async def run() -> None:
            async with RoutedClient(server.url, rollout.front.url) as client:
                await _one(client)
                rollout.enter(Phase.ROLLING_BACK)
                async with asyncio.timeout(LEASE_S):
                    while client.ticket(REQUEST, key=KEY).to.model == "ensemble_canary":
                        await asyncio.sleep(0.02)
                await _one(client)

        asyncio.run(run())
        assert models(server) == ["ensemble_canary", "ensemble"]


async def _one(client: RoutedClient) -> str:
    return "".join([chunk.text async for chunk in client.generate(REQUEST, key=KEY)])


def test_without_word_for_a_lease_all_go_to_the_stable_release(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    now_s = [1000.0]
    with KServeServer(*story()) as server:

        async def run() -> None:
            async with RoutedClient(server.url, rollout.front.url, clock=lambda: now_s[0]) as client:
                await _one(client)
                await asyncio.to_thread(rollout.front.close)
                now_s[0] += 1.5 * LEASE_S
                await _one(client)

        asyncio.run(run())
        assert models(server) == ["ensemble_canary", "ensemble"]


def half_an_answer(listener: socket.socket, num_times: int) -> None:
    """Answer each connection with half a response, like a rollout that is killed."""
    for _ in range(num_times):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")


def test_a_rollout_that_dies_while_it_answers_is_asked_again(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    port = int(rollout.front.url.rsplit(":", 1)[1])
    rollout.front.close()
    with socket.create_server(("127.0.0.1", port)) as listener, KServeServer(*story()) as server:

        async def run() -> list[str]:
            dying = asyncio.create_task(asyncio.to_thread(half_an_answer, listener, 3))
            async with RoutedClient(server.url, rollout.front.url) as client:
                await _one(client)
                await dying
                listener.close()
                rollout.listen(port)
                async with asyncio.timeout(10):
                    while client.ticket(REQUEST, key=KEY).to.model == "ensemble":
                        await asyncio.sleep(0.02)
                await _one(client)
            return models(server)

        assert asyncio.run(run()) == ["ensemble", "ensemble_canary"]


@pytest.mark.parametrize("url", ["127.0.0.1:8010", "ftp://host", "http://", "http://host:port", "http://host:0"])
def test_what_is_no_url_is_said_at_once(url: str) -> None:
    with pytest.raises(RequestError, match="split_url must be where a rollout answers"):
        RoutedClient("localhost:8001", url)


def test_an_answer_of_no_length_is_told_and_voids_nothing(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    batch = {"rollout": 1, "step": 1, "batch": "x", "outcomes": [{"arm": "candidate", "ttft_ms": 0, "tpot_ms": 0}]}
    with urllib.request.urlopen(f"{rollout.front.url}/outcomes", data=json.dumps(batch).encode(), timeout=5) as answer:
        assert json.load(answer) == {"is_counted": True}
    assert len(rollout.outcomes()) == 1


def test_a_rollout_listens_on_ipv6_too(rollout: Rollout) -> None:
    rollout.front.close()
    rollout.front = RolloutApi(rollout.path, rollout.number, "", merge, host="::1", port=0)
    with urllib.request.urlopen(f"{rollout.front.url}/split", timeout=5) as answer:
        assert json.load(answer)["rollout"] == 1


def test_nobody_there_is_the_stable_release(tmp_path: Path) -> None:
    with KServeServer(*story()) as server:
        assert ask(server, "http://127.0.0.1:9", [None]) == ["Once upon ünd"]
        assert models(server) == ["ensemble"]
    assert not list(tmp_path.iterdir())


def fails_on_canary(*before: object) -> Callable[[Any], list[Any]]:
    text = f"{format_token('UNAVAILABLE', {'reason': 'leaving'})} it goes"
    return lambda request: [*before, text] if request.model_name == "ensemble_canary" else story()


def test_what_the_candidate_cannot_take_the_stable_release_answers(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with KServeServer(fails_on_canary()) as server:
        assert ask(server, rollout.front.url, [KEY]) == ["Once upon ünd"]
        assert models(server) == ["ensemble_canary", "ensemble"]
    [outcome] = rollout.outcomes()
    assert (outcome["arm"], outcome["error"]) == ("candidate", "UNAVAILABLE")


def test_after_its_first_text_a_request_is_not_answered_by_another_release(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with KServeServer(fails_on_canary(response("Once", num_output_tokens=1))) as server:
        with pytest.raises(Unavailable):
            ask(server, rollout.front.url, [KEY])
        assert models(server) == ["ensemble_canary"]
    [outcome] = rollout.outcomes()
    assert outcome["error"] == "UNAVAILABLE"


def test_a_request_that_is_wrong_is_refused_once(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    text = f"{format_token('INVALID_ARG', {'field': 'top_p'})} no"
    with KServeServer(text) as server:
        with pytest.raises(ServingError):
            ask(server, rollout.front.url, [KEY])
        assert models(server) == ["ensemble_canary"]


def test_the_command_goes_by_the_rollout(rollout: Rollout, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with KServeServer(*story()) as server:
        with pytest.raises(SystemExit) as caught:
            run_command("generate", ["hi", "--url", server.url, "--split-url", rollout.front.url, "--key", KEY])
        assert caught.value.code == 0
        assert models(server) == ["ensemble_canary"]
    assert capfdbinary.readouterr().out.decode() == "Once upon ünd\n"
    assert [outcome["arm"] for outcome in rollout.outcomes()] == ["candidate"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--key", "me"], "--key is for --split-url"),
        (["--split-url", "http://localhost:1", "--release", "2"], "leave --release out"),
        (["--split-url", "localhost:1"], "such as http://localhost:8010"),
        (["--split-token-file", "key"], "--split-token-file is for --split-url"),
        (["--split-url", "https://localhost:1", "--split-ca-file", "/no/ca"], "/no/ca cannot be read"),
    ],
)
def test_the_command_refuses_two_ways_at_once(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_command("generate", ["hi", *options])
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err


def test_looping_and_empty_answers_are_told(rollout: Rollout) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    for text in ("", "the same words over and over. " * 8):
        with KServeServer(response(text, num_output_tokens=40, finish_reason="stop", final=True)) as server:
            ask(server, rollout.front.url, [KEY])
    empty, looping = rollout.outcomes()
    assert (empty.get("is_empty"), empty.get("is_looping")) == (True, None)
    assert (looping.get("is_empty"), looping.get("is_looping")) == (None, True)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/else", None, 404),
        ("/outcomes", b"{", 400),
        ("/outcomes", b'{"rollout": 1, "step": 0, "batch": "x", "outcomes": [{"arm": 3}]}', 400),
        ("/outcomes", b'{"rollout": 1, "step": 0, "batch": "x", "outcomes": [], "more": 1}', 400),
        ("/outcomes", b'{"rollout": 1, "step": 7, "batch": "x", "outcomes": []}', 400),
        ("/outcomes", b'{"rollout": 1, "step": -1, "batch": "x", "outcomes": []}', 400),
        ("/outcomes", b'{"rollout": 1, "step": 99999999999999999999, "batch": "x", "outcomes": []}', 400),
        *(
            ("/outcomes", b'{"rollout": 1, "step": 0, "batch": "x", "outcomes": [{"arm": %s}]}' % arm, 400)
            for arm in (
                b'"release 2"',
                b'"candidate", "prompt": "p", "score": 1.0',
                b'"candidate", "ttft_ms": -1.0',
                b'"candidate", "ttft_ms": 1e300',
                b'"candidate", "num_tokens": 1e12',
                b'"candidate", "error": "%s"' % (b"x" * 65),
            )
        ),
        ("/split", b"{}", 404),
    ],
)
def test_what_is_sent_wrongly_is_refused(rollout: Rollout, path: str, body: bytes | None, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(rollout.front.url + path, data=body, timeout=5)
    with caught.value as error:
        assert error.code == status
        assert json.load(error)["error"]
    assert rollout.outcomes() == []


def test_who_goes_before_the_answer_is_no_error_of_the_rollout(
    rollout: Rollout, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    address = ("127.0.0.1", urllib.parse.urlsplit(rollout.front.url).port)
    for _ in range(5):
        with socket.create_connection(address) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets it
            gone.sendall(b"GET /split?client=x HTTP/1.1\r\n\r\n" * 50)
    with urllib.request.urlopen(f"{rollout.front.url}/split", timeout=5) as answer:
        assert json.load(answer)["rollout"] == 1
    time.sleep(0.2)
    assert capfd.readouterr().err == ""
    assert caplog.messages == []


@pytest.mark.parametrize("key", [KEY, None])
def test_what_a_user_thought_is_told_of_the_arm_that_answered(rollout: Rollout, key: str | None) -> None:
    rollout.enter(Phase.RUNNING, step=1)
    with KServeServer(*story()) as server:

        async def run() -> str:
            async with RoutedClient(server.url, rollout.front.url) as client:
                ticket = client.ticket(REQUEST, key=key)
                kept = msgspec.json.decode(msgspec.json.encode(ticket), type=Ticket)
                assert kept == ticket
                assert "".join([chunk.text async for chunk in client.generate(REQUEST, ticket=kept)])
                client.feedback(kept, is_disliked=True)
                client.feedback(msgspec.structs.replace(kept, rollout=99), is_disliked=True)
                return kept.to.arm

        arm = asyncio.run(run())
    request, said = rollout.outcomes()
    assert (request["arm"], request.get("is_disliked")) == (arm, None)
    assert said == {"arm": arm, "is_disliked": True, "is_feedback": True, **({"unit": request["unit"]} if key else {})}
