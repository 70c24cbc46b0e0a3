# SPDX-License-Identifier: Apache-2.0
"""aiperf's raw records as a run's, and aiperf itself where it is installed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from completions_server import DONE, CompletionsServer, event

from clients.load.load_options import Load
from clients.load.tools.aiperf_records import records_of
from trireme.base.errors import ServerError
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

AIPERF = CODE_ROOT / ".tools/aiperf/bin/aiperf"
TOKENIZER = CODE_ROOT / "examples/demo_model/target"
START_NS = 10**18


def raw(*responses: tuple[int, str], **more: Any) -> dict[str, Any]:
    """Return a record sent 100 ns after the start, at 7000 of its own clock; a response has its time after that."""
    return {
        "metadata": {
            "session_num": 4, "request_start_ns": START_NS + 100, "request_end_ns": START_NS + 900,
            "credit_issued_ns": START_NS + 40, "benchmark_phase": "profiling", "worker_id": "w",
        },
        "start_perf_ns": 7000,
        "payload": {"max_tokens": 8, "prompt": "a b"},
        "status": 200,
        "responses": [
            {"perf_ns": 7000 + at, "packets": [{"name": "data", "value": value}]} for at, value in responses
        ],
    } | more  # fmt: skip


def read(folder: Path, *lines: dict[str, Any], is_openai: bool = False, is_open: bool = False) -> Any:
    (folder / "raw.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return records_of(folder / "raw.jsonl", START_NS, is_openai=is_openai, is_open=is_open)


def test_tritons_events_count_as_the_server_counted(tmp_path: Path) -> None:
    events = [
        (10, '{"text_output": "a", "num_output_tokens": 1, "num_input_tokens": 3}'),
        (30, '{"text_output": "bc", "num_output_tokens": 2, "finish_reason": "length"}'),
    ]
    warm = raw(*events)
    warm["metadata"] = warm["metadata"] | {"benchmark_phase": "warmup"}
    [record] = read(tmp_path, warm, raw(*events))
    assert (record.session, record.due_ns, record.sent_ns, record.end) == (4, 100, 100, "done")
    assert (record.times_ns, record.tokens) == ([110, 130], [1, 2])
    assert (record.input_tokens, record.finish_reason, record.max_tokens) == (3, "length", 8)
    [record] = read(tmp_path, raw(*events), is_open=True)
    assert (record.due_ns, record.sent_ns) == (40, 100), "in an open loop it was due before it was sent"


def test_openais_events_count_as_ours_do(tmp_path: Path) -> None:
    said = [
        part.removeprefix(b"data: ").decode().strip() for part in (event("a"), event("b"), event(None, usage=(3, 5)))
    ]
    [record] = read(tmp_path, raw(*zip((10, 20, 30), said, strict=True), (40, "[DONE]")), is_openai=True)
    assert (record.times_ns, record.tokens, record.input_tokens) == ([110, 120], [1, 4], 3)


@pytest.mark.parametrize(
    ("line", "end", "said"),
    [
        (raw(error={"code": 503, "message": "full", "type": "X"}), "UNAVAILABLE", "HTTP 503: full"),
        (raw(error={"code": None, "message": "ServerDisconnected"}), "INTERNAL", "ServerDisconnected"),
        (raw((10, '{"error": "[UNAVAILABLE reason=queue_full] full"}')), "UNAVAILABLE", "full"),
        (raw((10, "nonsense")), "INTERNAL", "nonsense"),
    ],
)
def test_a_request_that_failed_says_why(line: dict[str, Any], end: str, said: str, tmp_path: Path) -> None:
    [record] = read(tmp_path, line)
    assert record.end == end
    assert said in record.error


def test_a_lost_connection_is_no_refusal(tmp_path: Path) -> None:
    [full] = read(tmp_path, raw((10, '{"error": "[UNAVAILABLE reason=queue_full] full"}')))
    [lost] = read(tmp_path, raw((10, '{"error": "[UNAVAILABLE reason=connection_lost] gone"}')))
    assert (full.is_refused, lost.is_refused) == (True, False)


def test_what_it_does_not_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="no raw records"):
        records_of(tmp_path / "none", START_NS, is_openai=False, is_open=False)
    with pytest.raises(ServerError, match="no raw records"):
        read(tmp_path, {"metadata": {}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokenizer", "nowhere"], "nowhere is no folder"),
        (["--tokenizer", ".", "--arrivals", "gamma"], "poisson and constant"),
        (["--tokenizer", ".", "--workload", "TALK"], "conversation"),
    ],
)
def test_options_that_it_cannot_take_are_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk.yaml").write_text("kind: conversation\nturns: {mean: 2}\nisl: {mean: 4}\nosl: {mean: 8}\n")
    (tmp_path / "binary").touch()
    args = [str(tmp_path / "talk.yaml") if word == "TALK" else word for word in options]
    with pytest.raises(SystemExit) as ended:
        run_command(
            "bench",
            ["aiperf", "--concurrency", "1", "--binary", str(tmp_path / "binary"), "--out", str(tmp_path / "x"), *args],
        )
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(
    not AIPERF.is_file(), reason="1.2 GB: `scripts/bootstrap.py --only aiperf` installs it, CI does not"
)
def test_it_asks_our_prompts_in_their_order_and_its_records_are_the_servers(tmp_path: Path) -> None:
    script = [event("a", usage=(9, 2)), 0.03, event("b", usage=(9, 5)), event(None, usage=(9, 5)), DONE]
    with CompletionsServer(*script, takes_counts=True) as server:
        command = [sys.executable, "-m", "trireme", "bench", "aiperf", "--url", server.url, "--model", "mine", "--json"]
        load = ["--concurrency", "2", "--requests", "6", "--warmup", "2", "--isl", "9", "--osl", "5"]
        folders = ["--tokenizer", str(TOKENIZER), "--out", str(tmp_path / "run")]
        done = subprocess.run([*command, *load, *folders], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["osl"]["mean"] == 5
    lengths = {"mean": 9.0, "min": 9}, {"mean": 5.0, "min": 5}
    workload = {"kind": "synthetic", "isl": lengths[0], "osl": lengths[1]}
    plan = Load(url=server.url, workload=workload, num_users=2, num_requests=6, tokenizer_dir=str(TOKENIZER)).plan()
    measured = [asked.body for asked in server.asked[2:]]
    assert sorted(body["prompt"] for body in measured) == sorted(session.turns[0].text for session in plan)
    assert {(body["max_tokens"], body["min_tokens"], body["ignore_eos"]) for body in measured} == {(5, 5, True)}
    records = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert [record["tokens"] for record in records] == [[2, 3]] * 6
