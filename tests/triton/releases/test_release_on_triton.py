# SPDX-License-Identifier: Apache-2.0
"""A built release, pulled into a cache, is served by its folder alone; an altered one is refused by either way in."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from demo_release import DEMO_MODEL, alter_a_byte, write_demo_release
from running_server import RunningServer, deployment_text

from build_engines.cache.release_cache import ReleaseCache
from clients.server_control import ServerControl
from clients.streaming import GenerateRequest, TritonClient
from ensemble_configs.releases.release_lock import lock_file, locked
from ensemble_configs.releases.release_manifest import address
from trireme.base.errors import Unavailable
from trireme.base.free_ports import free_ports


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "hashes"))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a release as `trireme pull` leaves it."""
    cache = ReleaseCache(tmp_path / "cache", max_bytes=10**9, tell=print)
    return cache.pull(write_demo_release(tmp_path / "built"), num_jobs=4, on_bytes=id).folder


def deployment_of(release: Path) -> str:
    built = {"release_dir": str(release), "engine": {"provider": "openvino"}}
    return yaml.safe_dump({"name": "built", "endpoints": ["ensemble"], **built})


def test_a_release_is_served_by_its_folder_alone(release: Path, tmp_path: Path) -> None:
    with RunningServer(deployment_of(release), tmp_path / "server") as server, TritonClient(server.url) as client:
        request = GenerateRequest(text_input="What is the capital of France?", max_tokens=20, stream=True)
        assert "".join(chunk.text for chunk in client.generate(request)) == " The capital of France is Paris."
        with locked(lock_file(release), is_shared=False) as is_free:
            assert not is_free
        assert server.metric("trireme_engine_verified") == 1
        assert "(release 1) ..." in server.log()
        assert server.stop() == 0
    with locked(lock_file(release), is_shared=False) as is_free:
        assert is_free


def test_a_folder_without_a_manifest_is_served_and_said_to_be_unverified(tmp_path: Path) -> None:
    folder = DEMO_MODEL / "openvino" / "target"
    deployment = deployment_text("plain", engine={"provider": "openvino", "dir": str(folder), "num_kv_blocks": 64})
    with RunningServer(deployment, tmp_path / "server") as server:
        assert "loading plain (release 1, unverified) ..." in server.log()
        assert f"{folder} is unverified: no manifest lists its files" in server.log()
        assert server.metric("trireme_engine_verified") == 0
        models = ServerControl(tmp_path / "server/build/plain/control.sock").ask("status")["models"]
        assert isinstance(models, list)
        assert models[0]["unverified"] == {"1": [str(folder)]}
        assert server.stop() == 0


def test_a_deployment_whose_releases_were_pulled_is_served_from_the_cache(tmp_path: Path) -> None:
    deployment = deployment_of(write_demo_release(tmp_path / "share"))
    (tmp_path / "d.yaml").write_text(deployment)
    command = [sys.executable, "-m", "trireme", "pull", "--deployment", "d.yaml", "--to", "cache", "--out", "out.yaml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    (tmp_path / "share").rename(tmp_path / "gone")
    with (
        RunningServer((tmp_path / "out.yaml").read_text(), tmp_path / "server") as server,
        TritonClient(server.url) as client,
    ):
        request = GenerateRequest(text_input="What is the capital of France?", max_tokens=20, stream=True)
        assert "".join(chunk.text for chunk in client.generate(request)) == " The capital of France is Paris."
        [release] = (tmp_path / "cache").glob("[0-9a-f]*")
        with locked(lock_file(release), is_shared=False) as is_free:
            assert not is_free
        assert server.stop() == 0


def test_a_release_that_is_evaluated_while_it_is_served_stays_and_its_engine_starts_again(tmp_path: Path) -> None:
    built = write_demo_release(tmp_path / "built")
    release = built.rename(tmp_path / f"demo-int8-{address(built)[:12]}")  # as `trireme build` names it
    item = {"task": "facts", "group": "en", "kind": "exact", "prompt": "What is the capital of France?"}
    (tmp_path / "one.jsonl").write_text(json.dumps(item | {"expected": " The capital of France is Paris."}))
    command = [sys.executable, "-m", "trireme", "evaluate", str(release), "--against", str(release)]
    with RunningServer(deployment_of(release), tmp_path / "server") as server, TritonClient(server.url) as client:
        result = subprocess.run(
            [*command, "--tasks", "one.jsonl"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stderr
        assert "is in use, so it stays as it was" in result.stderr
        assert len(list(tmp_path.glob("demo-int8-*"))) == 2
        before = server.engine_process()
        before.kill()
        before.wait(10)
        request = GenerateRequest(text_input=item["prompt"], max_tokens=20, stream=True)
        assert answer_once_it_is_back(client, request) == " The capital of France is Paris."
        assert server.stop() == 0


def answer_once_it_is_back(client: TritonClient, request: GenerateRequest) -> str:
    deadline_s = time.monotonic() + 30
    while True:
        try:
            return "".join(chunk.text for chunk in client.generate(request))
        except Unavailable:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def test_a_release_that_was_altered_is_not_served(release: Path, tmp_path: Path) -> None:
    alter_a_byte(release / "engine/openvino_model.bin")
    (tmp_path / "d.yaml").write_text(deployment_of(release))
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
    command = [sys.executable, "-m", "trireme", "serve", "--deployment", "d.yaml", *ports]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert "file engine/openvino_model.bin: found SHA-256" in line
    assert "build the release again, or pull it again" in line
    assert not (tmp_path / "build").exists()
