# SPDX-License-Identifier: Apache-2.0
"""The command line that starts a server whose TensorRT-LLM engine is of several ranks; pure text, nothing is started.

On one node nothing is needed: the LLM starts a process for each GPU itself, through MPI. Over several nodes, and where
MPI may not start processes (Slurm), every rank is started from outside, by upstream's `trtllm-llmapi-launch`: rank 0,
the leader, runs the server and passes on what its LLM asks for; the others wait for work.
"""

from collections.abc import Sequence

from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from trireme.base.errors import SpecError

LAUNCH_SCRIPT = "trtllm-llmapi-launch"


def render_launch(
    spec: TrtLlmSpec, command: Sequence[str], *, num_nodes: int, launcher_options: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the command line with which `mpirun` starts a server over several nodes.

    Args:
        spec: its `world_size` is the number of ranks.
        command: the server's own command line.
        num_nodes: machines, each with an equal number of GPUs.
        launcher_options: options of the launcher, beside ours.

    Raises:
        SpecError: the ranks do not divide into the nodes.
    """
    if spec.world_size % num_nodes:
        raise SpecError(
            f"the engine's {spec.world_size} ranks do not divide into {num_nodes} nodes; "
            "change engine.tp_size or engine.pp_size",
            field="engine.tp_size",
            value=spec.tp_size,
        )
    ranks_per_node = spec.world_size // num_nodes
    if spec.gpus_per_node != ranks_per_node:
        raise SpecError(
            f"engine.gpus_per_node ({spec.gpus_per_node}) must be {ranks_per_node}: "
            f"{spec.world_size} ranks on {num_nodes} nodes",
            field="engine.gpus_per_node",
            value=spec.gpus_per_node,
        )
    ranks = ("-n", str(spec.world_size), "--map-by", f"ppr:{ranks_per_node}:node")
    return ("mpirun", "--allow-run-as-root", *ranks, *launcher_options, LAUNCH_SCRIPT, *command)
