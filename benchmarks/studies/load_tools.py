# SPDX-License-Identifier: Apache-2.0
"""The load tools of `trireme bench` on one server, one after the other: what each sees of the same load.

`make bench-tools`, `python3 scripts/bootstrap.py --only bench aiperf`, then `python -m benchmarks.studies.load_tools`;
five minutes. The server is the simulated engine, 8 ms a step. Each tool goes twice, the second time in the other order,
so that a machine that becomes slower meanwhile is seen. Writes `results/load_tools_<date>.json`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from benchmarks.support.report import environment, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from ensemble_configs.spec.deployment import DeploymentSpec

NUM_USERS = 16
NUM_TOKENS = 64  # of a prompt, and of an answer
NUM_REQUESTS = 480
ROUNDS = ("first", "second")
TOOLS: dict[str, tuple[str, ...]] = {
    "bench run": ("run", "--concurrency", str(NUM_USERS)),
    "perf_analyzer": ("perf-analyzer", "--concurrency", str(NUM_USERS)),
    "Locust, two workers": ("locust", "--workers", "2", "--users", str(NUM_USERS)),
    "genai-perf, prompts of its own": ("genai-perf", "--concurrency", str(NUM_USERS)),
    "aiperf, over HTTP": ("aiperf", "--concurrency", str(NUM_USERS)),
}
_ENGINE = {"provider": "simulated", "step_ms": 8.0, "max_num_seqs": NUM_USERS, "num_kv_blocks": 4096}
_TOKENIZER = Path(__file__).resolve().parents[2] / "examples/demo_model/target"
_say = Console(stderr=True).print


def _deployment() -> DeploymentSpec:
    return DeploymentSpec.model_validate({"name": "load_tools", "tokenizer": {"dir": _TOKENIZER}, "engine": _ENGINE})


def _run(server: ThroughEnsemble, tool: str, folder: Path) -> dict[str, Any]:
    command, *load = TOOLS[tool]
    address = server.http if command == "aiperf" else server.url
    arguments = ["--tokenizer", _TOKENIZER, "--requests", NUM_REQUESTS, "--isl", NUM_TOKENS, "--osl", NUM_TOKENS]
    arguments += ["--url", address, "--metrics", f"http://{server.metrics}/metrics", "--json", "--out", folder]
    done = subprocess.run(
        [sys.executable, "-m", "trireme", "bench", command, *load, *map(str, arguments)],
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{tool}: `trireme bench {command}` ended with {done.returncode}; what it said is above")
    figures = json.loads(done.stdout)
    return {
        "ends": figures["ends"],
        "output_tokens_mean": figures["osl"]["mean"],
        **{f"{name}_p50_ms": figures["latencies"][name]["percentiles"]["50"] for name in ("ttft", "tpot", "e2e")},
        "requests_per_s": figures["requests"]["per_s"],
        "client_cores": figures["client"]["cpu_share"],
    }


def main() -> None:
    """Measure, print and write."""
    begun = environment()
    found: dict[str, dict[str, object]] = {tool: {} for tool in TOOLS}
    with ThroughEnsemble(_deployment()) as server, tempfile.TemporaryDirectory() as folder:
        for name, tools in zip(ROUNDS, (list(TOOLS), list(reversed(TOOLS))), strict=True):
            for tool in tools:
                found[tool][name] = _run(server, tool, Path(folder) / f"{name} {tool}")
                _say(f"{tool}, {name} time: {found[tool][name]}")
    load = {"users": NUM_USERS, "prompt_tokens": NUM_TOKENS, "output_tokens": NUM_TOKENS, "requests": NUM_REQUESTS}
    result = {"engine": _ENGINE, "load": load, "tools": found, "environment": begun}
    _say(f"written to {write_result('load_tools', result)}")


if __name__ == "__main__":
    typer.run(main)
