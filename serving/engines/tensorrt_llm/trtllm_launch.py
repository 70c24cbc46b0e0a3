# SPDX-License-Identifier: Apache-2.0
"""The command line that starts a server whose TensorRT-LLM engine is of several ranks; pure text, nothing is started.

On one node nothing is needed: the LLM starts a process for each GPU itself, through MPI. Over several nodes, and where
MPI may not start processes (Slurm), every rank is started from outside, by upstream's `trtllm-llmapi-launch`: rank 0,
the leader, runs the server and passes on what its LLM asks for; the others wait for work.
"""

from collections.abc import Sequence
from typing import Literal

from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from trireme.base.errors import SpecError

Launcher = Literal["srun", "mpirun"]
LAUNCH_SCRIPT = "trtllm-llmapi-launch"


def render_launch(
    spec: TrtLlmSpec,
    command: Sequence[str],
    *,
    num_nodes: int = 1,
    launcher: Launcher | None = None,
    launcher_options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command line for a server.

    Args:
        spec: its `world_size` is the number of ranks.
        command: the server's own command line.
        num_nodes: machines, each with an equal number of GPUs.
        launcher: what starts the ranks; None: the LLM itself, on one node.
        launcher_options: options of the launcher, beside ours.

    Raises:
        SpecError: the ranks do not divide into the nodes, or the nodes have no launcher.
    """
    if num_nodes > 1 and launcher is None:
        raise SpecError(f"an engine on {num_nodes} nodes needs a launcher: srun or mpirun", field="launcher")
    if spec.world_size % num_nodes:
        raise SpecError(
            f"the engine's {spec.world_size} ranks do not divide into {num_nodes} nodes; "
            "change engine.tp_size or engine.pp_size",
            field="engine.tp_size",
            value=spec.tp_size,
        )
    ranks_per_node = spec.world_size // num_nodes
    if num_nodes > 1 and spec.gpus_per_node != ranks_per_node:
        raise SpecError(
            f"engine.gpus_per_node ({spec.gpus_per_node}) must be {ranks_per_node}: "
            f"{spec.world_size} ranks on {num_nodes} nodes",
            field="engine.gpus_per_node",
            value=spec.gpus_per_node,
        )
    if launcher is None:
        return tuple(command)
    started = (*_launcher_command(launcher, num_nodes, ranks_per_node), *launcher_options)
    return (*started, LAUNCH_SCRIPT, *command)


def _launcher_command(launcher: Launcher, num_nodes: int, ranks_per_node: int) -> tuple[str, ...]:
    if launcher == "srun":
        return ("srun", "-N", str(num_nodes), f"--ntasks-per-node={ranks_per_node}", "--mpi=pmix")
    num_ranks = str(num_nodes * ranks_per_node)
    return ("mpirun", "--allow-run-as-root", "-n", num_ranks, "--map-by", f"ppr:{ranks_per_node}:node")
