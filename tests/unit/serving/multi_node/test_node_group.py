# SPDX-License-Identifier: Apache-2.0
"""The places of pods in a group of nodes, and the texts by which `mpirun` and sshd find one another."""

import subprocess
from pathlib import Path

import pytest

from serving.multi_node.node_group import (
    NodeGroup,
    hostfile,
    mpirun_environment,
    session_script,
    ssh_options,
    sshd_config,
)
from trireme.base.errors import SpecError


def environment(leader: str = "big-0.big.prod", size: object = 3, index: object = 0) -> dict[str, str]:
    return {"LWS_LEADER_ADDRESS": leader, "LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": str(index)}


@pytest.mark.parametrize(
    ("leader", "workers"),
    [
        ("big-0.big.prod", ("big-0-1.big.prod", "big-0-2.big.prod")),
        ("a-b-12.a-b.team-1", ("a-b-12-1.a-b.team-1", "a-b-12-2.a-b.team-1")),
        ("big-3.big-3.prod", ("big-3-1.big-3.prod", "big-3-2.big-3.prod")),  # a subdomain for each group
        ("one", ("one-1", "one-2")),
    ],
)
def test_workers_are_called_as_their_leader_with_their_number(leader: str, workers: tuple[str, ...]) -> None:
    group = NodeGroup.from_environment(environment(leader, index=2))
    assert group == (leader, 3, 2)
    assert group.workers == workers


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX not set"),
        (environment() | {"LWS_GROUP_SIZE": ""}, "LWS_GROUP_SIZE not set: a LeaderWorkerSet tells its pods"),
        (environment(size="x"), "LWS_GROUP_SIZE must be a number, got 'x'"),
        (environment(size="-2"), "LWS_GROUP_SIZE must be a number, got '-2'"),
        (environment(size=1), "a server on one node needs no group; run trireme serve"),
        (environment(index=3), "LWS_WORKER_INDEX is 3, of a group of 3"),
    ],
)
def test_who_is_no_member_of_a_group_is_told_so(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        NodeGroup.from_environment(environ)


def test_ranks_are_on_the_leader_first() -> None:
    text = hostfile(NodeGroup("big-0.big.prod", 3, 0), leader_name="big-0", slots=8)
    assert text == "big-0 slots=8\nbig-0-1.big.prod slots=8\nbig-0-2.big.prod slots=8\n"


def test_ssh_trusts_the_key_of_the_group_alone_and_asks_nobody() -> None:
    options = ssh_options(identity=Path("/r/id"), known_hosts=Path("/r/known"), port=2222)
    assert {"-F/dev/null", "-p2222", "-i/r/id", "-oStrictHostKeyChecking=yes", "-oBatchMode=yes"} <= set(options)
    assert {"-oUserKnownHostsFile=/r/known", "-oGlobalKnownHostsFile=/dev/null"} <= set(options)
    assert not any(" " in option for option in options)  # Open MPI splits there


def test_both_open_mpis_are_told_in_their_own_words() -> None:
    environ = mpirun_environment(("-p2222", "-ik"))
    assert environ["OMPI_MCA_plm_rsh_args"] == environ["PRTE_MCA_plm_ssh_args"] == "-p2222 -ik"
    # Without it Open MPI 4 asks for `big-0-1`, which has no address outside of its subdomain.
    assert environ["OMPI_MCA_orte_keep_fqdn_hostnames"] == environ["PRTE_MCA_prte_keep_fqdn_hostnames"] == "1"
    assert environ["OMPI_MCA_oob_tcp_keepalive_time"] == environ["PRTE_MCA_oob_tcp_keepalive_time"] == "10"


def test_an_sshd_lets_one_user_in_by_key_to_run_commands() -> None:
    lines = sshd_config(folder=Path("/run/x"), port=2222, user="triton-server").splitlines()
    for line in (
        "Port 2222",
        "HostKey /run/x/host_key",
        "AuthorizedKeysFile /run/x/authorized_keys",
        "ForceCommand /run/x/session",
        "AllowUsers triton-server",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "DisableForwarding yes",
        "PidFile none",
    ):
        assert line in lines


@pytest.mark.parametrize("value", ["", "plain", "two words", "O'Brien", '"$HOME" `id` \\', "two\nlines", "ü"])
def test_a_session_has_the_environment_of_its_pod(tmp_path: Path, value: str) -> None:
    script = tmp_path / "session"
    environ = {"ODD": value, "PWD": "/there", "BASH_FUNC_x%%": "() { :; }", "SSH_ORIGINAL_COMMAND": "exit 1"}
    script.write_text(session_script(environ, folder=tmp_path))
    result = subprocess.run(
        ["sh", script],
        env={"SSH_ORIGINAL_COMMAND": 'printf %s "$ODD"; test -z "$HOME" && test "$PWD" != /there'},
        capture_output=True,
        cwd=tmp_path,
        timeout=10,
        check=True,
    )
    assert result.stdout.decode() == value
    assert (tmp_path / "seen").is_file()
