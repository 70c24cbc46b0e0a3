# SPDX-License-Identifier: Apache-2.0
"""What is checked before anything is started, so that a mistake costs one clear line and not a half-started server."""

import socket
from pathlib import Path

from ensemble_configs.deployment import DeploymentSpec
from ensemble_configs.engine_specs import OpenVinoEngineSpec
from ensemble_configs.errors import SpecError
from ensemble_configs.memory_need import memory_need_bytes
from ensemble_configs.release_manifest import find_release, load_manifest
from ensemble_configs.release_spec import ReleaseSpec
from ensemble_configs.triton_spec import TritonSpec
from serving.placement import check_cpus
from serving.release_check import refuse_unfit_releases
from serving.this_machine import read_machine

_GIB = 1 << 30


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
    if len(spec.releases) > 1:
        _check_memory(spec)
    _check_ports(spec.triton)


def _check_memory(spec: DeploymentSpec) -> None:
    """Each release alone has been looked at; on the host, and on each GPU, they have to fit together."""
    needs: dict[str, int] = {}
    for release in spec.releases:
        folder = release.release_dir or find_release(getattr(release.engine, "dir", Path()))
        if folder is None or release.on_demand is not None:
            continue
        manifest = load_manifest(folder)
        for place in release.gpus or ("host",):
            needs[str(place)] = needs.get(str(place), 0) + memory_need_bytes(manifest, release)
    machine = read_machine((), is_asking_for_gpus=bool(needs.keys() - {"host"}))
    free = {"host": machine.free_host_bytes} | {
        str(n): gpu.free_bytes for n, gpu in enumerate(machine.gpus) if gpu.free_bytes is not None
    }
    for place, need in needs.items():
        if need > free.get(place, need):
            where = "the host" if place == "host" else f"GPU {place}"
            raise SpecError(
                f"the models take {need / _GIB:.2f} GiB together on {where}, where {free[place] / _GIB:.2f} GiB are "
                "free; `trireme plan --deployment` shows what takes how much",
                field="models",
            )


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
