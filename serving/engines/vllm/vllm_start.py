# SPDX-License-Identifier: Apache-2.0
"""The way in which the process of a vLLM engine starts: by the interpreter of vLLM's environment; nothing starts here.

With one rank the engine core and its worker run in the engine's own process. With several, vLLM's executor starts a
process for each, below the guard.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.engine_start import EngineStart
from serving.engines.vllm.vllm_environment import interpreter_of
from serving.engines.vllm.vllm_transfer import transfer_settings
from serving.process.code_links import code_links

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
    is_parallel = spec.world_size > 1
    start = EngineStart(
        environment=_SETTINGS | (_threads(spec) if spec.is_on_cpu else {}) | transfer_settings(spec.kv_transfer),
        is_guarded=is_parallel,
        rank_words=_RANK_WORDS if is_parallel else (),
        close_timeout_s=spec.close_timeout_s if is_parallel else None,
    )
    if spec.venv_dir is None:
        return start
    return msgspec.structs.replace(
        start,
        python=str(interpreter_of(spec.venv_dir)),
        environment=start.environment | {"PYTHONPATH": str(code_links(run_dir))} | _openmp(spec, environ),
        dropped_variables=_OF_THE_SERVERS_PYTHON,
    )


def _threads(spec: VllmEngineSpec) -> dict[str, str]:
    """Return the settings of a CPU's threads.

    Unbound, the threads keep to the cores that the deployment gives the release (`placement.cpus`). Without a number
    and a time to spin, Intel's OpenMP spins for 200 ms after each step: 15.8 instead of 1.3 ms a step
    (docs/vllm_behaviour.md, cost of a step).
    """
    num_threads = spec.num_threads or len(os.sched_getaffinity(0))
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(num_threads), "KMP_BLOCKTIME": "1"}


def _openmp(spec: VllmEngineSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what has the OpenMP loaded that vLLM's CPU build brings."""
    if not spec.is_on_cpu or spec.venv_dir is None or not (library := spec.venv_dir / _OPENMP).is_file():
        return {}
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), environ.get("LD_PRELOAD"))))}
