# SPDX-License-Identifier: Apache-2.0
"""`trireme serve`: check, assemble the model repository, keep Triton running in the foreground, drain when asked
to stop.
"""

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ensemble_configs.control_socket import CONTROL_SOCKET
from ensemble_configs.deployment import DeploymentSpec, load_deployment, override_triton
from ensemble_configs.errors import ServerError, SpecError
from ensemble_configs.repository import DEFAULT_DEPLOYMENT
from serving.server.control import ControlSocket
from serving.server.health import Health, HealthServer
from serving.server.installation import find_triton
from serving.server.kept_deployment import KeptDeployment
from serving.server.live_deployment import LiveDeployment
from serving.server.release_control import release_handlers
from serving.server.shared_memory import remove_dead_regions
from serving.server.stop_signal import StopSignal
from serving.server.supervision import Supervision
from serving.server.triton_process import TritonProcess
from serving.server_log import log_format as current_log_format
from serving.server_log import set_up_log
from serving.tracing.request_tracer import check_installed

_log = logging.getLogger("trireme.serve")

_QUESTION = "What is the capital of France?"


def serve(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="the deployment's")] = None,
    http_port: Annotated[int | None, typer.Option(help="KServe HTTP port.", show_default="the deployment's")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="KServe gRPC port.", show_default="the deployment's")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Prometheus port.", show_default="the deployment's")] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            help="Of /live, /started and /ready over HTTP, for probes.", min=1, max=65535, show_default="none"
        ),
    ] = None,
    exit_timeout_s: Annotated[
        float, typer.Option(help="How long running streams may go on at shutdown.", min=0)
    ] = 30.0,
    ready_timeout_s: Annotated[float, typer.Option(help="How long loading may take.", min=1)] = 600.0,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="Of the processes in Python; Triton's own lines are text.", show_default="the deployment's"),
    ] = None,
    is_verbose: Annotated[bool, typer.Option("--verbose", help="Triton's log to the terminal, not to a file.")] = False,
) -> None:
    """Serve a deployment on Triton until Ctrl-C or SIGTERM; running streams are finished first.

    Examples:

      trireme serve

      trireme serve --deployment my.yaml --host 0.0.0.0 --grpc-port 9001

      trireme serve --log-format json
    """
    file = load_deployment(deployment)
    folder = Path("build").resolve() / file.name
    kept = KeptDeployment(folder / "served.json", file)
    spec = override_triton(kept.load(), host=host, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
    if health_port in (ports := (spec.triton.http_port, spec.triton.grpc_port, spec.triton.metrics_port)):
        taken = ", ".join(map(str, ports))
        raise SpecError(
            f"--health-port {health_port} is one of Triton's ({taken}); name another",
            field="health_port",
            value=health_port,
        )
    if log_format is not None:
        spec = spec.model_copy(update={"logs": spec.logs.model_copy(update={"format": log_format})})
    set_up_log(spec.logs.format, deployment=spec.name)
    if spec.tracing is not None:
        check_installed()
    live = LiveDeployment(
        spec,
        repository=folder / "model_repository",
        source=str(deployment),
        start=lambda served: TritonProcess(
            served, folder / "model_repository", installation, None if is_verbose else log
        ),
        keep=kept.keep,
        load_timeout_s=ready_timeout_s,
        tell=_tell,
    )
    live.check()
    installation = find_triton()
    log_path = folder / "triton.log"
    with contextlib.closing(live), contextlib.ExitStack() as held:
        log = held.enter_context(log_path.open("wb"))
        for prefix in remove_dead_regions():
            _tell(f"removed the shared memory of a server that is gone ({prefix}*)")
        _tell(f"loading {spec.name} ({_shown(live.spec)}) ...")
        health = Health()
        if health_port is not None:
            held.enter_context(contextlib.closing(HealthServer(health, spec.triton.host, health_port)))
        held.enter_context(contextlib.closing(ControlSocket(folder / CONTROL_SOCKET, release_handlers(live))))
        try:
            Supervision(
                start=live.start,
                lose=live.lose,
                give_up_candidate=live.give_up_candidate,
                health=health,
                is_needed=live.is_stable,
                triton=spec.triton,
                stop=StopSignal(),
                ready_timeout_s=ready_timeout_s,
                exit_timeout_s=exit_timeout_s,
                on_ready=lambda seconds: _welcome(live.spec, seconds),
                tell=_tell,
            ).run()
        except ServerError as exc:
            raise ServerError(f"{exc.message}; {_cause(log_path, is_verbose=is_verbose)}") from exc


def _shown(spec: DeploymentSpec) -> str:
    if len(spec.models) == 1:
        return f"release {', '.join(str(release.release) for release in spec.releases)}"
    return ", ".join(f"{model.name} release {model.release}" for model in spec.models)


def _tell(line: str) -> None:
    if current_log_format() == "json":
        _log.info("%s", line)
    else:
        typer.echo(line, err=True)


def _welcome(spec: DeploymentSpec, seconds: float) -> str:
    triton = spec.triton
    names = [model.triton_prefix + step for model in spec.models for step in model.endpoints or ("tensorrt_llm",)]
    names += [extra.name for extra in spec.extra_models]
    models = f"  models   {', '.join(names)}\n" if len(spec.models) > 1 or spec.extra_models else ""
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
    ask = f'ask it:  {command} generate "{_QUESTION}" --url {host}:{triton.grpc_port}{model}' if texts else ""
    return (
        f"ready after {seconds:.1f} s\n"
        f"  gRPC     {host}:{triton.grpc_port}\n"
        f"  HTTP     http://{host}:{triton.http_port}/v2\n"
        f"  metrics  http://{host}:{triton.metrics_port}/metrics\n"
        f"{models}{ask}"
    ).rstrip()


def _cause(log_path: Path, *, is_verbose: bool) -> str:
    if is_verbose:
        return "its log is above"
    lines = log_path.read_text(errors="replace").splitlines()
    marks = ("Error", "[INVALID", "terminate called", "what():")
    errors = [line for line in lines if any(mark in line for mark in marks) or line.startswith("error:")]
    return "\n".join(["its last errors:", *errors[-5:], f"the whole log is in {log_path}"])
