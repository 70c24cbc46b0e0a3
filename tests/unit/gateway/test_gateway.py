# SPDX-License-Identifier: Apache-2.0
"""OpenAI's API of a gateway before a scripted server: answers, streams, errors, and callers that leave."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kserve_server import DIE, HANG, KServeServer, response, story
from running_gateway import MODELS, RunningGateway

from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from ensemble_configs.spec.gateway_spec import FallbackSpec, FallbackStepSpec, GatewaySpec, ManagedApiSpec
from gateway import openai_routes
from gateway.gateway import Limits
from gateway.served_models import ServedModel

TOOL = {"type": "function", "function": {"name": "weather"}}
TEXT = "Once upon ünd"
FULL = "[UNAVAILABLE reason=queue_full retry_after_ms=2500] the queue is full"


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(*story()) as running:
        yield running


@pytest.fixture
def gateway(server: KServeServer) -> Iterator[RunningGateway]:
    with RunningGateway(server.url) as running:
        yield running


def inputs_of(server: KServeServer) -> dict[str, Any]:
    """Return the tensors of the last request by name, each as its bytes."""
    message = server.requests[-1]
    return dict(zip((tensor.name for tensor in message.inputs), message.raw_input_contents, strict=True))


def test_a_chat_is_answered_whole(gateway: RunningGateway, server: KServeServer) -> None:
    answer = gateway.chat(model="demo")
    assert answer.status == 200
    body = answer.json
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1e9
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    assert body == {
        "object": "chat.completion",
        "model": "demo",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1 + 2 + 1, "total_tokens": 8},
    }
    assert server.requests[-1].model_name == "ensemble"
    assert json.loads(inputs_of(server)["messages"][4:]) == [{"role": "user", "content": "Hi"}]


def test_a_chat_without_a_limit_may_be_as_long_as_the_model_allows(
    gateway: RunningGateway, server: KServeServer
) -> None:
    gateway.chat()
    assert inputs_of(server)["max_tokens"] == AS_MANY_AS_FIT.to_bytes(4, "little", signed=True)
    gateway.complete()
    assert inputs_of(server)["max_tokens"] == (16).to_bytes(4, "little")


def test_a_chat_is_streamed_as_it_comes(gateway: RunningGateway) -> None:
    answer = gateway.chat(stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, usage, done = answer.events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
    assert {event["id"] for event in (*events, usage)} == {usage["id"]}
    assert all(event["usage"] is None for event in events)
    choices = [event["choices"][0] for event in events]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": "Once"},
        {"content": " upon"},
        {"content": " ünd"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]


def test_a_text_completion_is_streamed_without_usage_unless_asked_for(gateway: RunningGateway) -> None:
    *events, done = gateway.complete(stream=True).events
    assert done == "[DONE]"
    assert all("usage" not in event for event in events)
    assert "".join(event["choices"][0]["text"] for event in events) == TEXT
    assert {event["object"] for event in events} == {"text_completion"}


def test_the_first_event_leaves_before_the_second_chunk_is_there() -> None:
    go_on = threading.Event()
    first, *others = story()
    with KServeServer(first, go_on, *others) as server, RunningGateway(server.url) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": True}))
        answer = connection.getresponse()
        assert b'"text":"Once"' in answer.readline()
        go_on.set()
        assert b"[DONE]" in answer.read()
        connection.close()


def test_several_prompts_and_answers_have_an_index_each(gateway: RunningGateway, server: KServeServer) -> None:
    body = gateway.complete(prompt=["a", "b"]).json
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, TEXT), (1, TEXT)]
    assert body["usage"] == {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
    *events, done = gateway.complete(prompt=["a", "b"], stream=True).events
    assert done == "[DONE]"
    for index in (0, 1):
        of_one = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in of_one) == TEXT
        assert of_one[-1]["finish_reason"] == "length"
    assert len(server.requests) == 4


def test_one_prompt_that_fails_fails_the_whole_and_stops_the_others() -> None:
    def play(request: Any) -> list[Any]:
        texts = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        return [FULL] if texts["text_input"].endswith(b"bad") else [HANG]

    with KServeServer(play) as server, RunningGateway(server.url) as gateway:
        answer = gateway.complete(prompt=["good", "bad"])
        assert (answer.status, answer.json["error"]["code"]) == (429, "overloaded")
        assert server.was_cancelled.wait(5)


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("said", "status", "kind", "code", "retry_after"),
    [
        ('[INVALID_ARG field="max_tokens" value=9] no', 400, "invalid_request_error", "invalid_value", None),
        (FULL, 429, "rate_limit_error", "overloaded", "3"),
        ("[UNAVAILABLE reason=engine_restarting] no", 503, "server_error", "unavailable", "1"),
        ("[DEADLINE] late", 504, "server_error", "timeout", None),
        ("[INTERNAL] broken", 500, "server_error", "server_error", None),
    ],
    ids=["wrong", "full", "restarting", "late", "broken"],
)
def test_an_error_before_the_first_text_has_its_status(
    said: str, status: int, kind: str, code: str, retry_after: str | None, is_streaming: bool
) -> None:
    with KServeServer(said) as server, RunningGateway(server.url) as gateway:
        answer = gateway.chat(stream=is_streaming)
    assert answer.status == status
    assert answer.headers.get("retry-after") == retry_after
    error = answer.json["error"]
    assert (error["type"], error["code"]) == (kind, code)
    assert error["param"] == ("max_tokens" if status == 400 else None)


def test_a_prompt_that_is_too_long_has_the_code_that_clients_look_for() -> None:
    said = "[INVALID_ARG field=input_ids value=120 max=99] the prompt has 120 tokens"
    with KServeServer(said) as server, RunningGateway(server.url) as gateway:
        for answer, param in ((gateway.chat(), "messages"), (gateway.complete(), "prompt")):
            error = answer.json["error"]
            assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
            assert error["message"].startswith(param)


def test_what_the_engine_cannot_do_is_named_as_the_caller_named_it() -> None:
    said = "[INVALID_ARG field=guided_decoding_guide_type] guided_decoding_guide_type is not supported"
    with KServeServer(said) as server, RunningGateway(server.url) as gateway:
        answer = gateway.chat(response_format={"type": "json_object"})
    assert (answer.status, answer.json["error"]["param"]) == (400, "response_format")


def test_a_server_that_is_away_is_unavailable(free_url: str) -> None:
    with RunningGateway(free_url) as gateway:
        answer = gateway.chat()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert gateway.call("GET", "/health/ready").status == 503
        assert gateway.call("GET", "/health/live").status == 200
        assert gateway.call("GET", "/health/ready?models=any").status == 503


def test_who_asks_for_any_model_is_told_of_one_that_answers() -> None:
    models = (*MODELS, ServedModel("away", "another", 100))
    with KServeServer(*story()) as server, RunningGateway(server.url, models=models) as gateway:
        assert gateway.call("GET", "/health/ready").status == 503
        answer = gateway.call("GET", "/health/ready?models=any")
        assert (answer.status, answer.json["models"]) == (200, {"demo": True, "away": False})
        wrong = gateway.call("GET", "/health/ready?models=some")
        assert (wrong.status, wrong.json["error"]["param"]) == (400, "models")


def test_a_gateway_with_a_managed_api_is_ready_for_any_model_without_a_server(free_url: str) -> None:
    rules = GatewaySpec(
        managed_apis=(ManagedApiSpec(name="elsewhere", url="https://api.example/v1", model="m"),),
        fallbacks=(FallbackSpec(model="demo", steps=(FallbackStepSpec(api="elsewhere"),)),),
    )
    with RunningGateway(free_url, rules=rules) as gateway:
        assert gateway.call("GET", "/health/ready").status == 503
        assert gateway.call("GET", "/health/ready?models=any").status == 200


@pytest.fixture
def free_url() -> str:
    with KServeServer() as server:
        return server.url


@pytest.mark.parametrize("end", [DIE, "[UNAVAILABLE reason=engine_died] the engine has died"], ids=["lost", "error"])
def test_a_stream_that_breaks_says_so_and_has_no_end(end: Any) -> None:
    with KServeServer(response("Once", num_output_tokens=1), end) as server, RunningGateway(server.url) as gateway:
        first, error = gateway.complete(stream=True).events
        assert first["choices"][0]["text"] == "Once"
        assert error["error"]["code"] == "unavailable"
        page = gateway.call("GET", "/metrics").data.decode()
    assert 'trireme_gateway_errors_total{code="unavailable"} 1.0' in page


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "stream"])
def test_a_caller_who_leaves_ends_the_request_on_the_server(is_streaming: bool) -> None:
    with KServeServer(response("Once"), HANG) as server, RunningGateway(server.url) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": is_streaming}))
        if is_streaming:
            connection.getresponse().readline()
        else:
            while not server.requests:
                pass
        connection.close()
        assert server.was_cancelled.wait(5)


WRONG: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": 3}, "temperature"),
    ({"logprobs": True}, "logprobs"),  # the model's tokens are not known
    ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "tools": [TOOL]}, "logprobs"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tools"),  # the model writes calls in no known style
    ({"service_tier": "gold"}, "service_tier"),
    ({"priority": 4}, "priority"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"wish": "luck"}, "wish"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named_and_reaches_no_server(
    gateway: RunningGateway, server: KServeServer, fields: dict[str, Any], param: str
) -> None:
    answer = gateway.chat(**fields)
    error = answer.json["error"]
    assert (answer.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert error["message"].startswith(param)
    assert server.requests == []


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[1]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000],
    ids=["empty", "no JSON", "no object", "no UTF-8", "deep lists", "deep objects"],
)
def test_a_body_that_is_no_object_is_refused(gateway: RunningGateway, body: bytes) -> None:
    answer = gateway.call("POST", "/v1/chat/completions", body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_json")
    assert gateway.chat().status == 200


def test_a_body_that_is_too_long_is_refused_by_its_announced_length(server: KServeServer) -> None:
    with RunningGateway(server.url, limits=Limits(max_body_bytes=5000, exit_timeout_s=2)) as gateway:
        answer = gateway.chat(user="x" * 5000)
        assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")
        assert "--max-body-bytes" in answer.json["error"]["message"]
        assert gateway.chat().status == 200


def test_paths_and_methods_that_are_not_there_say_so(gateway: RunningGateway) -> None:
    assert gateway.call("GET", "/v1/wishes").status == 404
    answer = gateway.call("GET", "/v1/chat/completions")
    assert (answer.status, answer.json["error"]["code"]) == (405, "method_not_allowed")


def test_embeddings_are_refused_by_the_model_s_name(gateway: RunningGateway) -> None:
    answer = gateway.call("POST", "/v1/embeddings", {"model": "demo", "input": "Hi"})
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_model")
    assert "'demo'" in answer.json["error"]["message"]
    assert gateway.call("POST", "/v1/embeddings", {"model": "other", "input": "Hi"}).status == 404


def test_models_are_listed_and_described(gateway: RunningGateway) -> None:
    [model] = gateway.call("GET", "/v1/models").json["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("demo", "model", 100)
    assert gateway.call("GET", "/v1/models/demo").json == model
    assert gateway.call("GET", "/v1/models/other").status == 404


def test_each_model_is_asked_by_its_triton_name_and_an_unknown_one_by_none(server: KServeServer) -> None:
    models = (ServedModel("chat", "chat_ensemble"), ServedModel("code", "code_ensemble"))
    with RunningGateway(server.url, models=models) as gateway:
        assert gateway.chat(model="code").json["model"] == "code"
        assert [request.model_name for request in server.requests] == ["code_ensemble"]
        missing = gateway.chat()
        assert (missing.status, missing.json["error"]["param"]) == (400, "model")
        unknown = gateway.chat(model="gpt-5")
        assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")
        assert "chat, code" in unknown.json["error"]["message"]


def test_without_a_key_that_is_accepted_nothing_but_probes_is_answered(server: KServeServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("0123456789abcdef\n")
    with RunningGateway(server.url, token_file=keys) as gateway:
        for headers in ({}, {"Authorization": "Bearer 0123456789abcdeg"}, {"Authorization": "0123456789abcdef"}):
            answer = gateway.call("GET", "/v1/models", **headers)
            assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert gateway.call("GET", "/v1/models", Authorization="Bearer 0123456789abcdef").status == 200
        assert gateway.call("GET", "/health/ready").status == 200


def test_a_file_of_keys_that_went_bad_is_told_to_the_log_and_to_no_caller(
    server: KServeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("0123456789abcdef\n")
    with RunningGateway(server.url, token_file=keys) as gateway:
        keys.write_text("")
        answer = gateway.call("GET", "/v1/models", Authorization="Bearer 0123456789abcdef")
    assert (answer.status, answer.json["error"]["code"]) == (500, "server_error")
    assert str(tmp_path) not in answer.data.decode()
    assert str(keys) in caplog.text


def test_metrics_have_the_names_of_opentelemetry(gateway: RunningGateway) -> None:
    gateway.chat(stream=True)
    page = gateway.call("GET", "/metrics").data.decode()
    labels = 'gen_ai_operation_name="chat",gen_ai_request_model="demo"'
    assert f'gen_ai_server_request_duration_seconds_count{{error_type="",{labels}}} 1.0' in page
    assert f"gen_ai_server_time_to_first_token_seconds_count{{{labels}}} 1.0" in page
    assert f'gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type="output"}} 4.0' in page


def test_running_streams_end_before_the_gateway_does() -> None:
    go_on = threading.Event()
    first, *others = story()
    with KServeServer(first, go_on, *others) as server, RunningGateway(server.url) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": True}))
        answer = connection.getresponse()
        answer.readline()
        gateway.stop()
        go_on.set()
        assert b"[DONE]" in answer.read()
        connection.close()


def test_a_caller_who_asks_whether_to_send_the_body_is_told_so(gateway: RunningGateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"prompt":"Hi"}')
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(("num_chars", "num_chunks"), [(100_000, 1000), (4_000, 10_000)], ids=["large", "small"])
def test_a_caller_who_takes_nothing_is_hung_up_on_and_stops_the_request(
    monkeypatch: pytest.MonkeyPatch, num_chars: int, num_chunks: int
) -> None:
    monkeypatch.setattr(openai_routes, "_WRITE_S", 0.2)
    chunks = [response("x" * num_chars, num_output_tokens=1)] * num_chunks
    with KServeServer(*chunks, HANG) as server, RunningGateway(server.url) as gateway:
        connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
        body = json.dumps({"prompt": "Hi", "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert server.was_cancelled.wait(60)
        page = gateway.call("GET", "/metrics").data.decode()
        connection.close()
    assert 'error_type="client_gone"' in page


def test_the_id_of_an_answer_is_in_its_headers_also_where_it_fails() -> None:
    with KServeServer(*story()) as server, RunningGateway(server.url) as gateway:
        answer = gateway.chat()
        assert answer.json["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
        streamed = gateway.chat(stream=True)
        assert streamed.events[0]["id"] == f"chatcmpl-{streamed.headers['x-request-id']}"
    with (
        KServeServer("[INVALID_ARG field=max_tokens value=9] too many") as server,
        RunningGateway(server.url) as gateway,
    ):
        refused = gateway.chat()
        assert (refused.status, len(refused.headers["x-request-id"])) == (400, 24)
