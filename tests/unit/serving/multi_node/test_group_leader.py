# SPDX-License-Identifier: Apache-2.0
"""A leader at the end of its server, its ranks or itself, with short-lived processes in place of `mpirun`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from scripts.unpacked_programs import OPENSSH
from serving.multi_node import group_leader
from serving.multi_node.group_key import leader_files, private_folder, program, write_worker_files
from serving.multi_node.group_leader import run_ranks, wait_for_workers
from serving.multi_node.group_record import GroupRecord, run_server
from serving.multi_node.node_group import sshd_config
from serving.supervisor.stop_signal import StopSignal
from trireme.base.errors import ServerError, SpecError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

WAIT_S = 20.0
# Tells a keeper to run a command as the server, as upstream's script does at rank 0, and goes on behind it.
KEEP = "import sys; from pathlib import Path; from serving.multi_node.group_record import *; import time; {before}"
KEEP += "run_server(GroupRecord(Path(sys.argv[1])), sys.argv[2:]); {after}"


def ranks(folder: Path, *server: str, before: str = "", after: str = "time.sleep(60)") -> list[str]:
    """Return a command in place of `mpirun`, which starts the server, and does not end with it."""
    return [sys.executable, "-c", KEEP.format(before=before, after=after), str(folder), *server]


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield StopSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def record(tmp_path: Path) -> GroupRecord:
    made = GroupRecord(tmp_path)
    made.begin(["serve"])
    return made


def run(argv: list[str], record: GroupRecord, stop: StopSignal) -> list[str]:
    said: list[str] = []
    run_ranks(argv, os.environ, record=record, stop=stop, tell=said.append)
    return said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["true"], "a rank or a node has died, or could not be started: mpirun has ended with 0"),
        (["false"], "mpirun has ended with 1"),
    ],
)
def test_mpirun_that_ends_by_itself_is_an_error_whatever_it_says(
    argv: list[str], message: str, record: GroupRecord, stop: StopSignal
) -> None:
    with pytest.raises(ServerError, match=message):
        run(argv, record, stop)


def test_a_server_that_fails_ends_the_ranks(tmp_path: Path, record: GroupRecord, stop: StopSignal) -> None:
    with pytest.raises(ServerError, match="the server has ended with exit status 3"):
        run(ranks(tmp_path, "sh", "-c", "exit 3"), record, stop)


def test_a_server_that_is_lost_with_its_keeper_ends_the_ranks(
    tmp_path: Path, record: GroupRecord, stop: StopSignal
) -> None:
    # The keeper below is a child of what stands for mpirun, and dies without a word.
    lost = [sys.executable, "-c", KEEP.format(before="", after=""), str(tmp_path), "sleep", "60"]
    code = "import subprocess, sys, time; k = subprocess.Popen(sys.argv[1:]); time.sleep(2); k.kill(); k.wait(); "
    began_s = time.monotonic()
    with pytest.raises(ServerError, match="a rank or a node has died"):
        run([sys.executable, "-c", code + "time.sleep(60)", *lost], record, stop)
    assert time.monotonic() - began_s < WAIT_S
    server = int((tmp_path / "server.pid").read_text().partition("@")[0])
    assert not psutil.pid_exists(server)


def test_upstream_that_does_not_end_the_ranks_behind_a_server_is_ended(
    tmp_path: Path, record: GroupRecord, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_leader, "GROUP_STOP_S", 0.5)
    assert run(ranks(tmp_path, "true"), record, stop) == ["the server has ended with exit status 0"]


def test_sigterm_goes_to_the_server_alone_and_the_ranks_end_behind_it(
    tmp_path: Path, record: GroupRecord, stop: StopSignal
) -> None:
    draining = "trap 'sleep 1; touch drained; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    argv = ranks(tmp_path, "sh", "-c", f"cd {tmp_path}; {draining}", after="")

    def ask_to_stop() -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_to_stop)
    asking.start()
    assert "asked to stop; the server drains" in run(argv, record, stop)
    asking.join()
    assert (tmp_path / "drained").exists()


def test_a_leader_that_is_asked_to_stop_before_there_is_a_server_just_ends(
    record: GroupRecord, stop: StopSignal
) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    run(["sleep", "60"], record, stop)


def test_the_status_of_a_server_is_kept(record: GroupRecord) -> None:
    assert record.status is None
    assert run_server(record, ["sh", "-c", "exit 7"]) == 7
    assert record.status == 7
    assert not record.send(signal.SIGTERM)
    assert run_server(record, ["sh", "-c", "kill -9 $$"]) == record.status == 137
    record.begin(["serve", "--deployment", "a b.yaml"])
    assert record.status is None
    assert record.command() == ["serve", "--deployment", "a b.yaml"]


def test_workers_are_asked_until_they_answer(stop: StopSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_leader, "_PAUSE_S", 0.01)
    answers = {"a": ["no", None], "b": ["no", "no", None]}
    asked: list[str] = []

    def ask(worker: str) -> str | None:
        asked.append(worker)
        return answers[worker].pop(0)

    assert wait_for_workers(["a", "b"], ask, timeout_s=WAIT_S, stop=stop, tell=print)
    assert sorted(asked) == ["a", "a", "b", "b", "b"]  # one that has answered is not asked again


def test_who_does_not_answer_in_time_is_named(stop: StopSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_leader, "_PAUSE_S", 0.01)
    with pytest.raises(ServerError, match=r"2 of 3 workers did not answer within 0.05 s: b \(no b\), c \(no c\)"):
        wait_for_workers(
            "abc", lambda name: None if name == "a" else f"no {name}", timeout_s=0.05, stop=stop, tell=print
        )


@pytest.fixture
def ssh_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    if not OPENSSH.is_there(CODE_ROOT):
        pytest.skip("OpenSSH is not installed: python3 scripts/bootstrap.py --only openssh")
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, OPENSSH.folders(CODE_ROOT))))
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(map(str, OPENSSH.library_folders(CODE_ROOT))))


@pytest.mark.usefixtures("ssh_on_path")
def test_what_is_no_key_is_refused_with_what_ssh_says_of_it(tmp_path: Path) -> None:
    (tmp_path / "ssh-privatekey").write_text("no key\n")
    with pytest.raises(SpecError, match=r"ssh-privatekey is no key without a passphrase \(.*\); make one: ssh-keygen"):
        leader_files(tmp_path, tmp_path)


@pytest.mark.usefixtures("ssh_on_path")
@pytest.mark.parametrize(
    ("made", "form", "kind"),
    [
        (ed25519.Ed25519PrivateKey.generate, PrivateFormat.OpenSSH, "ssh-ed25519"),
        (lambda: rsa.generate_private_key(65537, 3072), PrivateFormat.TraditionalOpenSSL, "ssh-rsa"),
        (lambda: ec.generate_private_key(ec.SECP256R1()), PrivateFormat.TraditionalOpenSSL, "ecdsa-sha2-nistp256"),
    ],
    ids=["ssh-keygen", "rsa of Helm", "ecdsa of Helm"],
)
def test_a_mounted_key_is_both_identity_and_host_key(
    tmp_path: Path, made: Callable[[], Any], form: PrivateFormat, kind: str
) -> None:
    pem = made().private_bytes(Encoding.PEM, form, NoEncryption())
    (tmp_path / "ssh-privatekey").write_bytes(pem)
    (tmp_path / "ssh-privatekey").chmod(0o644)  # a Secret is mounted so
    identity, known_hosts = leader_files(tmp_path, tmp_path)
    assert identity.stat().st_mode & 0o777 == 0o600
    alias, found, public = known_hosts.read_text().split()
    assert (alias, found) == ("trireme-group", kind)
    write_worker_files(tmp_path, tmp_path)
    assert (tmp_path / "authorized_keys").read_text() == f"restrict {kind} {public}\n"
    (tmp_path / "sshd_config").write_text(sshd_config(folder=tmp_path, port=2222, user="nobody"))
    checked = [program("sshd"), "-T", "-f", str(tmp_path / "sshd_config")]
    result = subprocess.run(checked, capture_output=True, text=True, timeout=60, check=False)
    if os.geteuid() or Path("/run/sshd").is_dir():  # as root it wants a folder of the system
        assert result.returncode == 0, result.stderr
        assert "passwordauthentication no" in result.stdout
    assert "host key" not in result.stderr
    assert "Bad configuration" not in result.stderr


@pytest.mark.parametrize("name", ["two words", "semi;colon", "dollar$"])
def test_a_folder_that_would_be_split_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match=r"name a folder of letters, digits, '.', '_' and '-'"):
        private_folder(tmp_path / name)


def test_a_folder_is_of_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    assert private_folder(tmp_path / "open").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be made: File exists"):
        private_folder(tmp_path / "file")


def group_command(folder: Path, *arguments: str, index: int = 0, size: int = 2) -> subprocess.CompletedProcess[str]:
    leader = {"LWS_LEADER_ADDRESS": "x-0.x.y", "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": str(index)}
    command = [sys.executable, "-m", "trireme", "group", *arguments]
    return subprocess.run(
        command, cwd=folder, env=os.environ | leader, capture_output=True, text=True, timeout=60, check=False
    )


PYTORCH = {"provider": "pytorch", "dir": "model"}


@pytest.mark.parametrize(
    ("engine", "behind", "message"),
    [
        (PYTORCH, ["generate"], "behind -- stands serve with its options, not generate"),
        (PYTORCH, ["serve"], "serve needs --deployment here"),
        ({"provider": "simulated"}, None, "an engine of the provider simulated is on one node; run trireme serve"),
        (PYTORCH | {"tp_size": 3}, None, "the engine's 3 ranks do not divide into 2 nodes"),
        (PYTORCH | {"tp_size": 8, "gpus_per_node": 8}, None, "engine.gpus_per_node (8) must be 4: 8 ranks on 2 nodes"),
    ],
    ids=["no server", "no deployment", "no ranks", "three ranks on two nodes", "other nodes"],
)
def test_a_server_that_cannot_be_on_several_nodes_is_refused(
    tmp_path: Path, engine: dict[str, object], behind: list[str] | None, message: str
) -> None:
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({"name": "d", "tokenizer": {"dir": "t"}, "engine": engine}))
    given = ["--ssh-dir", "ssh", "--run-dir", str(tmp_path / "run"), "--"]
    result = group_command(tmp_path, "leader", *given, *(behind or ["serve", "--deployment=d.yaml"]))
    assert (result.returncode, message in result.stderr) == (2, True), result.stderr


def test_each_pod_is_told_its_own_part(tmp_path: Path) -> None:
    result = group_command(tmp_path, "leader", "--ssh-dir", "s", "--", "serve", index=1)
    assert "this pod is worker 1 of its group (LWS_WORKER_INDEX); run trireme group worker in it" in result.stderr
    result = group_command(tmp_path, "worker", "--ssh-dir", "s", index=0)
    assert "this pod is the leader of its group (LWS_WORKER_INDEX); run trireme group leader in it" in result.stderr
