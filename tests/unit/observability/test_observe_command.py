# SPDX-License-Identifier: Apache-2.0
"""`trireme observe`: a real Prometheus and Alertmanager that end with it, and the files for a deployment."""

import contextlib
import io
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_here import FILES, needs_prometheus

from trireme.base.free_ports import free_ports
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

pytestmark = pytest.mark.slow

DEMO = CODE_ROOT / "examples/demo_model/target"


def observe(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trireme", "observe", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def said(*arguments: str | Path) -> tuple[object, str]:
    """Return the exit code and what is told of what ends by itself, asked in this process."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), pytest.raises(SystemExit) as ended:
        run_command("observe", [*map(str, arguments)])
    return ended.value.code, text.getvalue()


def ports() -> tuple[str, ...]:
    port, alertmanager_port = free_ports(2)
    return ("--port", str(port), "--alertmanager-port", str(alertmanager_port))


@needs_prometheus
def test_both_run_until_they_are_interrupted_and_leave_nothing_behind(tmp_path: Path) -> None:
    options = ports()
    with observe("run", "--folder", tmp_path, *options) as running:
        deadline_s = time.monotonic() + 30
        assert running.stdout is not None
        while "Ctrl-C" not in (line := running.stdout.readline()):
            assert line, "it has ended"
            assert time.monotonic() < deadline_s
        with urllib.request.urlopen(f"http://127.0.0.1:{options[1]}/api/v1/rules", timeout=5) as response:
            assert b"TriremeTtftP99High" in response.read()
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
    for port in (options[1], options[3]):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0, "it still listens"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--metrics-url", "nonsense"), "--metrics-url 'nonsense' is not host:port, as in localhost:8002"),
        (("--port", "9191", "--alertmanager-port", "9191"), "--alertmanager-port 9191 is --port, too"),
    ],
    ids=["address", "ports"],
)
def test_wrong_options_are_refused_by_name(arguments: tuple[str, ...], complaint: str) -> None:
    status, text = said("run", *arguments)
    assert (status, complaint in text) == (2, True), text


@needs_prometheus
def test_a_port_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, text = said("run", "--folder", tmp_path, "--port", str(port))
    assert status == 2
    assert f"--port {port} is in use" in text


def deployment(folder: Path, **slo: float) -> Path:
    path = folder / "mine.yaml"
    spec = {"name": "mine", "tokenizer": {"dir": str(DEMO)}, "engine": {"provider": "simulated"}, "slo": slo}
    path.write_text(yaml.safe_dump(spec))
    return path


def test_files_for_a_deployment_have_its_targets_and_leave_the_defaults_alone(tmp_path: Path) -> None:
    before = (FILES / "prometheus/alert_rules.yml").read_text()
    out = tmp_path / "out"
    status, text = said("files", "--deployment", deployment(tmp_path, ttft_ms=400), "--out", out)
    assert status == 0, text
    assert "p99_5m > 0.4\n" in (out / "prometheus/alert_rules.yml").read_text()
    assert {path.stem for path in (out / "dashboards").iterdir()} == {"serving", "capacity", "rollout", "gpu"}
    assert (FILES / "prometheus/alert_rules.yml").read_text() == before
    status, text = said("files", "--deployment", deployment(tmp_path, ttft_ms=400))
    assert (status, "--deployment needs --out" in text) == (2, True)
