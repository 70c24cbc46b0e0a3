# SPDX-License-Identifier: Apache-2.0
"""Locust's users of an OpenAI-compatible URL, on a server that plays a script."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from completions_server import CUT, DONE, Asked, CompletionsServer, Status, Step, event

from trireme.base.free_ports import free_ports
from trireme.base.project_files import CODE_ROOT

LOCUST = CODE_ROOT / ".tools/bench/bin/locust"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not LOCUST.is_file(), reason="needs Locust: `python3 scripts/bootstrap.py --only bench` installs it"
    ),
]


def command(*args: object, folder: Path) -> list[str]:
    (folder / "w.yaml").write_text("kind: fixed\nprompts: [a b c]\nmax_tokens: 9\n")
    options = ["--model", "mine", "--json", "--warmup", "0", "--workload", folder / "w.yaml", "--out", folder / "run"]
    return [sys.executable, "-m", "trireme", "bench", "locust", *map(str, [*options, *args])]


def bench(*args: object, folder: Path) -> Any:
    done = subprocess.run(command(*args, folder=folder), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "requests.jsonl").read_text().splitlines()]


def test_its_users_ask_and_keep_what_became_of_it(tmp_path: Path) -> None:
    def steps(_: Asked) -> list[Step]:
        number = len(server.asked) - 1
        if number == 3:
            return [Status(503, b'{"error": {"message": "full"}}')]
        if number == 5:
            return [event("one"), CUT]
        words = [step for word in ("one", " two", " three") for step in (0.02, event(word))]
        return [*words, event(None, usage=(7, 5)), DONE]

    with CompletionsServer(steps) as server:
        figures = bench("--url", server.url, "--users", 2, "--requests", 24, folder=tmp_path)
    assert len(server.asked) == 24
    assert {(one.body["model"], one.body["prompt"], one.body["max_tokens"]) for one in server.asked} == {
        ("mine", "a b c", 9)
    }
    found = records(tmp_path)
    assert sorted(record.get("error", "")[:40] for record in found if record["end"] != "done")[0] == "HTTP 503: full"
    [cut] = [record for record in found if record["end"] == "UNAVAILABLE" and record.get("tokens")]
    assert (cut["tokens"], cut["reason"]) == ([1], "connection_lost"), "that is no refusal"
    assert [record["tokens"] for record in found if record["end"] == "done"] == [[1, 1, 3]] * 22
    assert figures["osl"]["mean"] == 5, "the server's own count, though it came in three events"
    assert figures["isl"]["mean"] == 7
    assert 15 < figures["latencies"]["itl"]["percentiles"]["50"] < 60


def test_it_asks_for_the_tokens_of_every_chunk_where_the_server_tells_them(tmp_path: Path) -> None:
    with CompletionsServer(event("a", usage=(3, 2)), event("b", usage=(3, 5)), DONE, takes_counts=True) as server:
        bench("--url", server.url, "--users", 1, "--requests", 4, folder=tmp_path)
    assert [record["tokens"] for record in records(tmp_path)] == [[2, 3]] * 4


def test_a_timeout_is_of_the_whole_request_however_often_a_token_comes(tmp_path: Path) -> None:
    def steps(_: Asked) -> list[Step]:
        if len(server.asked) > 2:
            return [event("one"), event(None, usage=(7, 1)), DONE]
        return [step for _ in range(40) for step in (event("on"), 0.5)]

    with CompletionsServer(steps) as server:
        bench("--url", server.url, "--users", 1, "--requests", 4, "--timeout", 2, folder=tmp_path)
    found = records(tmp_path)
    assert [record["end"] for record in found] == ["DEADLINE", "DEADLINE", "done", "done"]
    for record in found[:2]:
        assert 2.0 <= (record["end_ns"] - record["sent_ns"]) / 1e9 < 4.0
        assert len(record["times_ns"]) >= 2, "what came in time is kept"


def test_ctrl_c_keeps_what_has_ended(tmp_path: Path) -> None:
    with (
        CompletionsServer(event("one"), 0.05, event(None, usage=(7, 1)), DONE) as server,
        started("--url", server.url, "--users", 2, "--duration", 600, folder=tmp_path) as running,
    ):
        wait_until(lambda: len(server.asked) >= 10)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["was_interrupted"]
    assert len([record for record in records(tmp_path) if record["end"] == "done"]) >= 8


def test_workers_that_know_only_the_master_share_its_load(tmp_path: Path) -> None:
    [port] = free_ports(1)
    master = ["--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
    worker = ["-f", str(CODE_ROOT / "clients/load/tools/locustfile.py"), "--worker", "--master-host", "127.0.0.1"]
    with contextlib.ExitStack() as held:
        server = held.enter_context(
            CompletionsServer(event("one"), 0.02, event(" two"), event(None, usage=(7, 2)), DONE)
        )
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CODE_ROOT)}
        command = [str(LOCUST), *worker, "--master-port", str(port)]
        workers = [
            held.enter_context(ended(subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )))
            for _ in range(2)
        ]  # fmt: skip
        figures = bench("--url", server.url, "--users", 4, "--requests", 30, "--", *master, folder=tmp_path)
        assert [one.wait(30) for one in workers] == [0, 0], workers[0].communicate()[0]
    assert figures["ends"] == {"done": figures["num_requests"]}
    assert sorted(record["session"] for record in records(tmp_path)) == list(range(30))
    used = json.loads((tmp_path / "run" / "run.json").read_text())["cpu"]
    assert len(used) == 2
    assert all(one[-1]["cpu_s"] > one[0]["cpu_s"] > 0 for one in used)


def test_its_page_starts_a_load_and_stops_it_and_what_was_asked_is_kept(tmp_path: Path) -> None:
    [port] = free_ports(1)
    page = f"http://127.0.0.1:{port}"
    more = ["--duration", 600, "--web", "--", "--web-host", "127.0.0.1", "--web-port", port]
    with (
        CompletionsServer(event("one"), 0.02, event(None, usage=(7, 1)), DONE) as server,
        started("--url", server.url, "--users", 2, *more, folder=tmp_path) as running,
    ):
        wait_until(lambda: "<title>Locust" in answer(page))
        assert not server.asked, "nobody has started it"
        assert "success" in answer(f"{page}/swarm", user_count=2, spawn_rate=2)
        wait_until(lambda: len(server.asked) >= 6)
        assert "TTFT" in answer(f"{page}/stats/requests")
        assert "success" in answer(f"{page}/stop", stop="now")
        wait_until(lambda: '"stopped"' in answer(f"{page}/stats/requests"))
        num_asked = len(server.asked)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    assert len(records(tmp_path)) == num_asked
    assert not json.loads((tmp_path / "run" / "run.json").read_text())["was_interrupted"]


def started(*args: object, folder: Path) -> contextlib.AbstractContextManager["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command(*args, folder=folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    return ended(process)


@contextlib.contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a process, and end it whatever becomes of the test."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it ends what it started, as well
        process.communicate(timeout=30)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def answer(url: str, **form: object) -> str:
    """Return what a page says; nothing where nobody answers.

    Args:
        form: data to post.
    """
    try:
        with urllib.request.urlopen(url, urllib.parse.urlencode(form).encode() if form else None, timeout=10) as said:
            return str(said.read().decode())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return ""
