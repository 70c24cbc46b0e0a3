# SPDX-License-Identifier: Apache-2.0
"""What is checked before anything is started, so that a mistake costs one clear line and not a half-started server."""

import socket

from ensemble_configs.deployment import DeploymentSpec
from ensemble_configs.engine_specs import OpenVinoEngineSpec
from ensemble_configs.errors import SpecError
from ensemble_configs.release_spec import ReleaseSpec
from ensemble_configs.triton_spec import TritonSpec
from serving.placement import check_cpus
from serving.release_check import refuse_unfit_releases


def check(spec: DeploymentSpec) -> None:
    """Check that a deployment can be started here.

    Raises:
        SpecError: what is missing, and the next step.
    """
    for model in spec.models:
        for release in model.releases:
            refuse_unfit_releases(release)
            _check_files(release)
            check_cpus(release.placement)
    _check_ports(spec.triton)


def _check_files(spec: ReleaseSpec) -> None:
    tokenizer = spec.tokenizer.dir / "tokenizer.json"
    if not tokenizer.is_file():
        raise SpecError(f"tokenizer.dir: there is no {tokenizer}; name a folder that holds one", field="tokenizer.dir")
    if isinstance(spec.engine, OpenVinoEngineSpec):
        model = spec.engine.dir / "openvino_model.xml"
        if not model.is_file():
            raise SpecError(
                f"engine.dir: there is no engine at {model}; build it (`make demo-model` makes the demo's)",
                field="engine.dir",
            )


def _check_ports(triton: TritonSpec) -> None:
    for name in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(triton, name)
        option = f"--{name.replace('_', '-')}"
        with socket.socket(socket.AF_INET6 if ":" in triton.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((triton.host, port))
            except OSError as exc:
                raise SpecError(
                    f"{name} {port} on {triton.host} cannot be used ({exc.strerror}); "
                    f"stop what listens there or choose another with {option}",
                    field=name,
                    value=port,
                ) from exc
