# SPDX-License-Identifier: Apache-2.0
"""Responses over a WebSocket, by OpenAI's official client, before a scripted server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kserve_server import HANG, KServeServer, response, story
from running_gateway import RunningGateway
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from gateway.access.key_book import POLL_S
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore

TEXT = "Once upon ünd"


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(*story()) as running:
        yield running


@pytest.fixture
def gateway(server: KServeServer) -> Iterator[RunningGateway]:
    with RunningGateway(server.url) as running:
        yield running


def socket_url(gateway: RunningGateway) -> str:
    return gateway.url.replace("http://", "ws://") + "/responses"


def told(connection: Any) -> list[dict[str, Any]]:
    """Return the events up to the end of one response."""
    events = []
    while True:
        events.append(json.loads(connection.recv(timeout=10)))
        if events[-1]["type"] in {"response.completed", "response.incomplete", "response.failed", "error"}:
            return events


def messages_sent(server: KServeServer) -> list[dict[str, Any]]:
    message = server.requests[-1]
    sent = dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))
    found: list[dict[str, Any]] = json.loads(sent["messages"][4:])
    return found


def test_the_official_client_holds_a_conversation(gateway: RunningGateway, server: KServeServer) -> None:
    from openai import OpenAI

    with OpenAI(base_url=gateway.url, api_key="none") as client, client.responses.connect() as connection:
        connection.response.create(model="demo", input="Hi")
        texts, last_id = [], ""
        for event in connection:
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
            if event.type == "response.incomplete":  # the script ends for its length
                last_id = event.response.id
                break
        assert "".join(texts) == TEXT
        connection.response.create(model="demo", input="And then?", previous_response_id=last_id)
        for event in connection:
            if event.type == "response.incomplete":
                break
    assert [(one["role"], one["content"]) for one in messages_sent(server)] == [
        ("user", "Hi"), ("assistant", TEXT), ("user", "And then?"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("nonsense", "invalid_json", None),
        ('{"input": "Hi"}', "invalid_value", "type"),
        ('{"type": "response.create", "input": []}', "invalid_value", "input"),
        (
            '{"type": "response.create", "input": "Hi", "previous_response_id": "resp_other"}',
            "previous_response_not_found",
            "previous_response_id",
        ),
        ('{"type": "response.create", "input": "Hi", "model": "gpt-5"}', "model_not_found", "model"),
    ],
    ids=["no JSON", "no type", "no input", "another's response", "no such model"],
)
def test_a_message_that_is_wrong_is_told_so_and_the_next_is_answered(
    gateway: RunningGateway, message: str, code: str, param: str | None
) -> None:
    with connect(socket_url(gateway)) as connection:
        connection.send(message)
        [error] = told(connection)
        assert (error["type"], error["error"]["code"], error["error"]["param"]) == ("error", code, param)
        connection.send('{"type": "response.create", "input": "Hi"}')
        assert told(connection)[-1]["type"] == "response.incomplete"


def test_what_fails_at_the_server_ends_its_response_alone(gateway: RunningGateway, server: KServeServer) -> None:
    with connect(socket_url(gateway)) as connection:
        server.script = ("[UNAVAILABLE reason=engine_died] the engine has died",)
        connection.send('{"type": "response.create", "input": "Hi"}')
        names = [event["type"] for event in told(connection)]
        assert names[-1] == "error"
        assert json.loads(connection.recv(timeout=10))["type"] == "response.failed"
        server.script = tuple(story())
        connection.send('{"type": "response.create", "input": "Hi"}')
        assert told(connection)[-1]["type"] == "response.incomplete"


def test_a_caller_who_leaves_ends_the_request_on_the_server() -> None:
    with KServeServer(response("Once"), HANG) as server, RunningGateway(server.url) as gateway:
        with connect(socket_url(gateway)) as connection:
            connection.send('{"type": "response.create", "input": "Hi"}')
            while json.loads(connection.recv(timeout=10))["type"] != "response.output_text.delta":
                pass
        assert server.was_cancelled.wait(10)


def test_the_end_of_the_gateway_is_told(gateway: RunningGateway) -> None:
    with connect(socket_url(gateway)) as connection:
        gateway.stop()
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


def test_a_plain_get_is_told_to_post(gateway: RunningGateway) -> None:
    answer = gateway.call("GET", "/v1/responses")
    assert (answer.status, answer.json["error"]["code"]) == (405, "method_not_allowed")


def test_a_key_that_is_revoked_is_refused_on_the_connection_that_it_opened(
    server: KServeServer, tmp_path: Path
) -> None:
    with KeyStore(tmp_path / "keys.sqlite") as store, RunningGateway(server.url, keys=store) as gateway:
        key = store.create(NewKey("alice"))
        headers = {"Authorization": f"Bearer {key.text}"}
        with connect(socket_url(gateway), additional_headers=headers) as connection:
            connection.send('{"type": "response.create", "input": "Hi"}')
            assert told(connection)[-1]["type"] == "response.incomplete"
            store.revoke("alice")
            time.sleep(2 * POLL_S)  # the promised second
            connection.send('{"type": "response.create", "input": "Hi"}')
            [error] = told(connection)
            assert (error["status"], error["error"]["code"]) == (401, "key_revoked")
        with pytest.raises(InvalidStatus):
            connect(socket_url(gateway), additional_headers=headers)
