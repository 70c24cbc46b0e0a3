# SPDX-License-Identifier: Apache-2.0
"""`trireme serve` used wrongly: one clear line and the fix, exit status 2, and nothing started."""

import json
import socket
import string
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from serving.process.installation import find_triton
from trireme.base.free_ports import free_ports

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


@pytest.mark.parametrize("delay_s", ["-1", "nan", "inf", "3601"])
def test_a_delay_in_which_nothing_would_end_is_refused(tmp_path: Path, delay_s: str) -> None:
    result = serve(tmp_path, deployment_text("x", engine=SIMULATED), f"--exit-delay-s={delay_s}")
    assert result.returncode == 2
    assert "'--exit-delay-s': Input should be" in result.stderr
    assert not (tmp_path / "build").exists()


def test_a_control_key_that_cannot_be_used_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("too-short\n")
    result = serve(tmp_path, deployment_text("x", engine=SIMULATED), "--control-key-file=key")
    assert_refused(result, "--control-key-file key holds 9 characters", "16 to 256")
    assert "too-short" not in result.stderr
    assert_refused(serve(tmp_path, deployment_text("x", engine=SIMULATED), "--control-key-file=none"), "no such file")
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


def test_who_has_the_key_of_the_file_can_ask_and_nobody_else_and_no_log_has_it(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    key = "".join(sorted(set(string.digits + string.ascii_letters + string.punctuation) - set(":=;,")))
    (tmp_path / "key").write_text(f"{key}\n")
    server = start_server(endpoints=ENDPOINTS, options=("--control-key-file", str(tmp_path / "key")))
    index = f"http://127.0.0.1:{server.http_port}/v2/repository/index"
    models = {"ensemble", "ensemble_graph", "tensorrt_llm", "tensorrt_llm_bls", "preprocessing", "postprocessing"}

    def asked(**headers: str) -> set[str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with urllib.request.urlopen(urllib.request.Request(index, b"{}", named), timeout=5) as response:
            return {model["name"] for model in json.load(response)}

    assert asked(trireme_control_key=key) == models
    for wrong in (key[:-1], key + "x", key.swapcase()):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked(trireme_control_key=wrong)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        asked()
    with grpcclient.InferenceServerClient(server.url) as client:
        headers = {"triton-grpc-protocol-trireme-control-key": key}
        listed = client.get_model_repository_index(headers=headers, as_json=True)
        assert {model["name"] for model in listed["models"]} == models
        with pytest.raises(InferenceServerException, match="trireme-control-key"):
            client.get_model_repository_index(headers={"trireme-control-key": key})

    server.tritonserver().kill()  # the next one has it, too
    wait_until(lambda: "ready again" in server.log(), 30)
    assert asked(trireme_control_key=key) == models
    assert server.stop() == 0
    assert key not in server.log()
    assert not [path for path in server.folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
