# SPDX-License-Identifier: Apache-2.0
"""`trireme batch run` on the real server: answers, refusals, and every line once though job, engine or server die."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_server import PROJECT, RunningServer
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient

StartServer = Callable[..., RunningServer]

ENGINE = {"provider": "simulated", "step_ms": 5.0, "max_num_seqs": 16, "num_kv_blocks": 512}
DEMO = PROJECT / "examples/demo_model/target"


def line(custom_id: str, prompt: str, **body: object) -> dict[str, object]:
    body = {"prompt": prompt, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def start(server: RunningServer, source: Path, out: Path, *args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "trireme", "batch", "run", str(source), "--out", str(out), "--json"]
    return subprocess.Popen(
        [*command, "--url", server.url, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(job: "subprocess.Popen[str]", *, status: int = 0) -> dict[str, Any]:
    said, errors = job.communicate(timeout=120)
    assert job.returncode == status, errors
    report: dict[str, Any] = json.loads(said)
    return report


def texts_of(out: Path) -> dict[str, str]:
    """Return texts by custom_id; a line that is torn, failed or there twice fails the test."""
    text = out.read_text()
    assert text.endswith("\n")
    results = [json.loads(one) for one in text.splitlines()]
    assert not [result["error"] for result in results if result["error"]]
    found = {result["custom_id"]: result["response"]["body"]["choices"][0]["text"] for result in results}
    assert len(found) == len(results)
    return found


def num_lines(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def many_lines(count: int, seed: int) -> tuple[list[dict[str, object]], list[GenerateRequest]]:
    """Return batch lines, and requests for the same answers that are asked one by one."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, 40) for _ in range(count)]
    lines = [line(str(number), f"prompt {number}", max_tokens=length) for number, length in enumerate(lengths)]
    requests = [
        GenerateRequest(text_input=f"prompt {number}", max_tokens=length, exclude_input_in_output=True)
        for number, length in enumerate(lengths)
    ]
    return lines, requests


def check_answers(server: RunningServer, out: Path, requests: list[GenerateRequest], *, sample: int = 40) -> None:
    """Check that every line is there, and that a sample says what the server answers to a single request."""
    found = texts_of(out)
    assert sorted(map(int, found)) == list(range(len(requests)))
    with TritonClient(server.url) as client:
        for number in random.Random(1).sample(range(len(requests)), min(sample, len(requests))):
            assert found[str(number)] == "".join(chunk.text for chunk in client.generate(requests[number]))


def test_the_model_s_own_answers_come_back(openvino: RunningServer, tmp_path: Path) -> None:
    question = {"messages": [{"role": "user", "content": "What is the capital of Italy?"}], "temperature": 0}
    chat: dict[str, object] = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": question}
    france = "What is the capital of France?"
    lines = [line("text", france), line("stop", france, stop="of"), line("n", france, n=2), chat]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    with start(openvino, source, out) as job:
        _, errors = job.communicate(timeout=60)
        assert (job.returncode, "--without-admission" in errors) == (2, True)
    with start(openvino, source, out, "--without-admission") as job:
        report = finish(job)
    results = {
        result["custom_id"]: result["response"]["body"] for result in map(json.loads, out.read_text().splitlines())
    }
    text = results["text"]["choices"][0]
    assert (text["text"], text["finish_reason"]) == (" The capital of France is Paris.", "stop")
    assert results["text"]["usage"] == {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
    assert results["stop"]["choices"][0]["text"] == " The capital "
    assert [choice["index"] for choice in results["n"]["choices"]] == [0, 1]
    assert results["n"]["usage"] == {"prompt_tokens": 8, "completion_tokens": 16, "total_tokens": 24}
    assert results["chat"]["choices"][0]["message"]["content"].strip() == "The capital of Italy is Rome."
    total = sum(body["usage"]["total_tokens"] for body in results.values())
    assert report["prompt_tokens"] + report["completion_tokens"] == total


def test_what_the_server_refuses_fails_alone_with_its_field(openvino: RunningServer, tmp_path: Path) -> None:
    lines = [line("long", "hi", max_tokens=100_000), line("good", "hi", max_tokens=2)]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    with start(openvino, source, out, "--without-admission") as job:
        assert finish(job, status=1)["failed"] == 1
    results = {result["custom_id"]: result for result in map(json.loads, out.read_text().splitlines())}
    assert results["long"]["response"]["status_code"] == 400
    assert results["long"]["error"]["param"] == "max_tokens"
    assert results["good"]["response"]["status_code"] == 200


def kill_it_often(start_server: StartServer, folder: Path, *, kills: int, lines_between: int, seed: int) -> None:
    """Kill it after each random number of results or random time, whichever comes first."""
    server = start_server(engine=ENGINE, admission={})
    lines, requests = many_lines(kills * lines_between + 100, seed)
    source, out = write_lines(folder / "in.jsonl", lines), folder / "out.jsonl"
    rng = random.Random(seed)
    for _ in range(kills):
        before = num_lines(out)
        until_s = time.monotonic() + rng.uniform(0.1, 4.0)
        enough = before + rng.randint(1, lines_between)
        with start(server, source, out) as job:
            while num_lines(out) < enough and time.monotonic() < until_s and job.poll() is None:
                time.sleep(0.002)
            job.kill()
        assert num_lines(out) >= before
    assert 0 < num_lines(out) < len(lines)
    with start(server, source, out) as job:
        report = finish(job)
    assert (report["done"], report["failed"]) == (len(lines), 0)
    assert report["resumed"] > 0
    check_answers(server, out, requests)


def test_a_job_killed_at_random_moments_answers_every_line_once(start_server: StartServer, tmp_path: Path) -> None:
    kill_it_often(start_server, tmp_path, kills=3, lines_between=40, seed=5)


@pytest.mark.soak
def test_a_job_killed_fifty_times_answers_every_line_once(start_server: StartServer, tmp_path: Path) -> None:
    kill_it_often(start_server, tmp_path, kills=50, lines_between=60, seed=50)


@pytest.mark.parametrize("victim", [pytest.param("engine", marks=pytest.mark.soak), "server"])
def test_a_job_goes_on_when_engine_or_server_die_in_the_middle(
    start_server: StartServer, tmp_path: Path, victim: str
) -> None:
    server = start_server(engine=ENGINE, admission={})
    lines, requests = many_lines(300, seed=8)
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    with start(server, source, out) as job:
        wait_until(lambda: num_lines(out) > 30, 30)
        process = server.engine_process() if victim == "engine" else server.tritonserver()
        process.kill()
        killed_at = num_lines(out)
        report = finish(job)
    assert killed_at < len(lines)
    assert report["retries"] > 0
    assert (report["done"], report["failed"]) == (len(lines), 0)
    wait_until(server.is_ready, 30)
    check_answers(server, out, requests)


def test_refused_lines_come_back_until_all_are_answered(start_server: StartServer, tmp_path: Path) -> None:
    """Two seats and room for three to wait: most of a job's requests find no place at first."""
    server = start_server(engine={**ENGINE, "max_num_seqs": 2}, admission={"queue": {"max_requests": 3}})
    lines, requests = many_lines(24, seed=3)
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    with start(server, source, out, "--tenant", "offline") as job:
        report = finish(job)
    assert (report["failed"], report["done"]) == (0, 24)
    refused = server.metric("trireme_refused_requests_total", **{"class": "batch", "reason": "queue_full"})
    assert report["retries"] >= refused > 0
    check_answers(server, out, requests)
