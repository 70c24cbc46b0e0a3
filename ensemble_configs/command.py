# SPDX-License-Identifier: Apache-2.0
"""`trireme render`: write what Triton reads, without starting anything."""

from pathlib import Path
from typing import Annotated

import typer

from ensemble_configs.deployment import load_deployment
from ensemble_configs.repository import DEFAULT_DEPLOYMENT, DEFAULT_REPOSITORY, write_repository


def render(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write.", show_default="model_repository for the default deployment, else build/NAME"
        ),
    ] = None,
) -> None:
    """Render a deployment into a model repository; files that are right already are not touched.

    Examples:

      trireme render

      trireme render --deployment my.yaml --out /srv/models
    """
    spec = load_deployment(deployment)
    is_default = deployment.resolve() == DEFAULT_DEPLOYMENT
    root = out or (DEFAULT_REPOSITORY if is_default else Path("build") / spec.name / "model_repository")
    written = write_repository(spec, root=root, source=_shown(deployment))
    typer.echo(f"{root}: {len(written)} files written" + "".join(f"\n  {path}" for path in written))


def _shown(deployment: Path) -> str:
    """The deployment's path as it goes into generated files: the same on every machine."""
    try:
        return str(deployment.resolve().relative_to(DEFAULT_REPOSITORY.parent))
    except ValueError:
        return deployment.name
