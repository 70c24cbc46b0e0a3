# SPDX-License-Identifier: Apache-2.0
"""The memory of a deployment's devices: from options, from the deployment's `machine`, or from this machine."""

from build_engines.checkpoint.gpus import gpu_named
from build_engines.planner.deployment_plan import HOST
from ensemble_configs.releases.machine import Machine
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.process.this_machine import read_machine

_GIB = 2**30


def device_memory(
    spec: DeploymentSpec, *, gpu: str | None = None, num_gpus: int | None = None, host_memory_gib: float | None = None
) -> tuple[dict[str, int], int | None]:
    """Return bytes by device ("host", "GPU 0") and the number of GPUs; None: unknown.

    Raises:
        SpecError: no such GPU.
    """
    machine = spec.machine
    gpu, num_gpus = gpu or machine.gpu, machine.num_gpus if num_gpus is None else num_gpus
    gpu_gib = machine.gpu_memory_gib if gpu is None or machine.gpu_memory_gib else gpu_named(gpu).memory_gib
    host_gib = host_memory_gib or machine.host_memory_gib
    here = Machine(free_host_bytes=0)
    if gpu_gib is None or host_gib is None:
        here = read_machine((), is_asking_for_gpus=gpu_gib is None)
    host_bytes = here.free_host_bytes if host_gib is None else int(host_gib * _GIB)
    if gpu_gib is None:
        found = {f"GPU {n}": each.free_bytes for n, each in enumerate(here.gpus) if each.free_bytes is not None}
        return {HOST: host_bytes, **found}, len(here.gpus) if num_gpus is None else num_gpus
    most_ranks = max(int(getattr(release.engine, "world_size", 0)) for release in spec.releases)
    numbers = {*range(num_gpus or most_ranks), *(gpu for one in spec.releases for gpu in one.placement.gpus or ())}
    return {HOST: host_bytes, **{f"GPU {number}": int(gpu_gib * _GIB) for number in numbers}}, num_gpus
