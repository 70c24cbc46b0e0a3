# SPDX-License-Identifier: Apache-2.0
"""The other answers of a newer tritonserver (2.71; the tests' own is 2.51), stood in for by `newer_triton`.

Each test is a row of the table in docs/support.md.
"""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from newer_triton import ABORTED, BACKENDS, write_newer_triton
from plain_triton import PlainTriton, write_model
from running_server import PROJECT, RunningServer, deployment_text
from streams_under_change import Streams, answers
from test_live_releases import ENGINE, Live, kill_adapter
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from serving.doctor.server_features import ServerFeatures, refuse_broken_tensors
from serving.doctor.server_probe import ECHO, FACTS, WAS_ASKED, ask_server
from serving.process import installation
from serving.process.installation import RECORD, TritonInstallation, find_triton, recorded_triton
from trireme.base.errors import SpecError


@pytest.fixture
def below(tmp_path: Path) -> tuple[str, ...]:
    """Return the command below which the newer server is found."""
    folder = write_newer_triton(tmp_path / "bin", RECORD)
    return ("env", f"PATH={folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def newer(request: pytest.FixtureRequest, tmp_path: Path, below: tuple[str, ...]) -> Iterator[Live]:
    """Yield a server that serves release 1, on the newer tritonserver; with other endpoints as a parameter."""
    endpoints = getattr(request, "param", ("ensemble",))
    text = deployment_text("live", engine=ENGINE | {"seed": 1}, endpoints=endpoints)
    with RunningServer(text, tmp_path / "live", below=below) as server:
        yield Live(server)


def test_a_candidate_whose_adapter_is_dead_goes_though_the_server_is_not_ready(newer: Live) -> None:
    before = newer.server.tritonserver().pid
    newer.add(2, seed=2)
    with Streams(newer.server.url, {1: answers(newer.server.url, "ensemble")}) as streams:
        kill_adapter(newer, "ensemble_canary", 2)
        wait_until(lambda: not newer.server.is_ready(), 10)
        wait_until(lambda: newer.status()["canary"] is None and newer.server.is_ready(), 30)
        streams.wait_for(1, 64)
    assert (streams.wrong, streams.refused) == ([], [])
    assert newer.server.tritonserver().pid == before


@pytest.mark.soak
@pytest.mark.parametrize("newer", [("ensemble", "tensorrt_llm_bls")], indirect=True, ids=["two endpoints"])
def test_two_dead_candidates_go_one_after_the_other(newer: Live) -> None:
    newer.add(2, seed=2)
    newer.control.ask("add", release=newer.release(3, seed=3), is_canary=False)
    kill_adapter(newer, "tensorrt_llm", 2)
    kill_adapter(newer, "tensorrt_llm", 3)
    wait_until(lambda: [each["release"] for each in newer.status()["releases"]] == [1] and newer.server.is_ready(), 60)
    assert "could not be taken out" not in newer.server.log()
    newer.add(4, seed=4)
    newer.control.ask("promote", number=4)
    newer.control.ask("settle")
    newer.control.ask("remove", number=1)
    assert newer.server.is_ready()


def post(port: int, path: str, body: bytes) -> tuple[int, str]:
    """Return status and text of the answer over HTTP, without the control key."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=body, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


REGION = "/v2/systemsharedmemory/region/r/register"
REGISTER = json.dumps({"key": "/trireme_no_such_region", "offset": 0, "byte_size": 8}).encode()


def register_over_grpc(server: RunningServer) -> str:
    """Return the error of a client that registers a region which is not there."""
    with (
        grpcclient.InferenceServerClient(server.url) as client,
        pytest.raises(InferenceServerException) as refused,
    ):
        client.register_system_shared_memory("r", "/trireme_no_such_region", 8)
    return str(refused.value)


def test_what_a_client_must_not_do_a_newer_server_refuses_by_itself_and_goes_on(newer: Live) -> None:
    server, triton = newer.server, newer.server.tritonserver()
    port = server.own_http_port()  # its own; the frontend in front of it refuses the same before it
    nested = b'{"text_input": %s%s}' % (b"[" * 1_000_000, b"]" * 1_000_000)
    status, said = post(port, "/v2/models/ensemble/generate", nested)
    assert (status, "nesting depth exceeds maximum allowed limit (100)" in said) == (400, True)
    status, said = post(port, "/v2/models/ensemble/generate", b'{"text_input": "%s"}' % (b"a" * (65 << 20)))
    assert (status, "exceeds the maximum allowed input size of 67108864" in said) == (400, True)
    status, said = post(port, REGION, REGISTER)
    assert (status, "--allow-client-shm=true" in said) == (400, True)
    assert "[StatusCode.UNIMPLEMENTED] Client shared memory is disabled" in register_over_grpc(server)
    assert post(port, "/v2/models/ensemble/generate", b'{"text_input": "%s"}' % (b"a" * 5_000_000))[0] == 400
    assert triton.is_running()
    assert "shared memory of clients closed by the control key" not in server.log()


def test_an_older_server_keeps_clients_from_shared_memory_by_the_key(
    simulated: RunningServer, asked_server: ServerFeatures
) -> None:
    status, said = post(simulated.http_port, REGION, REGISTER)
    if asked_server.closes_client_shm:
        assert (status, "--allow-client-shm=true" in said) == (400, True)
        assert "--allow-client-shm=true" in register_over_grpc(simulated)
    else:
        assert (status, "is restricted" in said) == (403, True), said
        assert "This protocol is restricted" in register_over_grpc(simulated)


def test_a_deployment_opens_shared_memory_where_the_server_can_close_it(tmp_path: Path, below: tuple[str, ...]) -> None:
    text = deployment_text("open", engine=ENGINE, triton={"allow_client_shm": True})
    with RunningServer(text, tmp_path / "open", below=below) as server:
        status, said = post(server.http_port, REGION, REGISTER)
        assert "/trireme_no_such_region" in register_over_grpc(server)
    assert status != 403
    assert "/trireme_no_such_region" in said, "the server has looked for it"


def test_a_deployment_that_opens_shared_memory_is_refused_where_the_server_cannot_close_it(
    tmp_path: Path, asked_server: ServerFeatures
) -> None:
    (tmp_path / "d.yaml").write_text(deployment_text("open", engine=ENGINE, triton={"allow_client_shm": True}))
    if asked_server.closes_client_shm:
        return  # shown above, on this server itself
    command = [sys.executable, "-m", "trireme", "serve", "--deployment", "d.yaml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "triton.allow_client_shm: true, but " in result.stderr
    assert "has no --allow-client-shm" in result.stderr


def test_each_answer_of_either_server_is_asked_and_not_guessed(below: tuple[str, ...]) -> None:
    older = ask_server(recorded_triton())
    folder = below[1].removeprefix("PATH=").partition(os.pathsep)[0]
    newer = ask_server(TritonInstallation(Path(folder, "tritonserver"), None, ()))
    assert (older.are_tensors_whole, newer.are_tensors_whole) == (True, True)
    for answer in ("closes_client_shm", "limits_http_bytes", "limits_json_depth", "is_unready_with_dead_stub",
                   "knows_max_inflight_requests", "reads_pythonpath"):  # fmt: skip
        assert (getattr(older, answer), getattr(newer, answer)) == (False, True), answer
    # The rest is the stub's and the core's, which the stand-in leaves to the real server.
    for answer in ("version", "numpy", "calls_is_ready"):
        assert getattr(newer, answer) == getattr(older, answer)


def test_doctor_says_what_the_server_can_do(tmp_path: Path, asked_server: ServerFeatures) -> None:
    command = [sys.executable, "-m", "trireme", "doctor", "--server"]
    told = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, json.loads(told.stdout)) == (0, asdict(asked_server))
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert f"tritonserver {asked_server.version}, numpy {asked_server.numpy}" in shown.stdout
    both = subprocess.run(
        [*command, "/models/x"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (both.returncode, "check /models/x by a `trireme doctor` without --server" in both.stderr) == (2, True)


CONFIG = """max_batch_size: 0
input [{ name: "i" data_type: TYPE_INT32 dims: [-1] }] output [{ name: "o" data_type: TYPE_INT32 dims: [-1] }]
instance_group [{ count: 1 kind: KIND_CPU }]"""
CODE = """import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("o", np.array([1, 2, 3], dtype=np.int32))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
ASKED = json.dumps({"inputs": [{"name": "i", "shape": [1], "datatype": "INT32", "data": [5]}]}).encode()


def test_numpy_2_is_judged_by_what_the_stub_does_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter first on PATH is the stub's: that of the load tests has numpy 2.
    monkeypatch.setattr(sys, "prefix", str(PROJECT / ".tools" / "bench"))
    features = ask_server(find_triton())
    assert features.numpy.startswith("2.")
    write_model(tmp_path / "models", "three", config=CONFIG, code=CODE)
    with PlainTriton(tmp_path / "models", tmp_path) as server:
        status, said = post(server.http_port, "/v2/models/three/infer", ASKED)
    is_whole = status == 200 and json.loads(said)["outputs"][0]["data"] == [1, 2, 3]
    assert features.are_tensors_whole == is_whole, said
    if not is_whole:
        with pytest.raises(SpecError, match=r"numpy 2\..* breaks the Python stub of tritonserver .*numpy<2"):
            refuse_broken_tensors(features)


@pytest.mark.parametrize("is_newer", [False, True], ids=["installed", "newer"])
def test_a_stub_imports_the_servers_own_module_whatever_lies_on_pythonpath(
    is_newer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_newer:
        folder = write_newer_triton(tmp_path / "bin", RECORD)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(installation, "DEFAULT_BACKENDS", folder / BACKENDS)
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "triton_python_backend_utils.py").write_text("raise ImportError('not the server's own')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    write_model(tmp_path / "models", "three", config=CONFIG, code=CODE)
    with PlainTriton(tmp_path / "models", tmp_path) as server:
        assert post(server.http_port, "/v2/models/three/infer", ASKED)[0] == 200


def test_a_process_that_aborts_once_it_was_unloaded_is_no_crash(tmp_path: Path) -> None:
    folder = write_newer_triton(tmp_path / "bin", RECORD, is_aborting=True)
    below = ("env", f"PATH={folder}{os.pathsep}{os.environ['PATH']}")
    text = deployment_text("live", engine=ENGINE | {"seed": 1})
    with RunningServer(text, tmp_path / "live", below=below) as server:
        live, triton = Live(server), server.tritonserver().pid
        live.add(2, seed=2)
        live.control.ask("promote", number=2)
        live.control.ask("settle")
        live.control.ask("remove", number=1)
        assert server.is_ready()
        assert server.tritonserver().pid == triton
        assert server.stop() == 0
        assert len((folder / ABORTED).read_text().split()) >= 4, "the two of both releases did abort"
        assert not re.search(
            r"the process of model|starting it again|could not be taken out|has lost a request", server.log()
        )


def test_a_server_that_asks_a_model_or_reads_pythonpath_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What 2.71's stub does with the model that a server is asked with; the tests' own server does neither.
    monkeypatch.syspath_prepend(tmp_path / "on_the_path")
    model: dict[str, Any] = {}
    exec(ECHO, model)
    asked = model["TritonPythonModel"]()
    asked.initialize({"model_repository": str(tmp_path)})
    assert str(tmp_path / "on_the_path") in json.loads((tmp_path / FACTS).read_text())["path"]
    assert not (tmp_path / WAS_ASKED).exists()
    assert asked.is_ready() is True
    assert (tmp_path / WAS_ASKED).exists()


@pytest.mark.parametrize("room", ["serving", "model_repository", "clients"])
def test_nothing_of_ours_streams_from_another_model(room: str) -> None:
    # The iterator over such responses can be cancelled on 2.71 (python_backend #398), while `execute` runs.
    calls = [path for path in (PROJECT / room).rglob("*.py") if "exec(decoupled" in path.read_text()]
    assert calls == []
