# SPDX-License-Identifier: Apache-2.0
"""Values of the Helm chart for a deployment: its servers, what each needs of a cluster and what it serves."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from ensemble_configs.render.workloads import Workload, workloads
from ensemble_configs.spec.deployment import DeploymentSpec, MachineSpec, override_triton
from ensemble_configs.spec.end_times import server_end_s
from ensemble_configs.spec.gateway_spec import GatewaySpec
from ensemble_configs.spec.model_spec import ModelSpec
from trireme.base.errors import SpecError
from trireme.base.project_files import FILES_ROOT

IMAGE_ROOT = Path("/opt/trireme")  # where the Dockerfile puts this project
_OF_NO_SERVER: dict[str, object] = {"replicas": 1, "machine": MachineSpec()}
_TTFT_MS, _TPOT_MS = 30_000.0, 100.0  # of a deployment that has no target


def helm_values(spec: DeploymentSpec) -> dict[str, object]:
    """Return the chart's values as plain data; in a pod the server listens on all its addresses.

    What a server serves is a text: Helm would merge a mapping with those of other values files, and make 1e+06 of a
    million.

    Raises:
        SpecError: the deployment holds only on one machine (`ensemble_configs.render.workloads`), or two servers would
            have one name.
    """
    spec = override_triton(spec, host="0.0.0.0")
    servers: dict[str, object] = {}
    for workload in (found := workloads(spec)):
        name = dns_label(workload.name)
        if name in servers:
            raise SpecError(
                f"two servers would be called {name} in Kubernetes, where _ becomes -; give a model another name",
                field="models",
                value=workload.name,
            )
        servers[name] = _server(workload)
    return {
        "nameOverride": dns_label(spec.name),
        "ports": {
            "http": spec.triton.http_port,
            "grpc": spec.triton.grpc_port,
            "metrics": spec.triton.metrics_port,
        },
        **_grpc_tls(spec),
        "defaultServer": dns_label(found[0].name),
        "servers": servers,
        "openai": {"deployment": _text_of(spec.model_copy(update=_OF_NO_SERVER))},
    }


def _grpc_tls(spec: DeploymentSpec) -> dict[str, object]:
    """Return where a Secret is mounted, and whether Envoy has to show a certificate; nothing without TLS."""
    tls = spec.triton.grpc_tls
    if tls is None:
        return {}
    folders = {path.parent for path in tls.files.values()}
    if len(folders) > 1:
        raise SpecError(
            f"triton.grpc_tls names files in {', '.join(map(str, sorted(folders)))}; in Kubernetes they come from one "
            "Secret, which is one folder: name them all in one, such as /etc/trireme/grpc-tls",
            field="triton.grpc_tls",
        )
    return {"grpcTls": {"directory": str(_in_image(folders.pop())), "isMutual": tls.client_ca_file is not None}}


def _server(workload: Workload) -> dict[str, object]:
    spec = workload.spec
    # None of these is of a server: a change of them starts no server again.
    served = spec.model_copy(update={**_OF_NO_SERVER, "gateway": GatewaySpec()})
    beside = {} if workload.beside is None else {"release": workload.release, "stable": dns_label(workload.beside)}
    return {
        **(beside or {"replicas": spec.replicas}),  # the chart gives a candidate its share of them
        "nodes": workload.num_nodes,
        "gpus": workload.gpus_per_node,
        "longestAnswerSeconds": max(_longest_answer_s(model) for model in spec.models),
        "endSeconds": server_end_s(spec, num_nodes=workload.num_nodes),
        "releaseDirs": sorted({str(_in_image(model.release_dir)) for model in spec.models if model.release_dir}),
        "models": [
            {"name": model.name, "release": model.release, "tritonNames": list(model.triton_names)}
            for model in spec.models
        ],
        "extraModels": [
            *(embedding.name for embedding in spec.embedding_models),
            *(extra.name for extra in spec.extra_models),
        ],
        **_kv_event_ports(spec),
        **_role(spec),
        "deployment": _text_of(served),
    }


def _role(spec: DeploymentSpec) -> dict[str, object]:
    """Return what a server does where prompts and answers are computed apart; nothing where they are not.

    TensorRT-LLM's engines have no role of their own: a server that asks no others may be asked.
    """
    if any(model.prefill_servers is not None for model in spec.models):
        return {"role": "decode"}
    transfers = [getattr(model.engine, "kv_transfer", None) for model in spec.models]
    return {"role": "prefill"} if any(each is not None and each.role == "prefill" for each in transfers) else {}


def _kv_event_ports(spec: DeploymentSpec) -> dict[str, object]:
    """Return the ports on which routers hear of KV events; nothing where none listens."""
    told = (release.kv_events for release in spec.releases)
    ports = sorted({port for events in told if events is not None for port in events.ports})
    return {"kvEventPorts": ports} if ports else {}


def _text_of(spec: DeploymentSpec) -> str:
    """Return a deployment file as a pod has it."""
    return yaml.safe_dump(_plain(spec.model_dump(exclude_none=True, exclude_defaults=True)), sort_keys=False, width=120)


def _longest_answer_s(model: ModelSpec) -> int:
    """Return the seconds from the end of admission to the last token: the first token, and as many as a sequence holds.

    slo.ttft_ms + engine.max_seq_len * slo.tpot_ms
    """
    ttft_ms, tpot_ms = model.slo.ttft_ms or _TTFT_MS, model.slo.tpot_ms or _TPOT_MS
    return math.ceil((ttft_ms + model.engine.max_seq_len * tpot_ms) / 1000)


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case Path():
            return str(_in_image(value))
        case str():
            return value
        case Sequence():
            return [_plain(each) for each in value]
    return value


def _in_image(path: Path) -> Path:
    """Return where the image has a file of this project; any other path stays as the deployment says."""
    return IMAGE_ROOT / path.relative_to(FILES_ROOT) if path.is_relative_to(FILES_ROOT) else path


def dns_label(name: str) -> str:
    """Return the name of a server in the chart's values, from the name of its workload."""
    return name.replace("_", "-").rstrip("-")


def render_helm_values(spec: DeploymentSpec, *, source: str) -> str:
    """Return the text of a values file; `source` is named in its first line.

    Raises:
        SpecError: `helm_values` refuses the deployment.
    """
    return f"# Generated from {source} by trireme render --helm\n" + yaml.dump(
        helm_values(spec), Dumper=_Blocks, sort_keys=False, width=120
    )


class _Blocks(yaml.SafeDumper):
    """A YAML dumper that writes a text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Blocks.add_representer(str, _text)
