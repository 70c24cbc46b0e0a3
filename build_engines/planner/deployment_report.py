# SPDX-License-Identifier: Apache-2.0
"""`trireme plan --deployment`: the memory plan of a deployment, for people and as JSON."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from build_engines.planner.deployment_plan import HOST, DeploymentPlan, EnginePart, gib, plan_deployment
from build_engines.planner.device_memory import device_memory
from ensemble_configs.spec.deployment import load_deployment
from trireme.base.text_tables import TextTable, json_text, print_tables


def report_deployment(
    path: Path, *, gpu: str | None, num_gpus: int | None, host_memory_gib: float | None, is_json: bool
) -> None:
    """Print the memory plan of a deployment file; exit status 2 where something does not fit.

    Args:
        gpu: replaces the deployment's `machine.gpu` and the GPU of this machine.
        num_gpus: replaces the number of GPUs of the deployment and of this machine.
        host_memory_gib: replaces the host memory of the deployment and of this machine.

    Raises:
        SpecError: the file is wrong, or an engine is not there.
    """
    spec = load_deployment(path)
    memory_bytes, num_here = device_memory(spec, gpu=gpu, num_gpus=num_gpus, host_memory_gib=host_memory_gib)
    plan = plan_deployment(spec, memory_bytes, num_gpus=num_here)
    if is_json:
        sys.stdout.write(json_text(_as_data(plan)))
    else:
        is_measured = host_memory_gib is None and spec.machine.host_memory_gib is None
        _print(plan, host="that are free here now" if is_measured else "")
    if plan.problems:
        raise typer.Exit(2)


def _print(plan: DeploymentPlan, *, host: str) -> None:
    headers = ("model", "release", "on", "weights", "workspace", "KV cache", "KV tokens", "sequences", "from")
    rows = tuple(map(_row, plan.engines))
    notes = ("", *_devices(plan, host), "", *_updates(plan), *(f"does not fit: {one}" for one in plan.problems))
    title = f"{plan.name}: memory of {len(plan.engines)} engines, of each device"
    print_tables([TextTable("", headers, rows, notes, ("model", "on", "from"))], title=title)


def _devices(plan: DeploymentPlan, host: str) -> Iterator[str]:
    for device in plan.devices:
        of = "how much it has is not known" if device.memory_bytes is None else f"of {gib(device.memory_bytes)}"
        of += f" {host}" if device.name == HOST and host else ""
        free = "" if device.free_bytes is None else f", {gib(max(0, device.free_bytes))} free"
        yield f"{device.name}: {gib(device.used_bytes)} {of}{free} ({', '.join(device.users)})"


def _updates(plan: DeploymentPlan) -> Iterator[str]:
    for second in plan.second_versions:
        fits = "fits"
        if second.missing_bytes:
            blocks = second.fitting_kv_blocks
            way = (
                "roll it out on a second server" if blocks is None else f"fits with engine.num_kv_blocks {blocks} each"
            )
            fits = f"{gib(second.missing_bytes)} too much; {way}"
        yield f"a second version of {second.model} beside it: {gib(second.num_bytes)}, {fits}"


def _row(part: EnginePart) -> tuple[str, ...]:
    proposed = " (proposed)" if part.is_proposed else ""
    return (
        part.model + (f" (pool {part.pool})" if part.pool else ""),
        str(part.release),
        ", ".join(part.devices),
        gib(part.memory.weight_bytes),
        gib(part.memory.workspace_bytes),
        f"{gib(part.kv_bytes)}, {part.num_kv_blocks} blocks{proposed}",
        f"{part.kv_tokens:,}",
        f"{part.kv_tokens // part.max_seq_len} x {part.max_seq_len}",
        part.memory.source,
    )


def _as_data(plan: DeploymentPlan) -> dict[str, object]:
    return {
        "name": plan.name,
        "fits": not plan.problems,
        "problems": list(plan.problems),
        "engines": [
            dataclasses.asdict(part)
            | {"kv_bytes": part.kv_bytes, "kv_tokens": part.kv_tokens, "num_bytes": part.num_bytes}
            for part in plan.engines
        ],
        "devices": [dataclasses.asdict(device) | {"free_bytes": device.free_bytes} for device in plan.devices],
        "second_versions": [dataclasses.asdict(second) for second in plan.second_versions],
    }
