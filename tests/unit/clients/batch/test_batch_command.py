# SPDX-License-Identifier: Apache-2.0
"""The command `trireme batch run` against a small server on Triton's wire: answers, refusals, losses, resumption."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batch_files import chat, completion, results_of, write_lines
from kserve_server import DIE, HANG, WAIT_S, KServeServer, Step, response

from trireme.commands import run_command

pytestmark = pytest.mark.slow

TRIREME = [sys.executable, "-m", "trireme"]


def tensors(request: Any) -> dict[str, bytes]:
    names = [tensor.name for tensor in request.inputs]
    return dict(zip(names, request.raw_input_contents, strict=True))


def prompt_of(request: Any) -> str:
    """Return the text of a request, or the JSON of its messages."""
    given = tensors(request)
    return given.get("text_input", given.get("messages", b""))[4:].decode()


def is_probe(request: Any) -> bool:
    return prompt_of(request) == "a" and "queue_timeout_ms" not in tensors(request)


def shout(request: Any) -> list[Step]:
    """Return a script that answers with the prompt in capitals."""
    text = prompt_of(request).upper()
    return [response(text, num_input_tokens=2, num_output_tokens=3, finish_reason="stop", final=True)]


def after_the_probe(*scripts: Callable[[Any], list[Step]]) -> Callable[[Any], list[Step]]:
    """Answer the job's first requests by one script each, and all later ones properly."""
    left = iter(scripts)

    def answer(request: Any) -> list[Step]:
        return shout(request) if is_probe(request) else next(left, shout)(request)

    return answer


def run(server: KServeServer, source: Path, out: Path, *args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run_command("batch", ["run", str(source), "--out", str(out), "--url", server.url, *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def text_of(result: Any) -> str:
    return str(result["response"]["body"]["choices"][0]["text"])


def test_every_line_is_answered_or_has_its_error_and_the_exit_code_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [completion("a", "one"), "nonsense", "", completion("b", "two", logprobs=1), completion("a"), chat("c")]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    with KServeServer(shout) as server:
        assert run(server, source, out, "--json") == 1
    results = results_of(out)
    assert len(out.read_text().splitlines()) == 5
    assert text_of(json.loads(next(line for line in out.read_text().splitlines() if '"ONE"' in line))) == "ONE"
    assert results[None]["error"] == {
        "code": "invalid_json", "message": results[None]["error"]["message"], "param": None, "line": 2,
    }  # fmt: skip
    assert results["b"]["error"]["param"] == "body.logprobs"
    [answer] = results["c"]["response"]["body"]["choices"]
    assert json.loads(answer["message"]["content"]) == [{"ROLE": "USER", "CONTENT": "HI"}]
    assert [one for one in map(json.loads, out.read_text().splitlines()) if one["error"] and one["custom_id"] == "a"]
    report = json.loads(capfd.readouterr().out)
    assert (report["total"], report["done"], report["failed"], report["resumed"]) == (5, 5, 3, 0)
    assert (report["prompt_tokens"], report["completion_tokens"]) == (4, 6)


def test_a_server_without_a_template_fails_the_chat_lines_alone(tmp_path: Path) -> None:
    refusal = "[INVALID_ARG field=messages reason=no_chat_template] messages cannot be rendered: there is no template"

    def answer(request: Any) -> list[Step]:
        return [refusal] if "messages" in tensors(request) else shout(request)

    source, out = write_lines(tmp_path / "in.jsonl", [chat("c"), completion("a", "one")]), tmp_path / "out.jsonl"
    with KServeServer(answer) as server:
        assert run(server, source, out) == 1
    results = results_of(out)
    assert (results["c"]["error"]["param"], results["c"]["response"]["status_code"]) == ("messages", 400)
    assert text_of(results["a"]) == "ONE"


def test_an_answer_is_openai_s_with_the_server_s_own_counts(tmp_path: Path) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion("a", "one", model="m")]), tmp_path / "out.jsonl"
    with KServeServer(shout) as server:
        assert run(server, source, out) == 0
    response_of = results_of(out)["a"]["response"]
    body = response_of["body"]
    assert response_of["status_code"] == 200
    assert (body["object"], body["model"]) == ("text_completion", "m")
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_requests_go_at_batch_priority_with_a_limit_for_their_wait(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [completion("a", "one")])
    with KServeServer(shout) as server:
        assert run(server, source, tmp_path / "out", "--tenant", "me") == 0
    sent = tensors(server.requests[-1])
    assert sent["priority"] == (3).to_bytes(4, "little")
    assert int.from_bytes(sent["queue_timeout_ms"], "little") == 10_000
    assert sent["tenant"][4:] == b"me"
    assert sent["stream"] == b"\0"


def no_admission(request: Any) -> list[Step]:
    if "priority" in tensors(request):
        return ["[INVALID_ARG field=priority value=3] priority needs admission, which this deployment does not have"]
    return shout(request)


def test_a_server_without_admission_is_refused_by_name_unless_it_is_wanted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion("a", "one")]), tmp_path / "out"
    with KServeServer(no_admission) as server:
        assert run(server, source, out) == 2
        assert "--without-admission" in capfd.readouterr().err
        assert out.read_bytes() == b""
        assert run(server, source, out, "--without-admission") == 0
    assert text_of(results_of(out)["a"]) == "ONE"


def test_a_refused_line_comes_back_after_the_hint(tmp_path: Path) -> None:
    times_s = []

    def refuse(_: Any) -> list[Step]:
        times_s.append(time.monotonic())
        return ["[UNAVAILABLE reason=queue_full retry_after_ms=300] full"]

    def answer(request: Any) -> list[Step]:
        times_s.append(time.monotonic())
        return shout(request)

    source = write_lines(tmp_path / "in.jsonl", [completion("a", "one")])
    with KServeServer(after_the_probe(refuse, refuse, answer)) as server:
        assert run(server, source, tmp_path / "out") == 0
    assert [later - earlier >= 0.3 for earlier, later in itertools.pairwise(times_s)] == [True, True]


def test_a_line_that_is_lost_each_time_fails_after_five_attempts_and_the_others_do_not(tmp_path: Path) -> None:
    def poison(request: Any) -> list[Step]:
        if prompt_of(request) == "bad":
            return ["[INTERNAL] the engine choked"]
        return shout(request)

    source, out = (
        write_lines(tmp_path / "in.jsonl", [completion("x", "bad"), completion("y", "fine")]),
        tmp_path / "out",
    )
    with KServeServer(poison) as server:
        assert run(server, source, out) == 1
    results = results_of(out)
    assert results["x"]["response"]["status_code"] == 500
    assert "given up after 5 attempts; the last: the engine choked" in results["x"]["error"]["message"]
    assert text_of(results["y"]) == "FINE"
    assert sum(prompt_of(request) == "bad" for request in server.requests) == 5


def test_what_the_server_refuses_for_good_is_asked_once(tmp_path: Path) -> None:
    def refuse(_: Any) -> list[Step]:
        return ["[INVALID_ARG field=max_tokens value=9] max_tokens must be 1 to 8; got 9"]

    source, out = write_lines(tmp_path / "in.jsonl", [completion("a", "one")]), tmp_path / "out"
    with KServeServer(after_the_probe(refuse)) as server:
        assert run(server, source, out) == 1
    error = results_of(out)["a"]["response"]["body"]["error"]
    assert (error["param"], error["type"]) == ("max_tokens", "invalid_request_error")


def test_a_server_that_stays_away_ends_the_job_and_fails_no_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion(str(n), "x") for n in range(20)]), tmp_path / "out"
    with KServeServer(after_the_probe(lambda _: [DIE])) as server:
        assert run(server, source, out, "--patience-s", "0.5") == 1
    assert "run the same command again to go on" in capfd.readouterr().err
    assert not out.exists() or '"error":{' not in out.read_text()


def test_no_server_is_said_at_once_with_exit_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = KServeServer()
    server.url = "127.0.0.1:1"
    assert run(server, write_lines(tmp_path / "in.jsonl", [completion("a")]), tmp_path / "out") == 2
    assert "no Triton answers" in capfd.readouterr().err


def test_an_empty_file_is_done_at_once_without_a_server(tmp_path: Path) -> None:
    server = KServeServer()
    server.url = "127.0.0.1:1"
    assert run(server, write_lines(tmp_path / "in.jsonl", []), tmp_path / "out") == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_it_goes_on_where_it_was_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion(str(n), f"p{n}") for n in range(9)]), tmp_path / "out"
    with KServeServer(shout) as server:
        assert run(server, source, out) == 0
        lines = out.read_bytes().splitlines(keepends=True)
        out.write_bytes(b"".join(lines[:4]) + lines[4][:30])
        server.requests.clear()
        capfd.readouterr()
        assert run(server, source, out) == 0
        assert len(server.requests) == 1 + 5  # the probe
    said = capfd.readouterr().err
    assert "a line that was half written (30 bytes) is cut" in said
    assert "going on: 4 of 9 lines are done" in said
    assert {name: text_of(result) for name, result in results_of(out).items()} == {str(n): f"P{n}" for n in range(9)}


def test_another_input_for_the_same_results_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with KServeServer(shout) as server:
        assert run(server, write_lines(tmp_path / "in.jsonl", [completion("a", "x")]), out) == 0
        assert run(server, write_lines(tmp_path / "in.jsonl", [completion("b", "x")]), out) == 2
        assert "byte for byte" in capfd.readouterr().err
        assert run(server, out, out) == 2
        assert "is the input itself" in capfd.readouterr().err


def test_a_model_that_is_not_served_fails_the_line(tmp_path: Path) -> None:
    lines = [completion("a", "x", model="ours"), completion("b", "x", model="gpt-4"), completion("c", "x")]
    source, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out"
    with KServeServer(shout) as server:
        assert run(server, source, out, "--served-model", "ours") == 1
    failed = {name: bool(result["error"]) for name, result in results_of(out).items()}
    assert failed == {"a": False, "b": True, "c": True}


def start(server: KServeServer, source: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [*TRIREME, "batch", "run", str(source), "--out", str(out), "--url", server.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_lines(out: Path, count: int) -> None:
    until_s = time.monotonic() + 30
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_second_run_on_the_same_results_is_refused_while_the_first_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion(str(n), "x") for n in range(3)]), tmp_path / "out"
    release = threading.Event()

    def last_waits(request: Any) -> list[Step]:
        return shout(request) if is_probe(request) or len(server.requests) < 4 else [release, *shout(request)]

    with KServeServer(last_waits) as server, start(server, source, out) as first:
        wait_for_lines(out, 2)
        assert run(server, source, out) == 2
        assert "another run writes to it" in capfd.readouterr().err
        release.set()
        assert first.wait(WAIT_S) == 0
    assert len(results_of(out)) == 3


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_job_that_was_killed_or_interrupted_is_finished_by_the_same_command(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    source, out = write_lines(tmp_path / "in.jsonl", [completion(str(n), f"p{n}") for n in range(30)]), tmp_path / "out"
    is_over = threading.Event()

    def half_hangs(request: Any) -> list[Step]:
        return shout(request) if is_over.is_set() or len(server.requests) < 12 else [HANG]

    with KServeServer(half_hangs) as server, start(server, source, out) as job:
        wait_for_lines(out, 5)
        job.send_signal(number)
        assert job.wait(WAIT_S) == status
        if number is signal.SIGINT:
            assert job.stderr is not None
            assert b"run the same command again to go on" in job.stderr.read()
        is_over.set()
        assert run(server, source, out) == 0
    assert {name: text_of(result) for name, result in results_of(out).items()} == {str(n): f"P{n}" for n in range(30)}


def test_the_verb_is_told_in_the_help(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command("batch", ["--help"])
    assert "run" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        run_command("batch", ["run", "--help"])
    assert "Examples:" in capfd.readouterr().out
