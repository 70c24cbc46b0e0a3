# SPDX-License-Identifier: Apache-2.0
"""Pods that are one server together: their addresses, and the texts by which `mpirun` reaches them through sshd.

Pure: `group_leader` and `group_worker` start what is described here, `group_key` makes the files.
A LeaderWorkerSet of Kubernetes tells each pod its place; the leader runs `mpirun`, the workers an sshd each.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trireme.base.errors import SpecError

HOST_ALIAS = "trireme-group"  # all workers have one host key, whatever they are called
SEEN_FILE = "seen"  # its modification time is that of the last session at a worker

_LEADER, _SIZE, _INDEX = "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"
# Variables of a shell itself, or of another session.
_NOT_PASSED = re.compile(r"(PWD|OLDPWD|SHLVL|_|SSH_.*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Seconds of silence after which a node counts as gone: 10, then 3 questions with 5 between them.
_KEEPALIVE = {"keepalive_time": 10, "keepalive_intvl": 5, "keepalive_probes": 3}


class NodeGroup(NamedTuple):
    """The place of a pod in its group.

    Attributes:
        leader: the leader's address, POD.SUBDOMAIN.NAMESPACE.
        size: number of pods, the leader included.
        worker_index: index of this pod; 0 is the leader.
    """

    leader: str
    size: int
    worker_index: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "NodeGroup":
        """Return the place that a LeaderWorkerSet gives to every container in its environment.

        Raises:
            SpecError: the environment gives no place, or the group has one pod.
        """
        if missing := [name for name in (_LEADER, _SIZE, _INDEX) if not environ.get(name)]:
            raise SpecError(f"{', '.join(missing)} not set: a LeaderWorkerSet tells its pods; run this in one of them")
        size, index = (_number(name, environ[name]) for name in (_SIZE, _INDEX))
        if size < 2:
            raise SpecError(f"{_SIZE} is {size}: a server on one node needs no group; run trireme serve", field=_SIZE)
        if index >= size:
            raise SpecError(f"{_INDEX} is {index}, of a group of {size}", field=_INDEX, value=index)
        return cls(environ[_LEADER], size, index)

    @property
    def workers(self) -> tuple[str, ...]:
        """Return the workers' addresses: the leader's pod has the group's number, a worker's its index behind that.

        Source: sigs.k8s.io/lws, pkg/utils/pod and pkg/controllers.
        """
        pod, dot, domain = self.leader.partition(".")
        return tuple(f"{pod}-{index}{dot}{domain}" for index in range(1, self.size))


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise SpecError(f"{name} must be a number, got {text!r}", field=name, value=text)
    return int(text)


def hostfile(group: NodeGroup, *, leader_name: str, slots: int) -> str:
    """Return Open MPI's hostfile, with the ranks in its order.

    Args:
        leader_name: the leader's name for itself, by which `mpirun` knows that it is there already.
        slots: ranks on each node.
    """
    return "".join(f"{name} slots={slots}\n" for name in (leader_name, *group.workers))


def ssh_options(*, identity: Path, known_hosts: Path, port: int) -> tuple[str, ...]:
    """Return the options with which ssh reaches a worker: with this key, and only a host that has it."""
    settings = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": HOST_ALIAS,
        "ConnectTimeout": 5,
        "ServerAliveInterval": 5,
        "ServerAliveCountMax": 3,
        "LogLevel": "ERROR",
    }
    options = (f"-o{name}={value}" for name, value in settings.items())
    return ("-F/dev/null", f"-p{port}", f"-i{identity}", *options)


def mpirun_environment(ssh: Sequence[str]) -> dict[str, str]:
    """Return the environment of `mpirun`, with the variables of Open MPI 4 and of Open MPI 5.

    Every worker is reached from the leader, by its whole name (Open MPI 4 takes the first part alone, which no pod
    outside of its subdomain is called), and a worker that vanishes without a word is missed.
    """
    args = " ".join(ssh)  # split at white space by Open MPI
    four = {"plm_rsh_args": args, "plm_rsh_no_tree_spawn": 1, "orte_keep_fqdn_hostnames": 1}
    five = {"plm_ssh_args": args, "plm_ssh_no_tree_spawn": 1, "prte_keep_fqdn_hostnames": 1}
    both = {f"oob_tcp_{name}": value for name, value in _KEEPALIVE.items()}
    said = {"OMPI_MCA_": four | both, "PRTE_MCA_": five | both}
    return {prefix + name: str(value) for prefix, settings in said.items() for name, value in settings.items()}


def sshd_config(*, folder: Path, port: int, user: str) -> str:
    """Return the sshd configuration of a worker without root: one user with the group's key may start commands only.

    Args:
        folder: holds `host_key`, `authorized_keys` and `session`.
        user: the user that the worker runs as.
    """
    settings = {
        "Port": port,
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "StrictModes": "no",  # the folders above, such as /tmp, may be others'; the files are this user's alone
        "AllowUsers": user,
        "PermitRootLogin": "prohibit-password",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",  # PAM needs root
        "PidFile": "none",
        "DisableForwarding": "yes",
        "PermitTTY": "no",
        "PermitUserRC": "no",
        "PrintMotd": "no",
        "ForceCommand": folder / "session",
        "ClientAliveInterval": 5,
        "ClientAliveCountMax": 3,
        "LogLevel": "ERROR",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def session_script(environ: Mapping[str, str], *, folder: Path) -> str:
    """Return the script of a session at a worker: run the sent command in the environment of the worker's container.

    sshd gives a session nearly no environment, and the leader's is not a worker's: libraries, GPUs and NICs are the
    worker's own.
    """
    names = sorted(name for name in environ if _NAME.fullmatch(name) and not _NOT_PASSED.fullmatch(name))
    exports = "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in names)
    seen = shlex.quote(str(folder / SEEN_FILE))
    return f'#!/bin/sh\n: > {seen}\n{exports}exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n'
