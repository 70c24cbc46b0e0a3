# SPDX-License-Identifier: Apache-2.0
"""The description of the API: it is served to everybody, names every path, and lets through what is answered."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from kserve_server import KServeServer, story
from running_gateway import RunningGateway

from gateway.openapi import description

KEY = "0123456789abcdef"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(KEY)
    with KServeServer(*story()) as server, RunningGateway(server.url, token_file=keys) as running:
        yield running


def is_allowed(path: str, body: dict[str, Any]) -> bool:
    found = description()
    schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": found["components"]}).is_valid(body)


def test_it_is_served_and_every_path_in_it_is_there(gateway: RunningGateway) -> None:
    answer = gateway.call("GET", "/openapi.json")
    assert answer.json == json.loads(json.dumps(description()))
    for path, methods in answer.json["paths"].items():
        for method in methods:
            body = b"{}" if method == "post" else None
            status = gateway.call(method.upper(), path.replace("{model}", "demo"), body, **BEARER).status
            assert str(status) in methods[method]["responses"], (path, method)


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["a", "b"], "stream": True, "temperature": None}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 1, "stop": "x"}),
    ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": "Hi"}]}),
    ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": 7}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "temperature": 3}),
    ("/v1/responses", {}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "system", "content": "Hi"}]}),
]


@pytest.mark.parametrize(("path", "body"), GOOD, ids=[path for path, _ in GOOD])
def test_what_it_allows_is_answered(gateway: RunningGateway, path: str, body: dict[str, Any]) -> None:
    assert is_allowed(path, body)
    assert gateway.call("POST", path, body, **BEARER).status == 200


@pytest.mark.parametrize(("path", "body"), BAD, ids=[f"{path} {number}" for number, (path, _) in enumerate(BAD)])
def test_what_it_forbids_is_refused(gateway: RunningGateway, path: str, body: dict[str, Any]) -> None:
    assert not is_allowed(path, body)
    assert gateway.call("POST", path, body, **BEARER).status == 400


def test_whatever_is_sent_has_an_answer_that_the_description_knows(gateway: RunningGateway, tmp_path: Path) -> None:
    # As a program of its own: its pytest plugin makes all cases when tests are collected, in every worker.
    address, file = gateway.url.removesuffix("/v1"), tmp_path / "openapi.json"
    file.write_text(json.dumps(description()))
    run = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", file, "--url", address,
            "--phases", "examples,coverage,fuzzing", "--max-examples", "40", "--generation-deterministic",
            "--header", f"Authorization: {BEARER['Authorization']}", "--suppress-health-check", "all",
            # Which fields go together, no schema of theirs says: a body that it allows may be refused.
            "--exclude-checks", "positive_data_acceptance", "--report-json-path", tmp_path / "report.json",
        ],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"]
    assert report["operations"]["tested"] == sum(map(len, description()["paths"].values()))
    assert report["test_cases"]["generated"] > 1000
    assert (report["failures"], report["errors"]) == ([], [])
