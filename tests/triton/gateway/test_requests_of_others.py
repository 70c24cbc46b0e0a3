# SPDX-License-Identifier: Apache-2.0
"""The requests of other servers' tests against the gateway before the real server: which are answered as there."""

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from callers_site import write_deployment
from gateway_process import GatewayProcess
from openai_requests import CASES as OTHERS
from openai_requests import CHAT, QUESTION, TEXT, Case
from running_server import RunningServer
from vllm_requests import MODELS, RESPONSES, VLLM_CASES

from benchmarks.support.report import environment, write_result

CASES = (*OTHERS, *VLLM_CASES)


@pytest.fixture(scope="module")
def gateway(openvino: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(openvino, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Yield a gateway whose model `maker` has a template that offers tools."""
    folder = tmp_path_factory.mktemp("with_tools")
    with RunningServer(write_deployment(folder), folder) as server, GatewayProcess(server, folder) as running:
        yield running


PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [QUESTION]}, TEXT: {"prompt": QUESTION["content"]}, RESPONSES: {}
}  # fmt: skip


def ask(gateway: GatewayProcess, case: Case, body: Any) -> tuple[int, Any]:
    if isinstance(body, dict):
        model = "maker" if case.has_tools else "openvino"
        body = {"model": model, **PROMPTS[case.path], **body}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"{gateway.url.removesuffix('/v1')}{case.path}"
    request = urllib.request.Request(url, None if case.path.startswith(MODELS) else data, dict(case.headers))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            is_stream = answer.headers["Content-Type"].startswith("text/event-stream")
            return answer.status, {"events": events_of(answer.read())} if is_stream else json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def events_of(data: bytes) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def failure_of(gateway: GatewayProcess, case: Case) -> str:
    """Return what is not as the case says; "": nothing."""
    answers = [ask(gateway, case, body) for body in case.bodies]
    statuses = {status for status, _ in answers}
    if case.is_answered:
        if statuses != {200}:
            return f"{answers}"
        return "" if case.holds([body for _, body in answers]) else f"{answers}"
    params = [str(body["error"]["param"]) for _, body in answers if "error" in body]
    if statuses != {case.status} or not all(param.startswith(case.param) for param in params):
        return f"{answers}"
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}, {case.what}")
def test_a_request_of_another_server_s_tests(request: pytest.FixtureRequest, case: Case) -> None:
    gateway: GatewayProcess = request.getfixturevalue("with_tools" if case.has_tools else "gateway")
    assert failure_of(gateway, case) == ""


@pytest.mark.soak
def test_the_table_of_all(gateway: GatewayProcess, with_tools: GatewayProcess) -> None:
    where = environment()
    gateways = (gateway, with_tools)
    failures = {case.what: failure for case in CASES if (failure := failure_of(gateways[case.has_tools], case))}
    assert failures == {}
    rows = [
        {"source": source, "outcome": outcome, "requests": count, "about": abouts_of(source, outcome)}
        for (source, outcome), count in Counter((case.source, case.outcome) for case in CASES).items()
    ]
    write_result(
        "openai_requests", {"benchmark": "openai_requests", "engine": "openvino", "rows": rows, "environment": where}
    )


def abouts_of(source: str, outcome: str) -> list[str]:
    return [case.what for case in CASES if (case.source, case.outcome) == (source, outcome)]
