# SPDX-License-Identifier: Apache-2.0
"""What a Helm chart has to be told of a deployment: values that follow from it, and the deployment itself."""

import yaml

from ensemble_configs.deployment import DeploymentSpec, override_triton
from ensemble_configs.launch_flags import launch_flags


def helm_values(spec: DeploymentSpec) -> dict[str, object]:
    """Plain data, to be written as a values file. In a pod the server listens on all its addresses."""
    spec = override_triton(spec, host="0.0.0.0")
    gpus = {gpu for release in spec.releases for gpu in release.gpus}
    return {
        "nameOverride": spec.name.replace("_", "-"),
        "replicaCount": spec.replicas,
        "ports": {
            "http": spec.triton.http_port,
            "grpc": spec.triton.grpc_port,
            "metrics": spec.triton.metrics_port,
        },
        "resources": {"limits": {"nvidia.com/gpu": len(gpus)}} if gpus else {},
        "tritonArgs": [f"--{name}={value}" for name, value in launch_flags(spec)],
        "models": [
            {
                "name": model.name,
                "prefix": model.triton_prefix,
                "endpoints": list(model.endpoints),
                "provider": model.engine.provider,
                "releases": [release.release for release in model.releases],
                "slo": model.slo.model_dump(exclude_none=True),
            }
            for model in spec.models
        ],
        # What the pod gives to `trireme serve`.
        "deployment": spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
    }


def render_helm_values(spec: DeploymentSpec, *, source: str) -> str:
    """The text of a values file; `source` is named in its first line."""
    return f"# Generated from {source} by trireme render --helm\n" + yaml.safe_dump(
        helm_values(spec), sort_keys=False, width=120
    )
