# SPDX-License-Identifier: Apache-2.0
"""`trireme serve`: check, assemble the model repository, keep Triton running in the foreground, drain on request."""

import contextlib
import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.render.server_lock import server_lock
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment, override_triton
from serving.doctor.server_features import describe_server
from serving.doctor.server_probe import refuse_unfit_server
from serving.live_releases.kept_deployment import KeptDeployment
from serving.live_releases.live_deployment import LiveDeployment
from serving.live_releases.rollout_control import rollout_handlers
from serving.process.installation import fetch_triton, find_triton
from serving.process.server_log import log_format as current_log_format
from serving.process.server_log import set_up_log
from serving.process.shared_memory import remove_dead_regions
from serving.supervisor.control_api import ControlApi
from serving.supervisor.control_key import read_control_key
from serving.supervisor.descriptor_limit import raise_descriptor_limit
from serving.supervisor.drain_request import DrainRequest
from serving.supervisor.gateway_child import GatewayChild
from serving.supervisor.health import Health, HealthServer
from serving.supervisor.messages import releases_of, welcome
from serving.supervisor.remote_options import (
    RemoteCertOption,
    RemoteHostOption,
    RemoteKeyOption,
    RemotePortOption,
    RemoteTokenOption,
    remote_address,
)
from serving.supervisor.shutdown import Shutdown
from serving.supervisor.start_failure import cause_in
from serving.supervisor.stop_signal import StopSignal
from serving.supervisor.supervision import Supervision
from serving.telemetry.request_tracer import check_installed
from serving.triton.frontends import Frontends
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import ServerError, SpecError
from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.unix_rpc import RpcServer
from trireme.base.unix_socket import CONTROL_SOCKET

_log = logging.getLogger("trireme.serve")


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
        typer.Option(help="HTTP port of /live, /started and /ready for probes.", min=1, max=65535, show_default="none"),
    ] = None,
    control_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key to Triton's restricted APIs.", show_default="a new secret key at each start"
        ),
    ] = None,
    exit_delay_s: Annotated[
        float,
        typer.Option(
            help="How long a stopping server reports not ready and still takes requests, in seconds.", min=0, max=3600
        ),
    ] = 0.0,
    exit_timeout_s: Annotated[
        float, typer.Option(help="How long running streams may go on at shutdown, in seconds.", min=0)
    ] = 30.0,
    ready_timeout_s: Annotated[float, typer.Option(help="How long loading may take, in seconds.", min=1)] = 600.0,
    is_gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="Start a gateway beside the server: OpenAI's API on this machine's own address, and a key for it.",
        ),
    ] = False,
    gateway_port: Annotated[int, typer.Option(help="With --gateway: its port.", min=1, max=65535)] = 8080,
    remote_host: RemoteHostOption = None,
    remote_port: RemotePortOption = None,
    remote_cert_file: RemoteCertOption = None,
    remote_key_file: RemoteKeyOption = None,
    remote_token_file: RemoteTokenOption = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(
            help="Log format of the processes in Python; Triton's own lines are text.", show_default="the deployment's"
        ),
    ] = None,
    is_verbose: Annotated[
        bool, typer.Option("--verbose", help="Send Triton's log to the terminal, not to a file.")
    ] = False,
) -> None:
    """Serve a deployment on Triton until Ctrl-C or SIGTERM; running streams are finished first.

    Examples:

      trireme serve

      trireme serve --deployment my.yaml --host 0.0.0.0 --grpc-port 9001

      trireme serve --gateway

      trireme serve --log-format json

      trireme serve --remote-host 0.0.0.0 --remote-port 8004 --remote-cert-file tls.crt --remote-key-file tls.key \\
          --remote-token-file keys.txt
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
    remote = remote_address(
        remote_host,
        remote_port,
        HttpAccess(remote_cert_file, remote_key_file, remote_token_file, options="--remote-"),
        taken=ports if health_port is None else (*ports, health_port),
    )
    control_key = None if control_key_file is None else read_control_key(control_key_file)
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
            served,
            folder / "model_repository",
            installation,
            None if is_verbose else log,
            control_key=control_key,
            frontends=frontends,
        ),
        keep=kept.keep,
        load_timeout_s=ready_timeout_s,
        tell=_tell,
    )
    frontends: Frontends | None = None
    log_path = folder / "triton.log"
    with server_lock(folder, spec), contextlib.closing(live), contextlib.ExitStack() as held:
        if (low_limit := raise_descriptor_limit(spec)) is not None:
            _tell(low_limit)
        live.check()
        fetch_triton()
        installation = find_triton()
        refuse_unfit_server(spec.triton, installation)
        log = held.enter_context(log_path.open("wb"))
        log.write(f"{describe_server(spec.triton, installation)}\n".encode())
        log.flush()  # tritonserver writes into it, too
        for prefix in remove_dead_regions():
            _tell(f"removed the shared memory of a server that is gone ({prefix}*)")
        _tell(f"loading {spec.name} ({releases_of(live.spec)}) ...")
        health = Health()
        if health_port is not None:
            held.enter_context(contextlib.closing(HealthServer(health, spec.triton.host, health_port)))
        gateway: GatewayChild | None = None
        if is_gateway:
            gateway = GatewayChild(
                deployment, spec.triton, port=gateway_port, folder=folder, log_format=spec.logs.format, tell=_tell
            )
            held.enter_context(contextlib.closing(gateway))
        stop = StopSignal()
        if spec.triton.is_guarded:
            frontends = held.enter_context(contextlib.closing(Frontends(spec.triton, _tell)))
        drain_request = DrainRequest(stop.ask)
        handlers = rollout_handlers(live, folder)
        held.enter_context(contextlib.closing(RpcServer(folder / CONTROL_SOCKET, handlers | drain_request.handlers())))
        if remote is not None:
            api = ControlApi(handlers, host=remote.host, port=remote.port, access=remote.access)
            held.enter_context(contextlib.closing(api))
        try:
            Supervision(
                start=live.start,
                lose=live.lose,
                give_up_candidate=live.give_up_candidate,
                health=health,
                is_needed=live.is_stable,
                triton=spec.triton,
                stop=stop,
                leaving=Shutdown(stop, drain_request, health, exit_delay_s, exit_timeout_s, _tell),
                ready_timeout_s=ready_timeout_s,
                on_ready=lambda seconds: _welcome(live.spec, seconds, gateway),
                tell=_tell,
            ).run()
        except ServerError as exc:
            raise ServerError(f"{exc.message}\n{cause_in(log_path, is_verbose=is_verbose)}") from exc


def _welcome(spec: DeploymentSpec, seconds: float, gateway: GatewayChild | None) -> str:
    if gateway is not None:
        gateway.start()
    return welcome(spec, seconds)


def _tell(line: str) -> None:
    if current_log_format() == "json":
        _log.info("%s", line)
    else:
        typer.echo(line, err=True)
