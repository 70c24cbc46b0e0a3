# SPDX-License-Identifier: Apache-2.0
"""The status of a running server: its addresses, and the releases of each model, for callers of the control."""

import os

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.grpc_tls import certificate_of, own_access
from ensemble_configs.spec.model_spec import ModelSpec
from serving.doctor.release_check import unverified_places
from serving.triton.triton_api import reachable
from serving.triton.triton_process import TritonProcess

Engines = dict[tuple[str, int], int]  # process ids, by model and version


def status_of(
    spec: DeploymentSpec, server: TritonProcess | None, *, server_id: str, served_s: float
) -> dict[str, object]:
    """Return what a server says of itself.

    Args:
        spec: the deployment that it serves.
        server: its Triton; None: it has not been started yet.
        server_id: what no other server has, on whatever machine.
        served_s: since its Triton was started.
    """
    alive = server if server is not None and server.exit_status is None else None
    engines = {} if alive is None else alive.engine_pids()
    tls = spec.triton.grpc_tls
    return {
        "deployment": spec.name,
        "pid": os.getpid(),
        "server_id": server_id,
        "is_ready": alive is not None and alive.is_ready(),
        "grpc": f"{reachable(spec.triton.host)}:{spec.triton.grpc_port}",
        "grpc_access": None if tls is None else own_access(tls),
        "metrics": f"http://{reachable(spec.triton.host)}:{spec.triton.metrics_port}/metrics",
        "served_s": served_s,
        "grpc_names": None if tls is None else certificate_of(tls).names,
        "models": [_model(model, engines) for model in spec.models],
    }


def _model(model: ModelSpec, engines: Engines) -> dict[str, object]:
    return {
        "name": model.name,
        "prefix": model.triton_prefix,
        "release": model.release,
        "canary": model.canary,
        "on_trial": list(model.on_trial),
        "releases": [release.model_dump(mode="json") for release in model.releases],
        "unverified": {
            str(release.release): [str(place) for place in places]
            for release in model.releases
            if (places := unverified_places(release))
        },
        "engine_pids": {
            str(release.release): pid
            for release in model.releases
            if (pid := engines.get((f"{model.triton_prefix}tensorrt_llm", release.release)))
        },
    }
