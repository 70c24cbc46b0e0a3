# SPDX-License-Identifier: Apache-2.0
"""Loads on an OpenAI-compatible URL, against a server that plays a script over real sockets."""

import asyncio
import json
import socket
import statistics
from pathlib import Path
from typing import Any

import pytest
from completions_server import CUT, DONE, HANG, Asked, CompletionsServer, Status, Step, event
from load_interrupts import interrupt, once_done
from load_records import farthest_from_stamps

from clients.infer_messages import GenerateRequest
from clients.latency import ttft_ms
from clients.load.load_options import Load
from clients.load.openai.openai_client import AsyncOpenAIClient
from clients.load.processes import run_processes
from clients.load.run_command import put_on
from clients.load_report.run_figures import figures_of
from trireme.base.errors import RequestCancelled, RequestError, Unavailable
from trireme.commands import run_command

pytestmark = pytest.mark.slow

FIXED = {"kind": "fixed", "prompts": ["a b c"], "max_tokens": 8}
ASKED = GenerateRequest(text_input="a b", max_tokens=8)


def load(server: CompletionsServer, **fields: Any) -> Load:
    return Load(**{"url": server.url, "model": "mine", "workload": FIXED, "num_users": 1, "num_requests": 5, **fields})


def tokens(count: int, *, gap_s: float = 0.02) -> list[Step]:
    steps: list[Step] = []
    for number in range(count):
        steps += [gap_s, event("x", finish_reason="length" if number == count - 1 else None)]
    return [*steps, event(None, usage=(3, count)), DONE]


def test_its_times_are_the_servers_to_a_millisecond() -> None:
    with CompletionsServer(*tokens(10)) as server:
        outcome = run_processes(load(server, num_users=4, num_requests=24, num_processes=2))
    late_ms = []
    by_first = sorted((one.sent_ns for one in server.asked), key=lambda sent: sent[0])
    for record, sent in zip(sorted(outcome.records, key=lambda one: one.times_ns[0]), by_first, strict=True):
        received = [at_ns + outcome.start_ns for at_ns in record.times_ns]
        late_ms += [(at - by) / 1e6 for at, by in zip(received, sent[:10], strict=True)]
    assert 0 < statistics.median(late_ms) < 1.0, "what lies between them is loopback and this machine's other work"


def test_its_figures_are_the_scripts(tmp_path: Path) -> None:
    with CompletionsServer(*tokens(6)) as server:
        run = put_on(load(server, num_users=2, num_requests=24), tmp_path / "run", warmup=2, metrics=None)
    figures = figures_of(run)
    assert len(server.asked) == 26
    assert figures.ends == {"done": figures.num_requests}
    assert figures.osl is not None
    assert figures.osl.mean == 6
    assert figures.isl is not None
    assert figures.isl.mean == 3


def test_its_figures_are_the_servers_stamps_to_one_in_a_hundred(tmp_path: Path) -> None:
    def worst(folder: Path) -> float:
        with CompletionsServer(*tokens(6, gap_s=0.1)) as server:
            run = put_on(load(server, num_users=8, num_requests=40), folder, warmup=0, metrics=None)
        return farthest_from_stamps(figures_of(run), run.records, [one.sent_ns[:6] for one in server.asked])

    # A program that was not run for some ms is late with what came meanwhile: one of three runs without that will do.
    assert any(worst(tmp_path / name) < 0.01 for name in "abc")


ENDS: list[tuple[list[Step], str, int, str]] = [
    ([Status(503, b'{"error": {"message": "full"}}')], "UNAVAILABLE", 0, "HTTP 503: full"),
    ([Status(400, b'{"error": {"message": "no such thing"}}')], "INVALID_ARG", 0, "no such thing"),
    ([Status(500, b"oh")], "INTERNAL", 0, "HTTP 500: oh"),
    ([event("x"), b'data: {"error": {"message": "it broke"}}\n\n', DONE], "INTERNAL", 1, "it broke"),
    ([event("", finish_reason="stop"), event(None, usage=(3, 0)), DONE], "done", 0, ""),
    ([event("x"), DONE], "done", 1, ""),
    ([event("x"), event("y"), CUT], "UNAVAILABLE", 2, "was lost"),
    ([event("x")], "UNAVAILABLE", 1, "ended before [DONE]"),
    ([CUT], "UNAVAILABLE", 0, "was lost"),
    ([event("x"), HANG], "DEADLINE", 1, "within its timeout"),
    ([event("x") + event("y") + DONE], "done", 2, ""),
    ([event("x")[:9], 0.02, event("x")[9:], DONE], "done", 1, ""),
]


def test_every_end_is_kept() -> None:
    scripts = iter([script for script, *_ in ENDS for _ in range(2)])
    with CompletionsServer(lambda _: next(scripts)) as server:
        found = run_processes(load(server, num_requests=2 * len(ENDS), timeout_s=0.5)).records
    wanted = [(end, num_tokens, said) for _, end, num_tokens, said in ENDS for _ in range(2)]
    for record, (end, num_tokens, said) in zip(found, wanted, strict=True):
        assert (record.end, record.output_tokens) == (end, num_tokens)
        assert said in record.error
        assert bool(record.error) == (end != "done")


def test_a_refused_request_is_sent_again_when_the_server_says_and_counts_from_the_first_time() -> None:
    def steps(_: Asked) -> list[Step]:
        is_first = len(server.asked) == 1
        return [Status(429, b"later", ("Retry-After: 0.2",))] if is_first else tokens(2, gap_s=0.0)

    with CompletionsServer(steps) as server:
        [record] = run_processes(load(server, num_requests=1, num_retries=2)).records
    assert (record.end, record.num_attempts, len(server.asked)) == ("done", 2, 2)
    assert 200 <= ttft_ms(record.latencies()) < 2000


@pytest.mark.parametrize("takes_counts", [True, False])
def test_counts_of_every_chunk_are_asked_for_only_where_the_server_takes_that(takes_counts: bool) -> None:
    script = [event("a", usage=(3, 2)), event("b", usage=(3, 3)), DONE] if takes_counts else tokens(2, gap_s=0.0)
    with CompletionsServer(*script, takes_counts=takes_counts) as server:
        [record] = run_processes(load(server, num_requests=1)).records
    assert record.tokens == ([2, 1] if takes_counts else [1, 1])
    [asked] = server.asked
    assert ("continuous_usage_stats" in asked.body["stream_options"]) == takes_counts


def test_exact_lengths_prompts_and_the_key_are_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    exact = FIXED | {"is_exact": True, "temperature": 0.7}
    with CompletionsServer(*tokens(8, gap_s=0.0)) as server:
        put_on(load(server, workload=exact, num_requests=1), tmp_path / "run", warmup=0, metrics=None)
    [asked] = server.asked
    assert asked.path == "/v1/completions"
    assert asked.headers["authorization"] == "Bearer sk-secret"
    wanted = {"model": "mine", "prompt": "a b c", "max_tokens": 8, "min_tokens": 8, "ignore_eos": True}
    assert wanted.items() <= asked.body.items()
    assert asked.body["temperature"] == 0.7
    assert all(b"sk-secret" not in path.read_bytes() for path in (tmp_path / "run").iterdir())


def test_each_stream_has_a_connection_and_they_are_used_again() -> None:
    with CompletionsServer(*tokens(3)) as server:
        run_processes(load(server, num_users=8, num_requests=32))
    assert 8 <= len({one.connection for one in server.asked}) <= 9  # one more asked first


def test_a_request_on_a_connection_that_is_found_to_be_closed_is_sent_on_another() -> None:
    with CompletionsServer(*tokens(2), keeps=False) as server:
        found = run_processes(load(server, num_users=2, num_requests=12)).records
    assert [record.end for record in found] == ["done"] * 12
    assert len(server.asked) == 12, "none was asked twice"


def test_a_conversation_goes_on_with_what_was_said() -> None:
    talk = {"kind": "conversation", "turns": {"mean": 2}, "isl": {"mean": 4}, "osl": {"mean": 8}, "think_s": 0.01}
    with CompletionsServer(event("well"), DONE) as server:
        run_processes(load(server, workload=talk, num_requests=1))
    first, second = (one.body["prompt"] for one in server.asked)
    assert second.startswith(f"{first}well\nuser: ")


def test_ctrl_c_keeps_what_has_ended() -> None:
    with CompletionsServer(*tokens(4, gap_s=0.1)) as server:
        outcome = run_processes(load(server, num_users=2, num_requests=10_000), ended=once_done(interrupt))
    assert outcome.was_interrupted
    assert {record.end for record in outcome.records} == {"done"}


def test_a_closed_client_ends_what_runs_and_a_silent_server_is_given_up() -> None:
    async def ask(client: AsyncOpenAIClient, **limits: Any) -> list[str]:
        return [chunk.text async for chunk in client.generate(ASKED, model="m", **limits)]

    async def closed(url: str) -> None:
        async with AsyncOpenAIClient(url) as client:
            asking = asyncio.create_task(ask(client))
            await asyncio.sleep(0.2)
            await client.close()
            with pytest.raises(RequestCancelled):
                await asking

    async def silent(url: str) -> None:
        async with AsyncOpenAIClient(url) as client:
            with pytest.raises(Unavailable, match=r"nothing came .* for 0\.2 s"):
                await ask(client, idle_timeout_s=0.2)

    with CompletionsServer(event("x"), HANG) as server:
        asyncio.run(closed(server.url))
        asyncio.run(silent(server.url))


def test_a_server_that_refuses_is_told_with_its_words_before_the_load() -> None:
    with (
        CompletionsServer(Status(404, b'{"error": {"message": "no model mine"}}')) as server,
        pytest.raises(RequestError, match="no model mine"),
    ):
        run_processes(load(server))


def test_where_nobody_answers_it_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    with pytest.raises(Unavailable, match=f"no server takes requests for model 'mine' at {url}"):
        run_processes(Load(url=url, model="mine", workload=FIXED, num_users=1, num_requests=1))


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        (FIXED | {"tenants": ["a", "b"]}, "tenant"),
        (FIXED | {"priorities": {"premium": 1}}, "priority"),
        ({"kind": "trace", "path": "TRACE", "format": "jsonl"}, "tenant"),
    ],
)
def test_what_such_a_server_cannot_be_asked_is_refused_before_the_load(
    workload: dict[str, Any], field: str, tmp_path: Path
) -> None:
    (tmp_path / "trace").write_text('{"at_s": 0, "prompt": "a", "output_tokens": 2, "tenant": "a"}\n')
    workload = {key: str(tmp_path / "trace") if value == "TRACE" else value for key, value in workload.items()}
    one = Load(url="http://here/v1", model="m", workload=workload, num_requests=1, duration_s=5.0)
    with pytest.raises(RequestError) as caught:
        list(one.plan())
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--concurrency", "1", "--requests", "1"], "--tokenizer"),
        (["capacity", "--slo", "ttft_p99=500"], "--tokenizer"),
        (["locust", "--users", "1", "--requests", "1", "--binary", "BINARY"], "--tokenizer"),
        (["perf-analyzer", "--concurrency", "1"], "over gRPC"),
        (["genai-perf", "--concurrency", "1", "--tokenizer", "."], "over gRPC"),
        (["run", "--concurrency", "1", "--requests", "1", "--url", "ftp://here"], "http://localhost:8000/v1"),
    ],
)
def test_options_that_do_not_apply_say_what_does(
    args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").touch()
    words = [str(tmp_path / "binary") if word == "BINARY" else word for word in args]
    url = [] if "--url" in args else ["--url", "http://127.0.0.1:9/v1"]
    with pytest.raises(SystemExit) as ended:
        run_command("bench", [*words, *url, "--out", str(tmp_path / "x")])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_bench_run_asks_it_and_reads_no_metrics_that_may_not_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CompletionsServer(*tokens(4, gap_s=0.0)) as server:
        args = ["--url", server.url, "--model", "mine", "--concurrency", "2", "--requests", "6", "--prompt", "a b"]
        with pytest.raises(SystemExit) as ended:
            run_command("bench", ["run", *args, "--json", "--out", str(tmp_path / "x")])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    figures = json.loads(captured.out)
    assert figures["ends"] == {"done": figures["num_requests"]}
    told = json.loads((tmp_path / "x" / "run.json").read_text())
    assert (told["url"], told["model"], told["metrics_failure"]) == (server.url, "mine", "not read")
