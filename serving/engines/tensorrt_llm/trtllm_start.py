# SPDX-License-Identifier: Apache-2.0
"""The way in which the process of a TensorRT-LLM engine starts, so that its ranks can; pure, nothing is started here.

Upstream's LLM API runs every rank in a process of its own, which it has MPI spawn, for one GPU too. Three ways work:

- one rank: no rank process at all, the executor runs in the engine's process (`TLLM_WORKER_USE_SINGLE_PROCESS=1`);
- several ranks on one node: the engine's process is the only rank of an `mpirun` of its own, which spawns the ranks
  beside it. Without a launcher MPI may refuse to spawn (`MPI_ERR_SPAWN`), and upstream then waits for ever;
- several nodes: every rank was started from outside, with the server below upstream's script at rank 0
  (`serving.engines.tensorrt_llm.trtllm_launch`), which tells the LLM so by environment. One such launch serves one LLM.

Triton and its stubs are never part of an MPI job. Sources: tensorrt_llm/executor/executor.py (`create`),
llmapi/mpi_session.py, llmapi/trtllm-llmapi-launch; docs/trtllm_behaviour.md, B1 and B2.
"""

from collections.abc import Callable, Mapping, Sequence

from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.seam.engine_start import EngineStart
from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from serving.engines.tensorrt_llm.trtllm_launch import LAUNCH_SCRIPT
from trireme.base.errors import SpecError

# Says that upstream's script has started every rank already; the LLM then binds to those.
_STARTED_OUTSIDE = "TLLM_SPAWN_PROXY_PROCESS"
SINGLE_PROCESS = "TLLM_WORKER_USE_SINGLE_PROCESS"
# An MPI job must not begin in the environment of another (upstream's script drops these too), nor ask Slurm for room.
_OF_AN_MPI_JOB = (
    "OMPI_COMM_",
    "OMPI_UNIVERSE_",
    "OMPI_FILE_",
    "OMPI_FIRST_",
    "PMIX_",
    "PMI_",
    "PRTE_LAUNCHED",
    "SLURM_",
)
# Parts of the command lines of ranks: mpi4py's pool, and upstream's at ranks that were started from outside.
_RANK_WORDS = ("mpi4py.futures.server", "tensorrt_llm.llmapi.mgmn_worker_node", "tensorrt_llm.llmapi.mgmn_leader_node")
# mpirun pins one process to one core, and fills as many slots as the container has cores. Open MPI 4 and 5 each read
# their own words.
_MPIRUN_SETTINGS = {
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_MPIRUN_FOLDERS = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")


def plan_engine_start(spec: TrtLlmSpec, environ: Mapping[str, str], find: Callable[[str], str | None]) -> EngineStart:
    """Return how the process of an engine starts.

    Args:
        spec: the engine's.
        environ: of the server.
        find: returns the path of a program, as `shutil.which`.

    Raises:
        SpecError: the ranks cannot be started here; the text has the cure.
    """
    if environ.get(_STARTED_OUTSIDE) == "1":
        # The ranks are not below it: `trireme group` ends when one of them does.
        return EngineStart(is_guarded=True, close_timeout_s=spec.close_timeout_s)
    start = EngineStart(
        is_guarded=True,
        rank_words=_RANK_WORDS,
        dropped_variables=_OF_AN_MPI_JOB,
        folder_variables=_MPIRUN_FOLDERS,
        close_timeout_s=spec.close_timeout_s,
    )
    _refuse_other_nodes(spec)
    if needs_launcher(spec):
        return start.under(_mpirun(spec, find), _MPIRUN_SETTINGS)
    return start


def needs_launcher(spec: TrtLlmSpec) -> bool:
    """Return whether the LLM of this spec spawns ranks that `mpirun` has to allow for."""
    return spec.launcher == "mpirun" or (spec.launcher == "auto" and spec.world_size > 1)


def rank_environment(spec: TrtLlmSpec) -> dict[str, str]:
    """Return the environment variables that upstream reads before its LLM is made."""
    return {SINGLE_PROCESS: "1" if spec.launcher == "auto" and spec.world_size == 1 else "0"}


def _mpirun(spec: TrtLlmSpec, find: Callable[[str], str | None]) -> tuple[str, ...]:
    program = find("mpirun")
    if program is None:
        raise SpecError(
            f"engine.launcher: an engine of {spec.world_size} ranks starts under mpirun, which is not on PATH; run "
            "this in NVIDIA's container, which has it, or install Open MPI (apt-get install openmpi-bin); "
            "engine.launcher none lets MPI spawn the ranks without it, where it can",
            field="engine.launcher",
            value=spec.launcher,
        )
    return (program, "--allow-run-as-root", "-n", "1")


def _refuse_other_nodes(spec: TrtLlmSpec) -> None:
    if spec.gpus_per_node is not None and spec.gpus_per_node < spec.world_size:
        raise SpecError(
            f"the engine's {spec.world_size} ranks take {spec.world_size // spec.gpus_per_node} nodes of "
            f"engine.gpus_per_node {spec.gpus_per_node}; start the server with trireme group, which starts ranks on "
            "every node",
            field="engine.gpus_per_node",
            value=spec.gpus_per_node,
        )


def refuse_second_llm(releases: Sequence[ReleaseSpec], environ: Mapping[str, str]) -> None:
    """Check that ranks started from outside serve one LLM only.

    Raises:
        SpecError: the releases have several; upstream's script would connect them all to one pool of ranks.
    """
    num_llms = sum(isinstance(release.engine, TensorRtEngineSpec | PyTorchEngineSpec) for release in releases)
    if environ.get(_STARTED_OUTSIDE) == "1" and num_llms > 1:
        raise SpecError(
            f"ranks that {LAUNCH_SCRIPT} has started serve one LLM, and {num_llms} are wanted here (models and "
            "releases together); serve each in a group of its own",
            field="engine",
        )
