# SPDX-License-Identifier: Apache-2.0
"""The way in which the process of a vLLM engine starts: by the interpreter of vLLM's environment; nothing starts here.

With one rank the engine core and its worker run in the engine's own process. With several, vLLM's executor starts a
process for each, below the guard. What these leave when they are killed goes with the guard: their sockets lie in the
folder of the start, and their shared memory is found by what they map.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.engine_start import EngineStart
from serving.engines.vllm.vllm_environment import interpreter_of
from serving.engines.vllm.vllm_transfer import transfer_settings
from serving.engines.vllm.vllm_upstream import FOLDER
from serving.process.code_links import code_links
from trireme.base.errors import SpecError

# vLLM spawns its workers by Python's multiprocessing, and gives them names of their own when they have begun.
_RANK_WORDS = ("multiprocessing.spawn", "VLLM::Worker")
_OF_RANKS = {
    # On a GPU vLLM would fork, and a fork has the command line of the engine's process: the guard would not know it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # A name of its own must not overwrite the environment, by which a rank is found whose guard was killed.
    "SPT_NOENV": "1",
}
_MAX_SOCKET_PATH = 107  # of the kernel
_IN_RUN_DIR = "/launch-01234567/01234567-0123-0123-0123-0123456789ab"  # a socket of vLLM's there
# Intel's OpenMP notes itself there, and takes the note away in an end that no killed process has, and no `os._exit`.
OPENMP_NOTE = "/dev/shm/__KMP_REGISTERED_LIB_"
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


def plan_vllm_start(
    spec: VllmEngineSpec, environ: Mapping[str, str], run_dir: Path, *, cpus: Sequence[int] | None = None
) -> EngineStart:
    """Return how the process of an engine starts.

    Args:
        spec: the engine's.
        environ: of the server.
        run_dir: folder of the server, in which the links to Trireme's code are made.
        cpus: cores of the release's place; None: all that this process may use.

    Raises:
        SpecError: the environment has no interpreter, or `run_dir` is too deep for the sockets of ranks.
    """
    start = EngineStart(
        environment=_SETTINGS | (_threads(spec, cpus) if spec.is_on_cpu else {}) | transfer_settings(spec.kv_transfer),
        left_files=(openmp_note("{pid}"),),
        folder_variables=(FOLDER,),
    )
    if spec.world_size > 1:
        _refuse_long_paths(spec, run_dir)
        start = msgspec.structs.replace(
            start,
            environment=start.environment | _OF_RANKS,
            is_guarded=True,
            rank_words=_RANK_WORDS,
            close_timeout_s=spec.close_timeout_s,
        )
    if spec.venv_dir is None:
        return start
    return msgspec.structs.replace(
        start,
        python=str(interpreter_of(spec.venv_dir)),
        environment=start.environment | {"PYTHONPATH": str(code_links(run_dir))} | _openmp(spec, environ),
        dropped_variables=_OF_THE_SERVERS_PYTHON,
    )


def _threads(spec: VllmEngineSpec, cpus: Sequence[int] | None) -> dict[str, str]:
    """Return the settings of a CPU's threads.

    Not bound by vLLM, the threads keep to the cores that the deployment gives the release (`placement.cpus`), one for
    each, divided among the ranks. Without a number and a time to spin, Intel's OpenMP spins for 200 ms after each step:
    15.8 instead of 1.3 ms a step (docs/vllm_behaviour.md, cost of a step).

    The threads of a lone rank that has all of these cores are bound by OpenMP, each to one: whatever wakes beside could
    have two of them meet on one core, where each step waits for both. Fewer threads than cores are not: those of
    another engine would be bound to the same cores.
    """
    num_cores = len(os.sched_getaffinity(0) if cpus is None else cpus)
    num_threads = spec.num_threads or max(1, num_cores // spec.world_size)
    bound = {"KMP_AFFINITY": "granularity=fine,compact"} if spec.num_threads is None and spec.world_size == 1 else {}
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(num_threads),
        "KMP_BLOCKTIME": "1",
        **bound,
    }


def openmp_note(pid: int | str) -> str:
    """Return the path of the note that Intel's OpenMP makes in the shared memory, for a process of this user."""
    return f"{OPENMP_NOTE}{pid}_{os.getuid()}"


def _refuse_long_paths(spec: VllmEngineSpec, run_dir: Path) -> None:
    if len(str(run_dir)) + len(_IN_RUN_DIR) > _MAX_SOCKET_PATH:
        raise SpecError(
            f"engine.tp_size ({spec.tp_size}): the sockets between the ranks of vLLM would lie too deep, below "
            f"{run_dir}; set TMPDIR to a folder of at most {_MAX_SOCKET_PATH - len(_IN_RUN_DIR) - 20} characters",
            field="engine.tp_size",
            value=spec.tp_size,
        )


def _openmp(spec: VllmEngineSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what has the OpenMP loaded that vLLM's CPU build brings."""
    if not spec.is_on_cpu or spec.venv_dir is None or not (library := spec.venv_dir / _OPENMP).is_file():
        return {}
    return {"LD_PRELOAD": ":".join(filter(None, (str(library), environ.get("LD_PRELOAD"))))}
