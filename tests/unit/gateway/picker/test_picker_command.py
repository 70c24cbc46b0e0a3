# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway picker`: what it refuses, with what to write instead."""

import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from certificates import Authority

from ensemble_configs.spec.deployment import DeploymentSpec
from gateway.picker import picker_command
from gateway.picker.envoy_messages import HEALTH, SERVING, HealthCheckRequest, HealthCheckResponse
from gateway.picker.prompt_of_body import Prompt
from gateway.served_models import models_of
from trireme.base.free_ports import free_ports
from trireme.commands import run_command

HERE = "127.0.0.1:8001"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "gpu1:8001"], "write IP:PORT, or dns:///gpu1:8001"),
        (["--url", HERE, "--url", HERE], "is given twice"),
        (["--url", HERE, "--listen", "0.0.0.0:9002"], "give --cert-file and --key-file"),
        (["--url", HERE, "--listen", "9002"], "listen must be HOST:PORT"),
        (["--url", HERE, "--key-file", "tls.key"], "without --cert-file"),
        (["--url", "dns:///pods"], "--url must be dns:///NAME:PORT"),
        (["--url", HERE, "--metrics-url", "dns:///pods:8002"], "write host:port of its page"),
        (["--url", HERE, "--metrics-url", "a:1", "--metrics-url", "b:1"], "is given 2 times for 1 servers"),
        (["--url", HERE, "--server-ca-file", "/nowhere.pem"], "/nowhere.pem"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_write(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_command("gateway", ["picker", *options])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_request_may_name_any_of_a_models_triton_models() -> None:
    model = {"tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}
    spec = DeploymentSpec.model_validate(
        {"name": "pair", "models": [{"name": "chat", "prefix": "", **model}, {"name": "code", **model}]}
    )
    endpoints = picker_command._endpoints(spec, models_of(spec), None, 1)
    asked = ("", "chat", "code", "ensemble", "tensorrt_llm_bls", "code_ensemble", "code_tensorrt_llm_bls")
    found = {name: endpoints.model_of(Prompt(name)) for name in asked}
    assert {name for name, model in found.items() if model == "code_ensemble"} == {
        "code", "code_ensemble", "code_tensorrt_llm_bls",
    }  # fmt: skip
    assert set(found.values()) == {"ensemble", "code_ensemble"}


def test_an_address_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        run_command("gateway", ["picker", "--url", HERE, "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert ended.value.code == 1
    assert "take another --listen" in capsys.readouterr().err


def test_envoy_may_ask_by_tls_and_callers_without_it_get_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    shown = authority.issue("picker", hosts=("picker.example",))
    [port] = free_ports(1)
    command = [sys.executable, "-m", "trireme", "gateway", "picker", "--url", HERE, "--listen", f"127.0.0.1:{port}"]
    with (tmp_path / "picker.log").open("wb") as log:
        process = subprocess.Popen([*command, "--cert-file", shown.cert, "--key-file", shown.key], stderr=log)
    try:
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        options = [("grpc.ssl_target_name_override", "picker.example")]
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            assert is_alive(channel, timeout_s=60)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert not is_alive(channel, timeout_s=1)
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "picker.log").read_text()


def is_alive(channel: grpc.Channel, *, timeout_s: float) -> bool:
    check = channel.unary_unary(
        f"/{HEALTH}/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )
    try:
        asked = HealthCheckRequest(service="liveness")
        return bool(check(asked, timeout=timeout_s, wait_for_ready=True).status == SERVING)
    except grpc.RpcError:
        return False
