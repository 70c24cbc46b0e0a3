# SPDX-License-Identifier: Apache-2.0
"""The headers and parameters of requests that keep them on one release, over all models of a deployment."""

from ensemble_configs.spec.deployment import DeploymentSpec


def sticky_headers(spec: DeploymentSpec) -> list[str]:
    """Return the names of the headers."""
    return _named(spec, "header:")


def sticky_parameters(spec: DeploymentSpec) -> list[str]:
    """Return the names of the parameters."""
    return _named(spec, "parameter:")


def _named(spec: DeploymentSpec, kind: str) -> list[str]:
    keys = {model.sticky_key for model in spec.models if model.sticky_key is not None}
    return sorted(key.removeprefix(kind) for key in keys if key.startswith(kind))
