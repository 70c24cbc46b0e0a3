# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own load generators against the running server: the programs themselves, not requests like theirs."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running_server import PROJECT, RunningServer
from waiting import wait_until

TOOLS = PROJECT / ".tools"
PERF_ANALYZER = TOOLS / "perf-analyzer" / "path" / "perf_analyzer"
GENAI_PERF = TOOLS / "genai-perf" / "bin" / "genai-perf"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="perf_analyzer is made for x86_64 only")

QUESTION = {"text_input": ["What is the capital of France?"], "max_tokens": [16]}
STORY = {"text_input": ["Once upon a time"], "max_tokens": [200], "min_tokens": [200]}  # too long for one response
OPTIONS = {"stream": [True], "exclude_input_in_output": [True]}
TOKENS = {
    "input_ids": {"content": [5, 6, 7, 8], "shape": [4]},
    "input_lengths": [4],
    "request_output_len": [200],
    "min_tokens": [200],
    "streaming": [True],
}


def run(command: list[str], folder: Path) -> str:
    assert Path(command[0]).is_file(), f"{command[0]} is not installed; run: make bench-tools"
    path = f"{PERF_ANALYZER.parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def profile(server: RunningServer, folder: Path, model: str, rows: list[dict[str, Any]], *more: str) -> list[Any]:
    """Return the requests that perf_analyzer made, as its profile export has them."""
    (folder / "input.json").write_text(json.dumps({"data": rows}))
    how = ["-i", "grpc", "--async", "--streaming", "--input-data", "input.json"]
    command = [str(PERF_ANALYZER), "-m", model, "-u", server.url, *how, "--profile-export-file", "out.json", *more]
    # Once in some tens of runs on a busy machine perf_analyzer ends well without having written the last of its buffer:
    # the export is empty, or cut at a multiple of 64 KiB. It is run again.
    for _ in range(3):
        (folder / "out.json").unlink(missing_ok=True)  # it refuses to write over one
        said = run(command, folder)
        exported = (folder / "out.json").read_bytes()
        if len(exported) % 65536:
            break
    assert exported, said
    [experiment] = json.loads(exported)["experiments"]
    requests: list[Any] = experiment["requests"]
    return requests


def text_of(request: Any) -> str:
    return "".join(output.get("text_output", "") for output in request["response_outputs"])


def test_perf_analyzer_streams_from_the_ensemble(openvino: RunningServer, tmp_path: Path) -> None:
    more = ("--concurrency-range", "4", "--request-count", "12")
    requests = profile(openvino, tmp_path, "ensemble", [QUESTION | OPTIONS, STORY | OPTIONS], *more)
    assert len(requests) >= 12  # it may make a few more while it stops
    assert sum(len(request["response_timestamps"]) for request in requests) > len(requests)
    answers = [text_of(request) for request in requests if "France" in request["request_inputs"]["text_input"]]
    assert len(answers) >= 4
    assert all("Paris" in answer for answer in answers), answers
    wait_until(lambda: openvino.num_streams() == 0, 20)


def test_perf_analyzer_at_a_rate_of_random_arrivals(openvino: RunningServer, tmp_path: Path) -> None:
    more = ("--request-rate-range", "10", "--request-distribution", "poisson", "--request-count", "12")
    assert len(profile(openvino, tmp_path, "ensemble", [STORY | OPTIONS], *more)) >= 12


def test_perf_analyzer_streams_tokens_from_the_engine_step(openvino: RunningServer, tmp_path: Path) -> None:
    more = ("--concurrency-range", "2", "--request-count", "4")
    requests = profile(openvino, tmp_path, "tensorrt_llm", [TOKENS], *more)
    assert len(requests) >= 4
    assert sum(len(request["response_timestamps"]) for request in requests) > len(requests)


@pytest.mark.soak
@pytest.mark.parametrize("more", [[], ["--output-tokens-mean-deterministic"]], ids=["mean", "deterministic"])
def test_genai_perf_measures_the_ensemble(openvino: RunningServer, tmp_path: Path, more: list[str]) -> None:
    tokenizer = str(PROJECT / "examples/demo_model/target")
    what = ["-m", "ensemble", "--backend", "tensorrtllm", "--endpoint-type", "kserve", "--streaming"]
    load = ["--synthetic-input-tokens-mean", "32", "--output-tokens-mean", "16", "--concurrency", "4"]
    where = ["-u", openvino.url, "--tokenizer", tokenizer, "--artifact-dir", "artifacts", "--request-count", "20"]
    run([str(GENAI_PERF), "profile", *what, *load, *where, *more], tmp_path)
    [found] = (tmp_path / "artifacts").rglob("profile_export_genai_perf.json")
    metrics = json.loads(found.read_text())
    assert metrics["request_count"]["avg"] == 20
    assert metrics["time_to_first_token"]["avg"] > 0
    if more:
        assert metrics["output_sequence_length"]["min"] >= 15  # it counts the text's tokens anew
