# SPDX-License-Identifier: Apache-2.0
"""The process groups of a vLLM engine: where its ranks meet, and a lone rank, which has nobody to talk to."""

import importlib
import uuid
from typing import Any


def meet_in(folder: str) -> None:
    """Have the ranks of an engine, a lone one too, meet at a file in a folder that goes with the engine's processes.

    vLLM's own file lies in the temporary folder, and stays there when a rank is killed.

    Source: vllm 0.32.0, `vllm/utils/network_utils.py`, get_file_store_init_method.
    """
    for name in ("uniproc_executor", "multiproc_executor"):
        executor: Any = importlib.import_module(f"vllm.v1.executor.{name}")
        executor.get_file_store_init_method = lambda: f"file://{folder}/ranks_{uuid.uuid4().hex}"


def share_one_group() -> None:
    """Leave a loaded engine with one rank a single process group, in place of thirteen with that one member.

    Each group has a thread of gloo's that wakes 100 times a second, in the midst of a step as well, and takes a core
    from the threads that compute (docs/vllm_behaviour.md, cost of a step).

    Source: vllm 0.32.0, `vllm/distributed/parallel_state.py`, GroupCoordinator.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    for known in state._groups.values():
        if (group := known()) is not None:
            group.destroy()
            for holder in filter(None, (group, group.device_communicator)):
                holder.device_group = holder.cpu_group = distributed.group.WORLD
            group.destroy = _keep  # when vLLM ends, the shared group ends by itself


def _keep() -> None:
    """Do nothing: a group that others have as well ends with the last of them."""
