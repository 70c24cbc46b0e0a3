# SPDX-License-Identifier: Apache-2.0
"""The command `trireme generate` against the real server and the demo model: the README's use, and wrong uses."""

import json
import signal
import subprocess
import sys
import time

import pytest
from killed_clients import SLOW
from running_server import RunningServer
from test_shutdown import StartServer
from waiting import wait_idle, wait_until


def generate(server: RunningServer, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trireme", "generate", "--url", server.url, *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_model_knows_the_capital_of_france(openvino: RunningServer) -> None:
    result = generate(openvino, "What is the capital of France?")
    assert (result.returncode, result.stdout) == (0, " The capital of France is Paris.\n")


def test_json_has_everything_that_was_asked_for(openvino: RunningServer) -> None:
    report = json.loads(generate(openvino, "What is the capital of France?", "--json").stdout)
    assert report["text"] == " The capital of France is Paris."
    assert report["finish_reason"] == "stop"
    assert report["num_input_tokens"] > 3
    assert report["num_output_tokens"] > 3
    assert 0 < report["ttft_ms"] <= report["e2e_ms"]
    later_ms, later_tokens = report["e2e_ms"] - report["ttft_ms"], report["num_output_tokens"] - 1
    assert report["tpot_ms"] == pytest.approx(later_ms / later_tokens, rel=0.01)
    assert list(report) == [
        "text", "finish_reason", "num_input_tokens", "num_output_tokens", "ttft_ms", "tpot_ms", "e2e_ms",
    ]  # fmt: skip


def test_the_prompt_may_come_from_standard_input(openvino: RunningServer) -> None:
    asked = "What is the capital of France?"
    assert generate(openvino, "-", stdin=asked + "\n").stdout == generate(openvino, asked).stdout


@pytest.mark.parametrize(
    "prompt", ["法国的首都是哪里？", "フランスの首都はどこですか？", "ما هي عاصمة فرنسا؟", "फ्रांस की राजधानी क्या है?"]
)
def test_other_scripts_come_out_whole(openvino: RunningServer, prompt: str) -> None:
    result = generate(openvino, prompt)
    assert result.returncode == 0
    assert "\N{REPLACEMENT CHARACTER}" not in result.stdout
    assert len(result.stdout.strip()) > 3


def test_sampling_follows_its_seed_and_a_stop_string_ends_it(openvino: RunningServer) -> None:
    story = ("Once upon a time", "--max-tokens", "60", "--temperature", "0.9")
    first, again, other = (generate(openvino, *story, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other
    stopped = json.loads(generate(openvino, "What is the capital of France?", "--stop", "Par", "--json").stdout)
    assert (stopped["text"], stopped["finish_reason"]) == (" The capital of France is ", "stop_string")


def test_a_wrong_option_is_one_line_and_exit_status_2(openvino: RunningServer) -> None:
    result = generate(openvino, "hello", "--top-p", "1.5")
    assert result.returncode == 2
    assert "top_p must be 0 to 1; got 1.5" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert generate(openvino, "hello", "--model", "nobody").returncode == 2


def test_ctrl_c_cancels_the_request_on_the_server(start_server: StartServer) -> None:
    server = start_server(engine=SLOW)
    command = [sys.executable, "-m", "trireme", "generate", "--url", server.url, "hello", "--max-tokens", "1500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: server.used_kv_blocks() > 0, 10)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    wait_idle(server, 5)
    process.communicate()
