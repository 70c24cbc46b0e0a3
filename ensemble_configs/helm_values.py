# SPDX-License-Identifier: Apache-2.0
"""What the Helm chart has to be told of a deployment: its servers, what each needs of a cluster and what it serves."""

import yaml

from ensemble_configs.deployment import DeploymentSpec, override_triton
from ensemble_configs.errors import SpecError
from ensemble_configs.workloads import Workload, workloads


def helm_values(spec: DeploymentSpec) -> dict[str, object]:
    """Plain data, to be written as a values file. In a pod the server listens on all its addresses.

    Raises:
        SpecError: it holds only on one machine (`ensemble_configs.workloads`), or two servers would have one name.
    """
    spec = override_triton(spec, host="0.0.0.0")
    servers: dict[str, object] = {}
    for workload in workloads(spec):
        name = _dns_label(workload.name)
        if name in servers:
            raise SpecError(
                f"two servers would be called {name} in Kubernetes, where _ becomes -; give a model another name",
                field="models",
                value=workload.name,
            )
        servers[name] = _server(workload)
    return {
        "nameOverride": _dns_label(spec.name),
        "ports": {
            "http": spec.triton.http_port,
            "grpc": spec.triton.grpc_port,
            "metrics": spec.triton.metrics_port,
        },
        "servers": servers,
    }


def _server(workload: Workload) -> dict[str, object]:
    spec = workload.spec
    return {
        **({} if workload.release is None else {"release": workload.release}),
        "replicas": spec.replicas,
        "nodes": workload.num_nodes,
        "gpus": workload.gpus_per_node,
        "models": [
            {
                "name": model.name,
                "prefix": model.triton_prefix,
                "endpoints": list(model.endpoints),
                "provider": model.engine.provider,
                "release": model.release,
                "slo": model.slo.model_dump(exclude_none=True),
            }
            for model in spec.models
        ],
        # What the pod gives to `trireme serve`.
        "deployment": spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
    }


def _dns_label(name: str) -> str:
    return name.replace("_", "-").rstrip("-")


def render_helm_values(spec: DeploymentSpec, *, source: str) -> str:
    """The text of a values file; `source` is named in its first line. Raises: as `helm_values`."""
    return f"# Generated from {source} by trireme render --helm\n" + yaml.safe_dump(
        helm_values(spec), sort_keys=False, width=120
    )
