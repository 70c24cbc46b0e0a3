# SPDX-License-Identifier: Apache-2.0
"""The requests of other servers' tests against the gateway before the real server: which are answered as there."""

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_process import GatewayProcess
from openai_requests import CASES, QUESTION, Case
from running_server import RunningServer

from benchmarks.support.report import environment, write_result


@pytest.fixture(scope="module")
def gateway(openvino: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(openvino, tmp_path_factory.mktemp("gateway")) as running:
        yield running


def ask(gateway: GatewayProcess, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    prompt = {"messages": [QUESTION]} if "chat" in path else {"prompt": "What is the capital of Italy?"}
    data = json.dumps({"model": "openvino", **prompt, **body}).encode()
    request = urllib.request.Request(f"{gateway.url.removesuffix('/v1')}{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def failure_of(gateway: GatewayProcess, case: Case) -> str:
    """Return what is not as the case says; "": nothing."""
    answers = [ask(gateway, case.path, body) for body in case.bodies]
    statuses = {status for status, _ in answers}
    if case.is_answered:
        if statuses != {200}:
            return f"{answers}"
        return "" if case.holds([body for _, body in answers]) else f"{answers}"
    params = [str(body["error"]["param"]) for _, body in answers if "error" in body]
    if statuses != {400} or not all(param.startswith(case.param) for param in params):
        return f"{answers}"
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.source}, {case.what}")
def test_a_request_of_another_server_s_tests(gateway: GatewayProcess, case: Case) -> None:
    assert failure_of(gateway, case) == ""


@pytest.mark.soak
def test_the_table_of_all(gateway: GatewayProcess) -> None:
    where = environment()
    failures = {case.what: failure for case in CASES if (failure := failure_of(gateway, case))}
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
