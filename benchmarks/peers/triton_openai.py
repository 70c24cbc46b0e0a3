# SPDX-License-Identifier: Apache-2.0
"""Triton's own OpenAI frontend before our models with a simulated engine; Triton runs within its process.

NVIDIA's containers have the frontend; no registry does. It asks every model but vLLM's by the names of upstream's
tensors, which ours take.
"""

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import triton_openai_launcher
from benchmarks.peers.child_server import serving
from benchmarks.peers.cpu_parts import behind, cpu_by_part
from benchmarks.peers.peer import AskedServer, Started, is_ready
from benchmarks.peers.simulated import shown_settings, simulated_deployment
from ensemble_configs.render.repository import write_repository
from serving.process.installation import find_triton
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.free_ports import free_ports

DEFAULT_FOLDER = Path("/opt/tritonserver/python/openai")  # in NVIDIA's containers
_LAUNCHER = Path(triton_openai_launcher.__file__)
_MODEL = "ensemble"
_VERSIONS = """
import importlib.metadata, sys
import fastapi, transformers, tritonserver, uvicorn
bindings = importlib.metadata.version("tritonserver")
server = tritonserver.Server(model_repository=sys.argv[1]).start(wait_until_ready=True)
print(f"Triton {server.metadata()['version']}, bindings {bindings}, FastAPI {fastapi.__version__}")
server.stop()
"""
_LOAD_THREADS = 64  # as `trireme serve` has: with the default of 4, clients of an engine would wait for its owner


class TritonOpenAi:
    """Triton's frontend at its defaults.

    Args:
        folder: python/openai of Triton's server.
        python: a Python with its packages and with `tritonserver`.
    """

    name = "Triton's OpenAI frontend"
    beside: str | None = None
    precision = "no model"
    needs: tuple[Path, ...] = ()  # see `lacks`

    def __init__(self, tokenizer_dir: Path, *, step_ms: float, folder: Path, python: str) -> None:
        self._spec = simulated_deployment(tokenizer_dir, step_ms=step_ms)
        self._main, self._python = folder / "openai_frontend" / "main.py", python

    def lacks(self) -> str | None:
        """Return what is missing for the frontend to run here; None: nothing."""
        if not self._main.is_file():
            return f"{self._main} is not there; NVIDIA's containers have it, and --triton-openai names its folder"
        try:
            _ = self.version
        except FileNotFoundError:
            return f"{self._python} is not there; --triton-python names a Python with the package tritonserver"
        except subprocess.CalledProcessError as exc:
            said = exc.stderr.strip().splitlines() or ["it says nothing"]
            return f"{self._python} cannot import what the frontend needs: {said[-1]}"
        return None

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield the frontend on a free port of this machine."""
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}/v1"
        triton = find_triton()
        options: dict[str, object] = {"strict_model_config": True, "model_load_thread_count": _LOAD_THREADS}
        if triton.backend_directory is not None:
            options["backend_directory"] = str(triton.backend_directory)
        with tempfile.TemporaryDirectory() as name:
            repository, run_dir = Path(name) / "model_repository", Path(name) / "run"
            repository.mkdir()
            run_dir.mkdir(mode=0o700)
            write_repository(self._spec, root=repository, source="a benchmark")
            command = [self._python, str(_LAUNCHER), str(self._main), json.dumps(options)]
            place = ["--model-repository", str(repository), "--host", "127.0.0.1", "--openai-port", str(port)]
            with serving(
                [*command, *place],
                ready=lambda: is_ready(url, _MODEL),
                environment=triton.environment(run_dir_variable=RUN_DIR_VARIABLE, run_dir=run_dir),
            ) as cpu_s:
                yield AskedServer(
                    url,
                    _MODEL,
                    version=self.version,
                    settings="python openai_frontend/main.py, with the models of trireme render; Triton's "
                    f"strict_model_config and {_LOAD_THREADS} model_load_threads; {shown_settings(self._spec)}",
                    cpu_s=cpu_s,
                    cpu_parts_s=lambda: cpu_by_part(cpu_s.processes(), behind(_LAUNCHER.name)),
                )

    @functools.cached_property
    def version(self) -> str:
        """Return the versions of Triton and of FastAPI; Triton is started for it, once, without a model.

        Raises:
            FileNotFoundError: there is no such Python.
            CalledProcessError: a package is missing, or cannot be loaded.
        """
        with tempfile.TemporaryDirectory() as folder:
            command = [self._python, "-c", _VERSIONS, folder]
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                env=find_triton().environment(run_dir_variable=RUN_DIR_VARIABLE, run_dir=Path(folder)),
                stdin=subprocess.DEVNULL,
            ).stdout.strip()


def default_python() -> str:
    """Return the Python that NVIDIA's containers have the packages in, which is this one's base."""
    return str(Path(sys.base_prefix) / "bin" / "python3")
