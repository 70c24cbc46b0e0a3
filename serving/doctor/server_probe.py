# SPDX-License-Identifier: Apache-2.0
"""A probe of tritonserver: started without any model of a user for a few seconds, and asked what it can do."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path

import psutil

from ensemble_configs.spec.triton_spec import TritonSpec
from serving.doctor.server_features import (
    ServerFeatures,
    closes_client_shm,
    limits_http_bytes,
    needs_asking_about_numpy,
    refuse_broken_tensors,
    refuse_missing_flags,
)
from serving.process.installation import TritonInstallation
from serving.process.shared_memory import RegionOwner
from trireme.base.errors import ServerError

_START_S = 60.0
_CALL_S = 20.0
_DEATH_S = 5.0
_POLL_S = 0.02
_DEPTH = 200  # more than a limit of 100, and little enough for every parser
_ECHO_CONFIG = """name: "echo" backend: "python" max_batch_size: 0
input [{ name: "INT32" data_type: TYPE_INT32 dims: [-1] },
       { name: "FP32" data_type: TYPE_FP32 dims: [-1] optional: true },
       { name: "BOOL" data_type: TYPE_BOOL dims: [-1] optional: true },
       { name: "BYTES" data_type: TYPE_STRING dims: [-1] optional: true }]
output [{ name: "INT32" data_type: TYPE_INT32 dims: [-1] }, { name: "FP32" data_type: TYPE_FP32 dims: [-1] },
        { name: "BOOL" data_type: TYPE_BOOL dims: [-1] }, { name: "BYTES" data_type: TYPE_STRING dims: [-1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
"""
FACTS, WAS_ASKED = "facts.json", "was_asked"  # files that the model leaves in its folder
ECHO = f"""import json
import pathlib
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])
        facts = {{"numpy": np.__version__, "path": sys.path}}
        (self.folder / {FACTS!r}).write_text(json.dumps(facts))

    def is_ready(self):
        (self.folder / {WAS_ASKED!r}).touch()
        return True

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(tensor.name(), np.array(tensor.as_numpy())) for tensor in request.inputs()]
        )
"""
_GRAPH_CONFIG = """name: "graph" platform: "ensemble" max_batch_size: 0
input [{ name: "INT32" data_type: TYPE_INT32 dims: [-1] }]
output [{ name: "INT32" data_type: TYPE_INT32 dims: [-1] }]
ensemble_scheduling {
  max_inflight_requests: 8
  step [{ model_name: "echo" model_version: -1 input_map { key: "INT32" value: "INT32" }
          output_map { key: "INT32" value: "INT32" } }]
}
"""
_SENT: Mapping[str, list[object]] = {
    "INT32": [5, 6, 7],
    "FP32": [0.5, 1.5],
    "BOOL": [True, False],
    "BYTES": ["one", "", "three"],
}


def refuse_unfit_server(triton: TritonSpec, installation: TritonInstallation) -> None:
    """Refuse a server that lacks what a deployment needs, or has stubs that fail with this environment's numpy.

    Raises:
        SpecError: what is missing, and the next step.
        ServerError: the server cannot be run.
    """
    refuse_missing_flags(triton, installation)
    if needs_asking_about_numpy():
        refuse_broken_tensors(ask_server(installation))


def ask_server(installation: TritonInstallation) -> ServerFeatures:
    """Start the server, ask every question, and end it. Takes some seconds, and one port of the loopback meanwhile.

    Raises:
        ServerError: the server does not start, or dies of a question.
    """
    with tempfile.TemporaryDirectory(prefix="trireme-probe-") as name:
        folder = Path(name)
        echo = _write_models(folder / "models")
        with _running(installation, folder) as server:
            version = server.version()
            server.says_yes("/v2/models/echo/ready")
            calls_is_ready = (echo / WAS_ASKED).exists()
            limits_json_depth = server.limits_json_depth()
            are_tensors_whole = server.echoes(_SENT)  # a stub may die of it
            server.kill_stub()
            is_unready_with_dead_stub = not server.says_yes("/v2/health/ready")
            knows_max_inflight_requests = server.loads("graph")
        facts = json.loads((echo / FACTS).read_text(encoding="utf-8"))
        return ServerFeatures(
            program=str(installation.tritonserver),
            version=version,
            numpy=facts["numpy"],
            are_tensors_whole=are_tensors_whole,
            closes_client_shm=closes_client_shm(installation),
            limits_http_bytes=limits_http_bytes(installation),
            limits_json_depth=limits_json_depth,
            is_unready_with_dead_stub=is_unready_with_dead_stub,
            calls_is_ready=calls_is_ready,
            knows_max_inflight_requests=knows_max_inflight_requests,
            reads_pythonpath=str(folder) in facts["path"],
        )


def _write_models(repository: Path) -> Path:
    """Write the models to ask with; return the folder of `echo`."""
    for name, config in (("echo", _ECHO_CONFIG), ("graph", _GRAPH_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
    (repository / "echo" / "1" / "model.py").write_text(ECHO, encoding="utf-8")
    return repository / "echo"


@contextlib.contextmanager
def _running(installation: TritonInstallation, folder: Path) -> Iterator["_AskedServer"]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    env = installation.environment(run_dir_variable="TRIREME_UNUSED", run_dir=folder)
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}{os.pathsep}{folder}"
    with RegionOwner() as regions, (folder / "log").open("wb") as log:
        options = {
            "model-repository": folder / "models",
            "model-control-mode": "explicit",
            "load-model": "echo",
            "http-address": "127.0.0.1",
            "http-port": port,
            "allow-grpc": "false",
            "allow-metrics": "false",
            "exit-timeout-secs": 1,
            "backend-config": f"python,shm-region-prefix-name={regions.prefix}",
        }
        if installation.backend_directory is not None:
            options["backend-directory"] = installation.backend_directory
        process = subprocess.Popen(
            [str(installation.tritonserver), *(f"--{name}={value}" for name, value in options.items())],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            pass_fds=[regions.descriptor],
        )
        try:
            server = _AskedServer(process, port, folder / "log")
            server.wait()
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nothing of the server is wanted any more
            process.wait()


class _AskedServer:
    """The questions to a running server over HTTP."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}"
        self._log = log

    def wait(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not self.says_yes("/v2/health/live"):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise ServerError(f"tritonserver does not start, without any model of yours: {self._log_end()}")
            time.sleep(_POLL_S)
        children = psutil.Process(self._process.pid).children(recursive=True)
        [self._stub] = [child for child in children if any("/echo/1/model.py" in part for part in child.cmdline())]

    def says_yes(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=_CALL_S) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def version(self) -> str:
        return str(json.loads(self._post("/v2", None)[1])["version"])

    def echoes(self, sent: Mapping[str, list[object]]) -> bool:
        """Return whether a Python model gets and sends tensors as they are."""
        inputs = [{"name": name, "datatype": name, "shape": [len(data)], "data": data} for name, data in sent.items()]
        status, answer = self._post("/v2/models/echo/infer", json.dumps({"inputs": inputs}).encode())
        return (
            status == HTTPStatus.OK
            and {output["name"]: output["data"] for output in json.loads(answer)["outputs"]} == sent
        )

    def limits_json_depth(self) -> bool:
        value = "[" * _DEPTH + "5" + "]" * _DEPTH  # the parser takes every nesting of one element for [5]
        body = f'{{"inputs": [{{"name": "INT32", "datatype": "INT32", "shape": [1], "data": {value}}}]}}'
        return "nesting depth" in self._post("/v2/models/echo/infer", body.encode())[1]

    def loads(self, model: str) -> bool:
        return self._post(f"/v2/repository/models/{model}/load", b"{}")[0] == HTTPStatus.OK

    def _post(self, path: str, body: bytes | None) -> tuple[int, str]:
        """Return status and text of the answer. Raises: ServerError: the server does not answer."""
        try:
            with urllib.request.urlopen(f"{self._url}{path}", data=body, timeout=_CALL_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode(errors="replace")
        except OSError as exc:
            raise ServerError(f"tritonserver did not answer {path}: {exc}; its log ends: {self._log_end()}") from exc

    def kill_stub(self) -> None:
        """Kill the one Python model's process, and wait for its death; its parent may leave it a zombie."""
        deadline_s = time.monotonic() + _DEATH_S
        with contextlib.suppress(psutil.NoSuchProcess):
            self._stub.kill()
            while self._stub.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)

    def _log_end(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-3:])
