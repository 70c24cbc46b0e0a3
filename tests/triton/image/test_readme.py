# SPDX-License-Identifier: Apache-2.0
"""The README's commands do what it shows, run as they stand there but for the ports."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from running_server import PROJECT, RunningServer

README = (PROJECT / "README.md").read_text()


def console_examples() -> list[tuple[str, str]]:
    """Return ``(command, shown output)`` of every console block."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    examples = [part.partition("\n") for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in examples]


# `make` is what brought us here, or takes minutes; the wheel's are in `test_wheel_served.py`.
ASKING = [example for example in console_examples() if not example[0].startswith(("make ", "pip "))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder where the benchmarks of these commands are kept; one reads what the one before it wrote."""
    return tmp_path_factory.mktemp("runs")


def on_this_server(text: str, server: RunningServer, runs: Path) -> str:
    text = text.replace("localhost:8000", f"127.0.0.1:{server.http_port}")
    metrics = f"http://127.0.0.1:{server.metrics_port}/metrics"
    text = text.replace("bench run", f"bench run --url {server.url} --metrics {metrics}")
    text = text.replace("runs/", f"{runs}/").replace("report.html", f"{runs}/report.html")
    return text.replace("trireme generate", f"trireme generate --url {server.url}")


@pytest.mark.parametrize(("command", "shown"), ASKING, ids=[command for command, _ in ASKING])
def test_a_command_of_the_readme_does_what_it_shows(
    openvino: RunningServer, command: str, shown: str, runs: Path
) -> None:
    if command.startswith("curl ") and shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    result = subprocess.run(
        on_this_server(command, openvino, runs),
        shell=True,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() or result.stderr.startswith("wrote ")
    if shown:
        assert result.stdout.strip("\n") == shown.strip("\n")


def test_the_python_of_the_readme_runs(openvino: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code.replace("localhost:8001", openvino.url), "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20


def test_every_make_task_that_the_readme_names_exists() -> None:
    tasks = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?\bmake ([a-z-]+)", README)) <= tasks
