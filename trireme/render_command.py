# SPDX-License-Identifier: Apache-2.0
"""The command `trireme render`: it writes what Triton reads, without starting anything, or shows a change's effects."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from build_engines.planner.deployment_plan import gib, plan_deployment
from build_engines.planner.device_memory import device_memory
from build_engines.planner.reload_cost import DevicePeak, peaks
from ensemble_configs.changes.deployment_diff import DeploymentDiff, ModelChange, compare
from ensemble_configs.releases.engine_fit import refuse_unfit_engine
from ensemble_configs.render.helm_values import render_helm_values
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT, DEFAULT_REPOSITORY, write_repository
from ensemble_configs.render.server_lock import refuse_served
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from trireme.base.errors import SpecError
from trireme.base.project_files import IS_CHECKOUT, project_file

_NUM_REASONS = 4


def render(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write.",
            show_default="build/NAME; model_repository for the default deployment of a checkout",
        ),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(help="An older deployment file: say what would change for a running server; nothing is written."),
    ] = None,
    is_helm: Annotated[
        bool, typer.Option("--helm", help="Print Helm values of the deployment; nothing is written.")
    ] = False,
    is_chart: Annotated[
        bool, typer.Option("--chart", help="Print the folder of the Helm chart; nothing is written.")
    ] = False,
    is_json: Annotated[bool, typer.Option("--json", help="With --diff: print the changes as one JSON object.")] = False,
) -> None:
    """Render a deployment into a model repository; files that are right already are not touched.

    An engine that is on this machine is compared with what the deployment asks of it. An engine that was built
    without that is refused.

    With --diff, print which models Triton would load anew, why, and how much memory is taken while old and new are
    both loaded.

    \b
    Examples:
      trireme render
      trireme render --deployment my.yaml --out /srv/models
      trireme render --deployment my.yaml --diff my-old.yaml
      trireme render --deployment my.yaml --helm > values.yaml
      helm template my-model "$(trireme render --chart)" -f values.yaml
    """
    if is_json and diff is None:
        raise SpecError("--json is for --diff; name the older deployment file", field="json")
    if (diff is not None) + is_helm + is_chart + (out is not None) > 1:
        raise SpecError("give one of --diff, --helm, --chart and --out: the first three write nothing", field="diff")
    if is_chart:
        typer.echo(project_file("helm/trireme"))
        return
    spec = load_deployment(deployment)
    for release in spec.releases:
        refuse_unfit_engine(release.engine)
    if diff is not None:
        _report(load_deployment(diff), spec, is_json=is_json)
        return
    if is_helm:
        typer.echo(render_helm_values(spec, source=_shown(deployment)), nl=False)
        return
    is_default = deployment.resolve() == DEFAULT_DEPLOYMENT
    is_committed = is_default and IS_CHECKOUT
    root = out or (DEFAULT_REPOSITORY if is_committed else Path("build") / spec.name / "model_repository")
    refuse_served(root)
    written = write_repository(spec, root=root, source=_shown(deployment))
    typer.echo(f"{root}: {len(written)} files written" + "".join(f"\n  {path}" for path in written))


def _shown(deployment: Path) -> str:
    """Return the deployment's path as it goes into generated files, equal on every machine."""
    try:
        return str(deployment.resolve().relative_to(DEFAULT_REPOSITORY.parent))
    except ValueError:
        return deployment.name


def _report(old: DeploymentSpec, new: DeploymentSpec, *, is_json: bool) -> None:
    found = compare(old, new)
    costs, why_unknown = _costs(found, old, new)
    if is_json:
        data = dataclasses.asdict(found) | {
            "memory": [dataclasses.asdict(cost) | {"missing_bytes": cost.missing_bytes} for cost in costs],
            "memory_unknown": why_unknown,
        }
        json.dump(data, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    console = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
    if not found.changes and not found.restarts:
        console.print("nothing changes")
        return
    for change in found.changes:
        console.print(_line(change))
    for line in found.restarts:
        console.print(f"tritonserver has to be started again: {line}")
    for release in found.changed_releases:
        console.print(f"{release} changes under its number; give the new one another, and the old one can come back")
    for cost in costs:
        console.print(_cost_line(cost))
    if why_unknown:
        console.print(f"memory is not known: {why_unknown}")


def _costs(found: DeploymentDiff, old: DeploymentSpec, new: DeploymentSpec) -> tuple[list[DevicePeak], str | None]:
    """Return the peak memory of each device during the change; or none, and why it is not known."""
    memory_bytes, num_gpus = device_memory(new)
    try:
        before, after = (plan_deployment(spec, memory_bytes, num_gpus=num_gpus) for spec in (old, new))
    except SpecError as exc:
        return [], exc.message
    return peaks(found, new, before=before, after=after, memory_bytes=memory_bytes), None


def _line(change: ModelChange) -> str:
    versions = []
    if change.loaded:
        versions.append(f"loads {', '.join(map(str, change.loaded))}")
    if change.dropped:
        versions.append(f"drops {', '.join(map(str, change.dropped))}")
    line = f"{change.name}: {change.kind}" + (f" ({'; '.join(versions)})" if versions else "")
    shown = [*change.why[:_NUM_REASONS]]
    if len(change.why) > _NUM_REASONS:
        shown.append(f"and {len(change.why) - _NUM_REASONS} more (--json)")
    return line + "".join(f"\n    {reason}" for reason in shown)


def _cost_line(cost: DevicePeak) -> str:
    line = f"{cost.device}: {gib(cost.before_bytes)} now, {gib(cost.after_bytes)} then, {gib(cost.peak_bytes)} between"
    if cost.memory_bytes is None:
        return line
    missing = f"; {gib(cost.missing_bytes)} too much: roll it out on a second server" if cost.missing_bytes else ""
    return f"{line}, of {gib(cost.memory_bytes)}{missing}"
