# SPDX-License-Identifier: Apache-2.0
"""The command `trireme serve --gateway`: one command from nothing to OpenAI's API, with a key."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest
from openai import OpenAI
from process_words import words_of
from running_server import RunningServer, deployment_text, still_running
from waiting import wait_until

from trireme.base.free_ports import free_ports

ENGINE = {"provider": "simulated", "step_ms": 2.0}


class Served(RunningServer):
    """A server with a gateway."""

    def __init__(self, folder: Path) -> None:
        [self.gateway_port] = free_ports(1)
        options = ("--gateway", "--gateway-port", str(self.gateway_port))
        super().__init__(deployment_text("served", engine=ENGINE), folder, options=options)

    def client(self, key: str) -> OpenAI:
        return OpenAI(base_url=f"http://127.0.0.1:{self.gateway_port}/v1", api_key=key, max_retries=0)

    def keys(self) -> list[str]:
        return list(dict.fromkeys(re.findall(r"\btri-[0-9a-z]{12}-[\w-]{43}\b", self.log())))

    def gateway(self) -> psutil.Process:
        [found] = [each for each in self.descendants() if "gateway" in words_of(each)]
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as server:
        yield server


def answer(client: OpenAI) -> str:
    return client.completions.create(model="served", prompt="Hi", max_tokens=8, temperature=0).choices[0].text


def test_the_key_that_is_shown_opens_the_api_until_the_server_ends(served: Served) -> None:
    wait_until(lambda: len(served.keys()) == 1, 30.0)
    [key] = served.keys()
    with served.client(key) as client:
        assert answer(client)
        # Started again, with another key; who asks meanwhile waits.
        served.gateway().kill()
        wait_until(lambda: len(served.keys()) == 2, 30.0)
        assert answer(client)
    with served.client("tri-none") as stranger, pytest.raises(openai.AuthenticationError):
        answer(stranger)
    gateway = served.gateway()
    assert served.stop() == 0
    assert still_running([gateway]) == []
    command = [sys.executable, "-m", "trireme", "gateway", "keys", "list", "--keys", "build/served/keys.sqlite"]
    listed = subprocess.run(command, cwd=served.folder, capture_output=True, text=True, check=True).stdout
    killed, ended = [line for line in listed.splitlines() if "session-" in line]
    assert " valid " in killed  # nobody could revoke it; it expires
    assert " revoked " in ended


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text(deployment_text("served", engine=ENGINE))
    names = ("--http-port", "--grpc-port", "--metrics-port")
    options = [part for name, port in zip(names, free_ports(3), strict=True) for part in (name, str(port))]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options += ["--gateway", "--gateway-port", str(taken.getsockname()[1])]
        command = [sys.executable, "-m", "trireme", "serve", "--deployment", "deployment.yaml", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "choose another with --gateway-port" in done.stderr
    assert "ready after" not in done.stderr
