# SPDX-License-Identifier: Apache-2.0
"""APIs elsewhere that are not like ours: slow, silent, half-finished, refusing; and what is sent to them."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kserve_server import KServeServer
from other_api import DONE, OtherApi, said
from running_gateway import Answer, RunningGateway

from ensemble_configs.spec.gateway_spec import (
    FallbackSpec,
    FallbackStepSpec,
    GatewaySpec,
    ManagedApiSpec,
    TenantSpec,
)
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.gateway import Limits
from gateway.served_models import ServedModel

DOWN = "[UNAVAILABLE reason=engine_restarting] the engine starts"
LARGE = ServedModel("large", "ensemble", 100)


class Asking:
    """A gateway whose model is down, and a key of a tenant that may be answered elsewhere."""

    def __init__(self, gateway: RunningGateway, key: str) -> None:
        self._gateway, self._key = gateway, key

    def ask(self, **fields: Any) -> Answer:
        return self._gateway.chat_with(self._key, **fields)

    def ask_anthropic(self, **fields: Any) -> Answer:
        body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return self._gateway.call("POST", "/v1/messages", body, **{"x-api-key": self._key})


@contextlib.contextmanager
def before(folder: Path, api: OtherApi, *script: Any, timeout_s: float = 60.0, **step: Any) -> Iterator[Asking]:
    rules = GatewaySpec(
        tenants=(TenantSpec(name="open", fallbacks=("elsewhere",)),),
        fallbacks=(FallbackSpec(model="large", steps=(FallbackStepSpec(api="elsewhere", **step),)),),
        managed_apis=(ManagedApiSpec(name="elsewhere", url=api.url, model="theirs", silence_s=5.0),),
    )
    limits = Limits(timeout_s=timeout_s, exit_timeout_s=2.0)
    with (
        KServeServer(*(script or (DOWN,))) as server,
        KeyStore(folder / "keys.sqlite") as keys,
        RunningGateway(server.url, models=(LARGE,), keys=keys, rules=rules, limits=limits) as gateway,
    ):
        yield Asking(gateway, keys.create(NewKey("alice", tenant="open")).text)


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_an_api_that_leaves_its_connection_open_has_answered(tmp_path: Path, *, is_streaming: bool) -> None:
    with OtherApi(said(content="Grüße"), said("stop"), DONE) as api, before(tmp_path, api) as asking:
        for _ in range(4):
            begun_s = time.monotonic()
            answer = asking.ask(stream=is_streaming, user="alice", seed=7)
            assert (answer.status, time.monotonic() - begun_s < 3) == (200, True)
        sampling = {"temperature": 1.0, "top_p": 1.0, "seed": 7}
        messages = api.bodies[0].pop("messages")
        asked = {"model": "theirs", "stream": True, "stream_options": {"include_usage": True}, **sampling}
        assert api.bodies[0] == asked
        assert [message["role"] for message in messages] == ["user"]
        assert "Authorization" not in api.headers[0]
        assert "alice" not in str(api.headers[0])


@pytest.mark.parametrize(
    "data",
    [(said(content="Hi"), DONE), (DONE,), (said(content="Hi"), b"data: {nonsense}\n\n")],
    ids=["no end", "nothing", "nonsense"],
)
def test_an_answer_of_an_api_that_is_not_whole_is_none(tmp_path: Path, data: tuple[bytes, ...]) -> None:
    with OtherApi(*data) as api, before(tmp_path, api) as asking:
        assert asking.ask().status == 503


@pytest.mark.parametrize(("status", "num_asked"), [(500, 3), (429, 3), (401, 3), (302, 3), (400, 6)])
def test_an_api_that_refuses_is_left_alone_unless_its_caller_is_at_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, num_asked: int
) -> None:
    quoting = b'{"error": {"message": "your prompt was SECRET"}}'
    with OtherApi(quoting, status=status) as api, before(tmp_path, api) as asking:
        for _ in range(6):
            assert asking.ask().status == 503
        assert len(api.bodies) == num_asked
    assert "SECRET" not in caplog.text
    assert f"HTTP status {status}" in caplog.text


def test_an_api_that_is_slow_to_begin_is_left_alone_as_well(tmp_path: Path) -> None:
    with OtherApi(waits_s=20.0) as api, before(tmp_path, api, first_token_s=0.2) as asking:
        for _ in range(6):
            assert asking.ask().status == 503
        assert len(api.bodies) == 3


def test_the_time_of_a_request_is_that_of_all_its_steps(tmp_path: Path) -> None:
    with OtherApi(waits_s=20.0) as api, before(tmp_path, api, 1.0, DOWN, timeout_s=1.6) as asking:
        begun_s = time.monotonic()
        assert asking.ask().status == 503
        assert 1.5 < time.monotonic() - begun_s < 2.4
        assert len(api.bodies) == 1


def test_a_message_of_anthropic_s_form_is_answered_by_an_api_of_openai_s(tmp_path: Path) -> None:
    with OtherApi(said(content="Hello"), said("length"), DONE) as api, before(tmp_path, api) as asking:
        answer = asking.ask_anthropic(system="Be kind.", stop_sequences=["END"])
        streamed = asking.ask_anthropic(stream=True)
    assert answer.status == 200
    assert answer.json["content"] == [{"type": "text", "text": "Hello"}]
    assert (answer.json["model"], answer.json["stop_reason"]) == ("elsewhere", "max_tokens")
    assert answer.headers["x-trireme-answered-by"] == "elsewhere"
    body = api.bodies[0]
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert (body["stop"], body["max_tokens"]) == (["END"], 9)
    assert b'"stop_reason":"max_tokens"' in streamed.data
    assert streamed.data.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
