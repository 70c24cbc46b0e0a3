# SPDX-License-Identifier: Apache-2.0
"""The options of the control over HTTPS are refused by name where they would have no effect, or let strangers in."""

from pathlib import Path

import pytest
from certificates import Authority

from serving.supervisor.remote_options import remote_address
from trireme.base.errors import RequestError, ServingError, SpecError
from trireme.base.http_servers.http_access import HttpAccess
from trireme.commands import run_command


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("0123456789abcdef\n")
    return path


def test_without_a_port_there_is_none_and_other_options_are_refused(keys: Path) -> None:
    assert remote_address(None, None, HttpAccess(), taken=()) is None
    for host, access, name in (
        ("0.0.0.0", HttpAccess(), "host"),
        (None, HttpAccess(cert_file=keys), "cert-file"),
        (None, HttpAccess(key_file=keys), "key-file"),
        (None, HttpAccess(token_file=keys), "token-file"),
    ):
        with pytest.raises(RequestError, match=f"--remote-{name} is for --remote-port"):
            remote_address(host, None, access, taken=())


def test_this_machine_alone_needs_a_key_and_other_machines_tls_too(keys: Path, tmp_path: Path) -> None:
    pair = Authority(tmp_path / "authority").server()
    here = remote_address(None, 8004, HttpAccess(token_file=keys), taken=(8000,))
    assert here is not None
    assert (here.host, here.port) == ("127.0.0.1", 8004)
    everywhere = HttpAccess(pair.cert, pair.key, keys)
    assert remote_address("0.0.0.0", 8004, everywhere, taken=()) == ("0.0.0.0", 8004, everywhere)
    for host, access, said in (
        (None, HttpAccess(pair.cert, pair.key), "give --remote-token-file"),
        ("0.0.0.0", HttpAccess(token_file=keys), "give --remote-cert-file and --remote-key-file"),
        ("gpu-3", HttpAccess(token_file=keys), "give --remote-cert-file and --remote-key-file"),
        ("0.0.0.0", HttpAccess(pair.cert, None, keys, "--remote-"), "--remote-cert-file is given without"),
        ("0.0.0.0", HttpAccess(pair.cert, keys, keys, "--remote-"), "--remote-key-file .* cannot be used"),
        (None, HttpAccess(token_file=tmp_path / "none", options="--remote-"), "--remote-token-file .* cannot be read"),
    ):
        with pytest.raises(ServingError, match=said):
            remote_address(host, 8004, access, taken=())


def test_a_port_of_its_own_is_asked_for(keys: Path) -> None:
    with pytest.raises(SpecError, match=r"--remote-port 8001 is another port of this server \(8000, 8001, 8002\)"):
        remote_address(None, 8001, HttpAccess(token_file=keys), taken=(8000, 8001, 8002))


def test_the_command_refuses_them_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, said in (
        (["--remote-host", "0.0.0.0"], "--remote-host is for --remote-port"),
        (["--remote-port", "8004"], "give --remote-token-file"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_command("serve", options)
        assert ended.value.code == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
