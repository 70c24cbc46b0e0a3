# SPDX-License-Identifier: Apache-2.0
"""The one key of a node group, copied from a mounted Secret into files that ssh and sshd accept.

The Secret is of Kubernetes' type `kubernetes.io/ssh-auth`: one file, `ssh-privatekey`. It is the leader's identity and
the workers' host key: each side knows the other by it, so a group needs no more than it has to share anyway.
"""

import os
import pwd
import re
import shutil
import stat
import subprocess
from pathlib import Path

from serving.multi_node.node_group import HOST_ALIAS
from trireme.base.errors import SpecError

KEY_FILE = "ssh-privatekey"
_WAIT_S = 30


def leader_files(ssh_dir: Path, folder: Path) -> tuple[Path, Path]:
    """Write the identity and the known hosts into `folder`; return their paths.

    Raises:
        SpecError: there is no usable key.
    """
    key, public = _copy_key(ssh_dir, folder / "identity")
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"{HOST_ALIAS} {public}\n")
    return key, known_hosts


def write_worker_files(ssh_dir: Path, folder: Path) -> None:
    """Write `host_key` and `authorized_keys` into `folder`. Raises: SpecError: there is no usable key."""
    _, public = _copy_key(ssh_dir, folder / "host_key")
    (folder / "authorized_keys").write_text(f"restrict {public}\n")


def _copy_key(ssh_dir: Path, to: Path) -> tuple[Path, str]:
    """Copy the key, and return the copy and its public half: ssh refuses a key that a group may read.

    A mounted Secret belongs to root and may be readable by a group.
    """
    source = ssh_dir / KEY_FILE
    try:
        content = source.read_bytes()
    except OSError as exc:
        raise SpecError(
            f"--ssh-dir: cannot read {source}: {exc.strerror}; mount a Secret of the type kubernetes.io/ssh-auth there",
            file=source,
        ) from exc
    to.unlink(missing_ok=True)
    to.touch(mode=0o600)
    to.write_bytes(content)
    command = [program("ssh-keygen"), "-y", "-P", "", "-f", str(to)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    if result.returncode:
        why = " ".join(result.stderr.split())
        raise SpecError(
            f"--ssh-dir: {source} is no key without a passphrase ({why}); make one: ssh-keygen -t ed25519 -N ''",
            file=source,
        )
    return to, " ".join(result.stdout.split()[:2])


def private_folder(path: Path) -> Path:
    """Return a folder that only this user may enter, made if need be.

    Its name may hold nothing that a shell or Open MPI would split at.

    Raises:
        SpecError: the name is not allowed, or the folder is somebody else's or cannot be made.
    """
    path = path.absolute()
    if not re.fullmatch(r"[A-Za-z0-9/._-]+", str(path)):
        raise SpecError(f"--run-dir {path}: name a folder of letters, digits, '.', '_' and '-'", file=path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as exc:
        raise SpecError(f"--run-dir {path} cannot be made: {exc.strerror}; name a folder to write", file=path) from exc
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise SpecError(f"--run-dir {path} is user {status.st_uid}'s; name another folder", file=path)
    path.chmod(0o700)
    return path


def own_user() -> str:
    """Return the name of the user that ssh logs in as here.

    Raises:
        SpecError: the image does not know this user, or gives it no shell; ssh and sshd need both.
    """
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:
        raise SpecError(
            f"/etc/passwd has no user {os.geteuid()}, and ssh needs one; run as a user of the image (runAsUser)"
        ) from None
    if not os.access(user.pw_shell or "/bin/sh", os.X_OK) or Path(user.pw_shell).name in ("nologin", "false"):
        raise SpecError(f"{user.pw_name}'s shell is {user.pw_shell}, and sshd starts commands by it; name a real one")
    return user.pw_name


def program(name: str) -> str:
    """Return a program's whole path, without which sshd does not start. Raises: SpecError: it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise SpecError(f"{name} is not installed (on PATH); a group of nodes needs it in the image")
    return found
