# SPDX-License-Identifier: Apache-2.0
"""`trireme serve`: check, assemble the model repository, start Triton, stay in the foreground, drain when asked to
stop.
"""

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from ensemble_configs.deployment import DeploymentSpec, TritonSpec, load_deployment, override_triton
from ensemble_configs.errors import ServerError
from ensemble_configs.repository import DEFAULT_DEPLOYMENT, write_repository
from serving.server.drain import drain
from serving.server.installation import find_triton
from serving.server.preflight import check
from serving.server.triton_process import TritonProcess


def serve(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="the deployment's")] = None,
    http_port: Annotated[int | None, typer.Option(help="KServe HTTP port.", show_default="the deployment's")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="KServe gRPC port.", show_default="the deployment's")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Prometheus port.", show_default="the deployment's")] = None,
    exit_timeout_s: Annotated[
        float, typer.Option(help="How long running streams may go on at shutdown.", min=0)
    ] = 30.0,
    ready_timeout_s: Annotated[float, typer.Option(help="How long loading may take.", min=1)] = 600.0,
    is_verbose: Annotated[bool, typer.Option("--verbose", help="Triton's log to the terminal, not to a file.")] = False,
) -> None:
    """Serve a deployment on Triton until Ctrl-C or SIGTERM; running streams are finished first.

    Examples:

      trireme serve

      trireme serve --deployment my.yaml --host 0.0.0.0 --grpc-port 9001
    """
    spec = override_triton(
        load_deployment(deployment), host=host, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port
    )
    check(spec)
    installation = find_triton()
    folder = Path("build").resolve() / spec.name
    write_repository(spec, root=folder / "model_repository", source=str(deployment))
    stop = _StopSignal()
    log_path = folder / "triton.log"
    with log_path.open("wb") as log:
        server = TritonProcess(spec.triton, folder / "model_repository", installation, None if is_verbose else log)
        try:
            _run(server, spec, stop, exit_timeout_s=exit_timeout_s, ready_timeout_s=ready_timeout_s)
        except ServerError as exc:
            raise ServerError(f"{exc.message}; {_cause(log_path, is_verbose=is_verbose)}") from exc
        finally:
            server.stop()
            server.clean_up()


def _tell(line: str) -> None:
    typer.echo(line, err=True)


class _StopSignal:
    """Ctrl-C and SIGTERM, counted: the second one means "now"."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether a signal has come, waiting for it."""
        return self._event.wait(timeout_s)


def _run(
    server: TritonProcess, spec: DeploymentSpec, stop: _StopSignal, *, exit_timeout_s: float, ready_timeout_s: float
) -> None:
    started_s = time.monotonic()
    _tell(f"loading {spec.name} (release {spec.release}) ...")
    if not _wait_ready(server, stop, ready_timeout_s):
        return
    _tell(_welcome(spec.triton, time.monotonic() - started_s))
    while not stop.wait(0.2):
        if server.exit_status is not None:
            raise ServerError(f"tritonserver ended by itself with status {server.exit_status}")
    _tell("draining; Ctrl-C again stops at once")
    drain(server, timeout_s=exit_timeout_s, is_hurried=lambda: stop.count > 1, tell=_tell)
    _tell("stopped")


def _wait_ready(server: TritonProcess, stop: _StopSignal, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not server.is_ready():
        if server.exit_status is not None:
            raise ServerError(f"tritonserver ended with status {server.exit_status} while loading")
        if time.monotonic() > deadline_s:
            raise ServerError(f"tritonserver is not ready after {timeout_s:g} s; --ready-timeout-s gives it more")
        if stop.wait(0.05):
            return False
    return True


def _welcome(triton: TritonSpec, seconds: float) -> str:
    program = Path(sys.argv[0])
    command = program.name
    if program.is_absolute() and program.is_relative_to(Path.cwd()):
        command = str(program.relative_to(Path.cwd()))
    elif not program.is_absolute():
        command = str(program)
    host = "localhost" if triton.host in ("127.0.0.1", "0.0.0.0", "::") else triton.host
    return (
        f"ready after {seconds:.1f} s\n"
        f"  gRPC     {host}:{triton.grpc_port}\n"
        f"  HTTP     http://{host}:{triton.http_port}/v2\n"
        f"  metrics  http://{host}:{triton.metrics_port}/metrics\n"
        f'ask it:  {command} generate "What is the capital of France?" --url {host}:{triton.grpc_port}'
    )


def _cause(log_path: Path, *, is_verbose: bool) -> str:
    if is_verbose:
        return "its log is above"
    lines = log_path.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "Error" in line or "[INVALID" in line or line.startswith("error:")]
    return "\n".join(["its last errors:", *errors[-5:], f"the whole log is in {log_path}"])
