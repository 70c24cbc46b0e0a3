# SPDX-License-Identifier: Apache-2.0
"""`trireme plan --deployment`: the memory plan of a deployment, for people and as JSON."""

import dataclasses
import json
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from build_engines.planner.deployment_plan import HOST, DeploymentPlan, EnginePart, gib, plan_deployment
from build_engines.planner.device_memory import device_memory
from ensemble_configs.spec.deployment import load_deployment


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
        json.dump(_as_data(plan), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        is_measured = host_memory_gib is None and spec.machine.host_memory_gib is None
        _print(plan, host="that are free here now" if is_measured else "")
    if plan.problems:
        raise typer.Exit(2)


def _print(plan: DeploymentPlan, *, host: str) -> None:
    is_terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout, highlight=False, markup=False, soft_wrap=not is_terminal, width=None if is_terminal else 170
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("model", "release", "on", "weights", "workspace", "KV cache", "KV tokens", "sequences", "from"):
        is_text = header in {"model", "on", "from"}
        table.add_column(header, justify="left" if is_text else "right", no_wrap=header != "from")
    for part in plan.engines:
        table.add_row(*_row(part))
    console.print(f"{plan.name}: memory of {len(plan.engines)} engines, of each device")
    console.print(table)
    console.print()
    for device in plan.devices:
        of = "how much it has is not known" if device.memory_bytes is None else f"of {gib(device.memory_bytes)}"
        of += f" {host}" if device.name == HOST and host else ""
        free = "" if device.free_bytes is None else f", {gib(max(0, device.free_bytes))} free"
        console.print(f"{device.name}: {gib(device.used_bytes)} {of}{free} ({', '.join(device.users)})")
    console.print()
    for second in plan.second_versions:
        console.print(f"a second version of {second.model} beside it: {gib(second.num_bytes)}, ", end="")
        if not second.missing_bytes:
            console.print("fits")
        elif second.fitting_kv_blocks is not None:
            console.print(
                f"{gib(second.missing_bytes)} too much; fits with engine.num_kv_blocks {second.fitting_kv_blocks} each"
            )
        else:
            console.print(f"{gib(second.missing_bytes)} too much; roll it out on a second server")
    for problem in plan.problems:
        console.print(f"does not fit: {problem}")


def _row(part: EnginePart) -> list[str]:
    proposed = " (proposed)" if part.is_proposed else ""
    return [
        part.model + (f" (pool {part.pool})" if part.pool else ""),
        str(part.release),
        ", ".join(part.devices),
        gib(part.memory.weight_bytes),
        gib(part.memory.workspace_bytes),
        f"{gib(part.kv_bytes)}, {part.num_kv_blocks} blocks{proposed}",
        f"{part.kv_tokens:,}",
        f"{part.kv_tokens // part.max_seq_len} x {part.max_seq_len}",
        part.memory.source,
    ]


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
