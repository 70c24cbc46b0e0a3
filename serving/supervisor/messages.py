# SPDX-License-Identifier: Apache-2.0
"""The messages of `trireme serve` about a server: what it loads, and the addresses of a ready server."""

import sys
from pathlib import Path

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.doctor.release_check import unverified_places

_QUESTION = "What is the capital of France?"


def releases_of(spec: DeploymentSpec) -> str:
    """Return in a few words which releases are served, and which of them have no manifest that lists their files."""
    if len(spec.models) == 1:
        return f"release {', '.join(_told(release) for release in spec.releases)}"
    return ", ".join(f"{model.name} release {_told(model)}" for model in spec.models)


def _told(release: ReleaseSpec) -> str:
    return f"{release.release}, unverified" if unverified_places(release) else str(release.release)


def welcome(spec: DeploymentSpec, seconds: float) -> str:
    """Return the addresses of a ready server, and how to send it a request; `seconds` is what loading took."""
    triton = spec.triton
    names = [model.triton_prefix + step for model in spec.models for step in model.endpoints or ("tensorrt_llm",)]
    others = [embedding.name for embedding in spec.embedding_models]
    others += [extra.name for extra in spec.extra_models]
    names += others
    models = f"  models   {', '.join(names)}\n" if len(spec.models) > 1 or others else ""
    texts = [model.triton_prefix + step for model in spec.models for step in model.endpoints]
    model = "" if texts[:1] == ["ensemble"] else f" --model {(texts or [''])[0]}"
    program = Path(sys.argv[0])
    command = program.name
    if program.is_absolute() and program.is_relative_to(Path.cwd()):
        command = str(program.relative_to(Path.cwd()))
    elif not program.is_absolute():
        command = str(program)
    host = f"[{triton.host}]" if ":" in triton.host else triton.host
    host = "localhost" if triton.host in ("127.0.0.1", "0.0.0.0", "::") else host
    scheme = "" if triton.grpc_tls is None else "grpcs://"
    ask = f'ask it:  {command} generate "{_QUESTION}" --url {scheme}{host}:{triton.grpc_port}{model}' if texts else ""
    if ask and triton.grpc_tls is not None:
        ask += "\n         with --ca-file, where the authority is your own"
        ask += ", --cert-file and --key-file" if triton.grpc_tls.client_ca_file is not None else ""
    return (
        f"ready after {seconds:.1f} s\n"
        f"  gRPC     {scheme}{host}:{triton.grpc_port}\n"
        f"  HTTP     http://{host}:{triton.http_port}/v2\n"
        f"  metrics  http://{host}:{triton.metrics_port}/metrics\n"
        f"{models}{ask}"
    ).rstrip()
