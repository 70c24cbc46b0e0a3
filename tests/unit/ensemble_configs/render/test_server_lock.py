# SPDX-License-Identifier: Apache-2.0
"""A server's folder is one server's: a second one is refused by name, and what a killed one has left refuses nobody."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.render.server_lock import refuse_served, server_lock
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from trireme.base.errors import SpecError
from trireme.commands import run_command


@pytest.fixture
def spec() -> DeploymentSpec:
    return load_deployment(DEFAULT_DEPLOYMENT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that `trireme serve` would serve the demo from."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "build" / "demo_cpu"


def command(name: str, *args: str) -> int:
    with pytest.raises(SystemExit) as end:
        run_command(name, list(args))
    return int(end.value.code or 0)


def test_a_second_server_of_one_name_is_refused_by_name_before_anything_is_written(
    folder: Path, spec: DeploymentSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    with server_lock(folder, spec):
        (folder / "control.sock").touch()
        before = sorted(folder.iterdir())
        assert command("serve", "--grpc-port", "18001") == 2
        assert sorted(folder.iterdir()) == before
    told = capsys.readouterr().err
    assert f"demo_cpu is served from {folder} already, by process {os.getpid()} (gRPC on 127.0.0.1:8001)" in told
    assert f"`trireme drain --server {folder}`" in told
    assert "another name in its file" in told
    assert "in another folder" in told


def test_what_a_killed_server_has_left_refuses_nobody(folder: Path, spec: DeploymentSpec) -> None:
    code = """
import sys, time
from pathlib import Path
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.render.server_lock import server_lock
with server_lock(Path(sys.argv[1]), load_deployment(DEFAULT_DEPLOYMENT)):
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SpecError, match=f"by process {other.pid} "), server_lock(folder, spec):
            pass
        other.send_signal(signal.SIGKILL)
    assert (folder / "server.lock").is_file()
    refuse_served(folder / "model_repository")
    with server_lock(folder, spec):
        assert json.loads((folder / "server.lock").read_text())["pid"] == os.getpid()


def test_a_refused_start_leaves_no_folder_behind(folder: Path, spec: DeploymentSpec) -> None:
    with server_lock(folder, spec):
        pass
    assert not folder.parent.exists()
    with server_lock(folder, spec):
        (folder / "triton.log").touch()
    assert [path.name for path in folder.iterdir()] == ["triton.log"]


def test_the_lock_of_a_server_that_came_after_a_clean_up_stays(folder: Path, spec: DeploymentSpec) -> None:
    first = server_lock(folder, spec)
    first.__enter__()
    (folder / "server.lock").unlink()  # `make clean`
    with server_lock(folder, spec):
        first.__exit__(None, None, None)
        with pytest.raises(SpecError, match="is served from"), server_lock(folder, spec):
            pass


def test_what_a_server_serves_is_not_rendered_anew_below_it(
    folder: Path, spec: DeploymentSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(
        DEFAULT_DEPLOYMENT.read_text().replace("../../", f"{DEFAULT_DEPLOYMENT.parents[2]}/")
    )
    with server_lock(folder, spec):
        assert command("render", "--deployment", "mine.yaml") == 2
        assert f"process {os.getpid()} (gRPC on 127.0.0.1:8001) serves; name another folder with --out" in (
            capsys.readouterr().err
        )
        assert not (folder / "model_repository").exists()
        assert command("render", "--deployment", "mine.yaml", "--out", "elsewhere") == 0
    assert command("render", "--deployment", "mine.yaml") == 0


def test_one_that_is_just_starting_refuses_too(folder: Path, spec: DeploymentSpec) -> None:
    with server_lock(folder, spec):
        (folder / "server.lock").write_text("")  # locked, and not written yet
        with pytest.raises(SpecError, match="already, by another process"), server_lock(folder, spec):
            pass
