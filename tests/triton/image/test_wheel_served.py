# SPDX-License-Identifier: Apache-2.0
"""The wheel as in a container, by a user that is not root: Triton is fetched once, and everything is served.

There is no checkout, no compiler, and nobody can write where the packages are.

The packages and Triton come from the package index: an index that cannot be reached fails the test.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from waiting import wait_until
from wheel_here import PROJECT, User, build_wheel, container_of, forbid_writing, open_folder

from trireme.base.free_ports import free_ports

pytestmark = pytest.mark.soak
START_S = 180.0


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with open_folder() as folder:
        environment = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
        subprocess.run([environment / "bin/pip", "install", "--quiet", str(wheel)], check=True)
        forbid_writing(environment)
        container = container_of(environment) if os.geteuid() == 0 else ()
        yield User(folder, environment / "bin/python", container=container)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the container")
def test_the_container_has_no_checkout_no_compiler_and_no_room_beside_the_packages(user: User) -> None:
    def inside(script: str) -> str:
        command = [*user.command([])[:-3], "sh", "-c", script]  # without `python -m trireme`
        return subprocess.run(command, capture_output=True, text=True, check=False, env=user.environment).stdout

    assert inside(f"ls -A {PROJECT}") == ""
    assert inside("cc --version || echo none") == "none\n"
    packages = f"{user.environment['PATH'].partition(':')[0]}/../lib"
    assert inside(f"touch {packages}/x || echo read-only") == "read-only\n"


@contextmanager
def served(user: User, *options: str) -> Iterator[tuple[str, Path]]:
    """Yield the gRPC address and the log of a server of the default deployment."""
    http, grpc, metrics = free_ports(3)
    log = user.folder.parent / f"serve-{grpc}.log"
    ports = ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    command = user.command(["serve", *ports, *options])
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=user.folder, env=user.environment, stdout=output, stderr=output) as process,
    ):
        try:
            end_s = time.monotonic() + START_S
            while "ready after" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end_s, log.read_text()
                time.sleep(0.2)
            yield f"localhost:{grpc}", log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()


def has_candidate(url: str) -> bool:
    """Return whether the server has a candidate's `ensemble` ready."""
    with grpcclient.InferenceServerClient(url) as client:
        return bool(client.is_model_ready("ensemble_canary"))


def test_triton_is_not_fetched_without_an_index(user: User) -> None:
    user.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/none", "PIP_CONFIG_FILE": "/dev/null"}
    try:
        said = user.run("serve", is_refused=True)
    finally:
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
            del user.environment[name]
    assert "Triton cannot be fetched" in said
    assert "put `tritonserver` on PATH" in said


def test_the_default_deployment_is_served_asked_and_measured(user: User) -> None:
    with served(user) as (url, log):
        assert "nvidia-pytriton" in log.read_text()
        answer = json.loads(user.run("generate", "What is the capital of France?", "--json", "--url", url))
        assert "Paris" in answer["text"]
        user.run("bench", "run", "--url", url, "--concurrency", "2", "--requests", "10", "--out", "runs/two")
        assert (user.folder / "runs/two").is_dir()


def test_triton_is_there_the_next_time_and_a_candidate_is_rolled_out(user: User) -> None:
    (user.folder / "candidate.yaml").write_text("engine: {max_num_seqs: 32}\n")
    with served(user) as (url, log):
        assert "[setup]" not in log.read_text()
        rollout = subprocess.Popen(
            user.command(["rollout", "start", "candidate.yaml", "--port", str(free_ports(1)[0])]),
            cwd=user.folder, env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_until(lambda: has_candidate(url), START_S)
        user.run("rollout", "abort", "--why", "enough was seen")
        said, _ = rollout.communicate(timeout=START_S)
        assert rollout.returncode == 1, said
        assert "enough was seen" in said
