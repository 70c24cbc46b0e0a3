# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway picker`: what it refuses, with what to write instead."""

import socket
from pathlib import Path

import pytest

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


def test_an_address_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        run_command("gateway", ["picker", "--url", HERE, "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert ended.value.code == 1
    assert "take another --listen" in capsys.readouterr().err
