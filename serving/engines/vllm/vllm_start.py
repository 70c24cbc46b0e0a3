# SPDX-License-Identifier: Apache-2.0
"""The way in which the process of a vLLM engine starts: by the interpreter of vLLM's environment; nothing starts here.

With one rank the engine core and its worker run in the engine's own process. With several, vLLM's executor starts a
process for each, below the guard.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.engine_start import EngineStart
from serving.process.code_links import code_links
from trireme.base.errors import SpecError

# vLLM spawns its workers by Python's multiprocessing.
_RANK_WORDS = ("multiprocessing.spawn", "multiprocessing.forkserver")
# No hub and no usage report: a server asks nobody. Log lines go to the process's own log. The core runs in the process
# that asks for it, in which a step is a call.
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# The server's paths would put its packages before those of the other environment.
_OF_THE_SERVERS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_OPENMP = "lib/libiomp5.so"  # Intel's, which vLLM's CPU build asks to have loaded first


def plan_vllm_start(spec: VllmEngineSpec, environ: Mapping[str, str], run_dir: Path) -> EngineStart:
    """Return how the process of an engine starts.

    Args:
        spec: the engine's.
        environ: of the server.
        run_dir: folder of the server, in which the links to Trireme's code are made.

    Raises:
        SpecError: the environment has no interpreter.
    """
    environment = _SETTINGS | _threads(spec)
    is_parallel = spec.world_size > 1
    start = EngineStart(
        environment=environment,
        is_guarded=is_parallel,
        rank_words=_RANK_WORDS if is_parallel else (),
        close_timeout_s=spec.close_timeout_s if is_parallel else None,
    )
    if spec.venv_dir is None:
        return start
    python = interpreter_of(spec)
    openmp = spec.venv_dir / _OPENMP
    if openmp.is_file():
        environment["LD_PRELOAD"] = ":".join(filter(None, (str(openmp), environ.get("LD_PRELOAD"))))
    environment["PYTHONPATH"] = str(code_links(run_dir))
    return EngineStart(
        python=str(python),
        environment=environment,
        dropped_variables=_OF_THE_SERVERS_PYTHON,
        is_guarded=start.is_guarded,
        rank_words=start.rank_words,
        close_timeout_s=start.close_timeout_s,
    )


def interpreter_of(spec: VllmEngineSpec) -> Path:
    """Return the interpreter of the environment that the deployment names.

    Raises:
        SpecError: there is none that could run.
    """
    assert spec.venv_dir is not None
    python = spec.venv_dir / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise SpecError(
            f"engine.venv_dir: {spec.venv_dir} has no bin/python that could run; name a virtual environment with vLLM "
            "in it, or leave engine.venv_dir out where the server's own environment has vLLM",
            field="engine.venv_dir",
            value=str(spec.venv_dir),
        )
    return python


def _threads(spec: VllmEngineSpec) -> dict[str, str]:
    """Return the settings of a CPU's threads; a GPU's engine heeds none."""
    # Unbound, the threads keep to the cores that the deployment gives the release (`placement.cpus`).
    settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return settings if spec.num_threads is None else settings | {"OMP_NUM_THREADS": str(spec.num_threads)}
