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
    here: Machine | None = None
    if gpu_gib is None or host_gib is None:
        here = read_machine((), is_asking_for_gpus=gpu_gib is None)
    host_bytes = int(host_gib * _GIB) if host_gib is not None else (here or _nothing()).free_host_bytes
    if gpu_gib is not None:
        names = {name for release in spec.releases for name in _named_gpus(release.placement.gpus)}
        count = num_gpus if num_gpus is not None else 0
        names |= {f"GPU {number}" for number in range(count or _most_ranks(spec))}
        return {HOST: host_bytes, **{name: int(gpu_gib * _GIB) for name in names}}, num_gpus
    gpus = (here or _nothing()).gpus
    found = {f"GPU {n}": each.free_bytes for n, each in enumerate(gpus) if each.free_bytes is not None}
    return {HOST: host_bytes, **found}, len(gpus) if num_gpus is None else num_gpus


def _nothing() -> Machine:
    return Machine(free_host_bytes=0)


def _named_gpus(gpus: tuple[int | str, ...] | None) -> list[str]:
    return [f"GPU {number}" for number in gpus or ()]


def _most_ranks(spec: DeploymentSpec) -> int:
    return max(int(getattr(release.engine, "world_size", 0)) for release in spec.releases)
