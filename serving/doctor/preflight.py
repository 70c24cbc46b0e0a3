# SPDX-License-Identifier: Apache-2.0
"""The checks before anything is started, so that a mistake costs one clear line and not a half-started server."""

import json
import math
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from ensemble_configs.releases.engine_fit import refuse_unfit_engine
from ensemble_configs.releases.memory_need import memory_need_bytes
from ensemble_configs.releases.release_manifest import find_release, load_manifest
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.grpc_tls import grpc_tls_findings
from ensemble_configs.spec.release_spec import ReleaseSpec
from ensemble_configs.spec.triton_spec import TritonSpec
from serving.doctor.kv_events_check import check_kv_event_ports, check_kv_events
from serving.doctor.release_check import refuse_unfit_releases
from serving.engines.embedding.embedding_folder import vocab_size_of
from serving.engines.providers import check_installed, start_of_release
from serving.engines.seam.model_folder import check_max_seq_len, load_model_folder
from serving.engines.tensorrt_llm.trtllm_start import refuse_second_llm
from serving.process.placement import check_cpus
from serving.process.this_machine import read_machine
from trireme.base.errors import SpecError

_GIB = 1 << 30
NO_ROOM_FIELDS = ("models", "engine.num_kv_blocks")  # the fields that `check_room` names where memory is missing
_OPENVINO_BLOCK_TOKENS = 32  # as in `serving.engines.openvino.openvino_pipeline`, which loads OpenVINO


def check(spec: DeploymentSpec) -> None:
    """Check that a deployment can be started here.

    Raises:
        SpecError: what is missing, and the next step.
    """
    check_releases(spec.releases)
    for model in spec.embedding_models:
        vocab_size_of(model)
    refuse_second_llm(spec.releases, os.environ)
    _check_kinds(spec)
    _check_certificates(spec.triton)
    _check_ports(spec.triton)
    check_kv_event_ports(spec.releases, spec.triton)


def check_releases(releases: Sequence[ReleaseSpec]) -> None:
    """Check that releases can be loaded here, beside what runs already.

    Raises:
        SpecError: what is missing, and the next step.
    """
    for release in releases:
        refuse_unfit_releases(release)
        _check_files(release)
        check_installed(release.engine)
        check_cpus(release.placement)
        start_of_release(release)
    check_kv_events(releases)
    check_room(releases)


def check_room(releases: Sequence[ReleaseSpec]) -> None:
    """Check that there is memory for releases together, on the host and on each GPU, beside what runs already.

    An engine without a manifest does not tell its need; for OpenVINO's, the least possible need is known.

    Raises:
        SpecError: how much is missing where.
    """
    for release in releases:
        if isinstance(release.engine, OpenVinoEngineSpec):
            _check_openvino_cache(release.engine)
    needs: dict[str, int] = {}
    for release in releases:
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


def _check_kinds(spec: DeploymentSpec) -> None:
    on_gpu = [extra.name for extra in spec.extra_models if extra.rate_limiter and extra.kind == "KIND_GPU"]
    if on_gpu and not read_machine((), is_asking_for_gpus=True).gpus:
        raise SpecError(
            f"extra_models: {on_gpu[0]} has the kind KIND_GPU, and there is no GPU here; set kind: KIND_CPU",
            field="extra_models",
        )


def _check_files(spec: ReleaseSpec) -> None:
    tokenizer = spec.tokenizer.dir / "tokenizer.json"
    if not tokenizer.is_file():
        raise SpecError(f"tokenizer.dir: there is no {tokenizer}; name a folder that holds one", field="tokenizer.dir")
    refuse_unfit_engine(spec.engine)
    if isinstance(spec.engine, OpenVinoEngineSpec):
        _check_openvino_files(spec.engine)
        _check_openvino_limits(spec.engine)
    if isinstance(spec.engine, VllmEngineSpec):
        check_max_seq_len(spec.engine, load_model_folder(spec.engine.dir, weights="config.json"))


def _check_openvino_limits(engine: OpenVinoEngineSpec) -> None:
    check_max_seq_len(engine, load_model_folder(engine.dir, weights="openvino_model.xml"))


def _check_openvino_cache(engine: OpenVinoEngineSpec) -> None:
    """Check the least memory that an OpenVINO cache can take; a folder without a manifest does not tell its need."""
    folder = load_model_folder(engine.dir, weights="openvino_model.xml")
    config = json.loads((folder.dir / "config.json").read_text(encoding="utf-8"))
    sizes = [config.get(name) for name in ("num_hidden_layers", "num_key_value_heads", "head_dim")]
    num_values = 2 * math.prod(size for size in sizes if isinstance(size, int) and size > 0)
    need = engine.num_kv_blocks * _OPENVINO_BLOCK_TOKENS * num_values // 2  # u4, the smallest
    free = read_machine((), is_asking_for_gpus=False).free_host_bytes
    if need > free:
        raise SpecError(
            f"engine.num_kv_blocks ({engine.num_kv_blocks}) take {need / _GIB:.2f} GiB at least, where "
            f"{free / _GIB:.2f} GiB are free; lower it to {free // (need // engine.num_kv_blocks)} or less",
            field="engine.num_kv_blocks",
        )


def _check_openvino_files(engine: OpenVinoEngineSpec) -> None:
    for field in ("dir", "draft_dir"):
        folder = getattr(engine, field)
        if folder is not None and not (folder / "openvino_model.xml").is_file():
            raise SpecError(
                f"engine.{field}: there is no engine at {folder / 'openvino_model.xml'}; build it (`make demo-model` "
                "makes the demo's)",
                field=f"engine.{field}",
            )
    if engine.lora_file is not None and not engine.lora_file.is_file():
        raise SpecError(
            f"engine.lora_file: there is no file {engine.lora_file}; name a safetensors file, or leave it out",
            field="engine.lora_file",
        )


def _check_certificates(triton: TritonSpec) -> None:
    if triton.grpc_tls is None:
        return
    for finding in grpc_tls_findings(triton.grpc_tls):
        raise SpecError(str(finding), field=finding.check)


def _check_ports(triton: TritonSpec) -> None:
    for name in ("http_port", "grpc_port", "metrics_port"):
        bound_socket(triton, name).close()


def bound_socket(triton: TritonSpec, name: str, *, backlog: int | None = None) -> socket.socket:
    """Return a socket that is bound to one of a server's ports, by its name in the spec; with a backlog it listens.

    Raises:
        SpecError: the port cannot be had.
    """
    port = getattr(triton, name)
    found = socket.socket(socket.AF_INET6 if ":" in triton.host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((triton.host, port))
        if backlog is not None:
            found.listen(backlog)
    except (OSError, UnicodeError) as exc:  # UnicodeError: for a name that cannot be a host's
        found.close()
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise SpecError(
            f"{name} {port} of host {triton.host} cannot be used ({reason}); stop what listens there or choose another "
            f"with --{name.replace('_', '-')}",
            field=name,
            value=port,
        ) from exc
    return found
