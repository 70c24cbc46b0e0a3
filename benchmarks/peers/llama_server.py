# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own server, compiled for this CPU, asked by OpenAI's API."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import model_files
from benchmarks.peers.child_server import serving, without_root
from benchmarks.peers.ensemble import NAMES
from benchmarks.peers.peer import AskedServer, Bits, Started, is_ready
from scripts.llama_server import program
from trireme.base.free_ports import free_ports

SLOTS = 16  # as many as users at most: a slot is a place in its batch
SLOT_TOKENS = 512  # of its context; a request here takes 128


class LlamaServer:
    """A llama.cpp server at its defaults, but for the slots, their context, and a thread for each core."""

    def __init__(self, bits: Bits) -> None:
        self.beside: str | None = NAMES[bits]
        kind = "q8_0" if bits == 8 else "bf16"
        self.name = f"llama.cpp {kind}"
        self.precision = "weights q8_0 (int8, a scale for 32)" if bits == 8 else "weights bf16"
        self._gguf = model_files.GGUF[bits]
        self._program = program(model_files.ROOT)
        self.needs: tuple[Path, ...] = (self._program, self._gguf)

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the server on a free port."""
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}/v1"
        batch = ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * SLOT_TOKENS), "--threads", str(os.cpu_count())]
        command = [str(self._program), "--model", str(self._gguf), *batch]
        place = ["--host", "127.0.0.1", "--port", str(port), "--alias", model_files.MODEL]
        with serving([*command, *place], ready=lambda: is_ready(url, model_files.MODEL)) as cpu_s:
            settings = without_root(command, model_files.ROOT)
            yield AskedServer(url, model_files.MODEL, version=self._version(), settings=settings, cpu_s=cpu_s)

    def _version(self) -> str:
        told = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        [line] = [line for line in (told.stdout + told.stderr).splitlines() if line.startswith("version:")]
        return f"llama.cpp {line.removeprefix('version:').strip()}"
