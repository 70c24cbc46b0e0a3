# SPDX-License-Identifier: Apache-2.0
"""`trireme serve` used wrongly: one clear line and the fix, exit status 2, and nothing started."""

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from running_server import PROJECT, RunningServer, deployment_text

from benchmarks.free_ports import free_ports
from serving.server.installation import find_triton

SIMULATED = {"provider": "simulated"}


def serve(folder: Path, deployment: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "d.yaml").write_text(deployment)
    ports = (f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
    command = [sys.executable, "-m", "trireme", "serve", "--deployment", "d.yaml", *ports, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result
    assert len(result.stderr.splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("name", ["http-port", "grpc-port", "metrics-port"])
def test_a_port_that_is_taken_is_named_with_the_option_that_changes_it(tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = serve(tmp_path, deployment_text("x", engine=SIMULATED), f"--{name}={port}")
    assert_refused(result, str(port), f"--{name}")
    assert not (tmp_path / "build").exists()


def test_a_health_port_that_is_one_of_triton_s_is_refused(tmp_path: Path) -> None:
    result = serve(tmp_path, deployment_text("x", engine=SIMULATED), "--http-port=18000", "--health-port=18000")
    assert_refused(result, "--health-port 18000 is one of Triton's", "name another")
    assert not (tmp_path / "build").exists()


def test_a_missing_engine_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    result = serve(tmp_path, deployment_text("x", engine={"provider": "openvino", "dir": "/nowhere"}))
    assert_refused(result, "/nowhere/openvino_model.xml", "make demo-model")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    text = deployment_text("x", engine=SIMULATED).replace(str(PROJECT / "examples"), "/nowhere")
    assert_refused(serve(tmp_path, text), "tokenizer.dir", "/nowhere")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("name: [", "is not YAML", id="broken"),
        pytest.param("name: x\ncolour: red\n", "colour", id="unknown key"),
        pytest.param("", "must hold keys and values", id="empty"),
    ],
)
def test_a_broken_deployment_file_is_refused(tmp_path: Path, text: str, word: str) -> None:
    assert_refused(serve(tmp_path, text), "d.yaml", word)


def test_a_server_set_up_for_another_python_is_refused(tmp_path: Path) -> None:
    record = tmp_path / ".tools" / "triton" / "installation.json"
    record.parent.mkdir(parents=True)
    facts = json.loads((PROJECT / ".tools" / "triton" / "installation.json").read_text())
    record.write_text(json.dumps(facts | {"python_version": "3.8"}))
    with pytest.raises(Exception, match=r"set up for Python 3\.8.*make setup"):
        find_triton(record)
    with pytest.raises(Exception, match="make setup"):
        find_triton(tmp_path / "none.json")


def test_a_model_that_cannot_be_loaded_ends_the_start_with_its_own_words(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "openvino_model.xml").write_text("not a model")
    (model / "openvino_model.bin").write_bytes(b"")
    (model / "config.json").write_text((PROJECT / "examples/demo_model/openvino/target/config.json").read_text())
    result = serve(tmp_path, deployment_text("x", engine={"provider": "openvino", "dir": str(model)}))
    assert result.returncode == 1
    assert "tritonserver ended" in result.stderr
    assert "the engine could not be loaded" in result.stderr
    assert "triton.log" in result.stderr


def test_two_servers_of_one_deployment_run_side_by_side(start_server: Callable[..., RunningServer]) -> None:
    assert start_server().is_ready()
    assert start_server().is_ready()


def test_strangers_cannot_control_models(simulated: RunningServer) -> None:
    for path in ("v2/repository/index", "v2/repository/models/ensemble/unload"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{simulated.http_port}/{path}", data=b"{}", timeout=5)
