# SPDX-License-Identifier: Apache-2.0
"""Locust's users of an OpenAI-compatible URL, on a server that plays a script."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from completions_server import CUT, DONE, Asked, CompletionsServer, Status, Step, event

ROOT = Path(__file__).resolve().parents[2]
LOCUST = ROOT / ".tools/bench/bin/locust"

pytestmark = pytest.mark.skipif(
    not LOCUST.is_file(), reason="needs Locust: `python3 scripts/bootstrap.py --only bench` installs it"
)


def bench(*args: object, folder: Path) -> Any:
    (folder / "w.yaml").write_text("kind: fixed\nprompts: [a b c]\nmax_tokens: 9\n")
    command = [sys.executable, "-m", "trireme", "bench", "locust", "--model", "mine", "--json", "--warmup", "0"]
    more = ["--workload", folder / "w.yaml", "--out", folder / "run", *args]
    done = subprocess.run([*command, *map(str, more)], capture_output=True, text=True, timeout=120, check=False)
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
    assert [record["tokens"] for record in found if record["end"] == "UNAVAILABLE" and record.get("tokens")] == [[1]]
    assert [record["tokens"] for record in found if record["end"] == "done"] == [[1, 1, 3]] * 22
    assert figures["osl"]["mean"] == 5, "the server's own count, though it came in three events"
    assert figures["isl"]["mean"] == 7
    assert 15 < figures["latencies"]["itl"]["percentiles"]["50"] < 60


def test_it_asks_for_the_tokens_of_every_chunk_where_the_server_tells_them(tmp_path: Path) -> None:
    with CompletionsServer(event("a", usage=(3, 2)), event("b", usage=(3, 5)), DONE, takes_counts=True) as server:
        bench("--url", server.url, "--users", 1, "--requests", 4, folder=tmp_path)
    assert [record["tokens"] for record in records(tmp_path)] == [[2, 3]] * 4
