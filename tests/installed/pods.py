# SPDX-License-Identifier: Apache-2.0
"""Small pods on this machine, for what runs over several nodes.

Each has namespaces of its own for processes, network, mounts and host name, a read-only root with a /tmp of its own,
one user without root's rights, and a cable that can be cut.

Namespaces of a user need no root; where a kernel or a container forbids them, `why_not` says so.
"""

import contextlib
import functools
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from process_words import words_of

WAIT_S = 30.0
_PROJECT = Path(__file__).resolve().parents[2]
_USER = 1000
_OUTSIDE = "10.77.0.1"  # a client's
_USER_NAME = "triton-server"  # as in the image of Triton
_NEW_POD = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")

# In the pod, as root of the outer namespace: names, a cable, and a root that nobody writes to; then the user's command.
_BEGIN = """\
set -e
hostname {name}
mount --bind {home}/hosts /etc/hosts
mount --bind {home}/passwd /etc/passwd
mount -t tmpfs tmpfs /dev/shm
mount --bind {top} /mnt
mount -t tmpfs tmpfs /tmp
mkdir -p {top}
mount --bind /mnt {top}
mount -o remount,bind,ro / 2> /dev/null || mount -o remount,bind,ro,nosuid,nodev /
ip link set lo up
until ip -4 -o address show eth0 2> /dev/null | grep -q inet; do sleep 0.02; done
cd {home}
exec unshare --user --map-user={user} --map-group={user} "$@"
"""


class Names(NamedTuple):
    """The names of a pod."""

    name: str
    domain: str
    address: str


class Pod:
    """A pod that runs; process 1 in it is its command."""

    def __init__(
        self, names: Names, process: "subprocess.Popen[bytes]", home: Path, environ: Mapping[str, str]
    ) -> None:
        self.names = names
        self.home = home
        self._environ = environ
        self._process = process
        self.main = _first_child(process.pid)

    def log(self) -> str:
        """Return what the pod has said."""
        return (self.home / "log").read_text(errors="replace")

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Return the exit status of process 1; that of a killed one is negative or above 128."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.names.name} has not ended:\n{self.log()}") from None

    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to process 1, as the kubelet sends it."""
        self.main.send_signal(number)

    def command(self) -> psutil.Process:
        """Return the first child of process 1, as which `trireme` leaves its command alone (`trireme.init_process`)."""
        return _first_child(self.main.pid)

    def processes(self) -> list[str]:
        """Return the command lines of what runs in the pod beside its command, orphans of process 1 too."""
        found = []
        command = self.command()
        for process in self.main.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process != command and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(words_of(process)))
        return found

    def run(self, command: Sequence[str], *, timeout_s: float = WAIT_S) -> "subprocess.CompletedProcess[str]":
        """Run a command beside process 1, where that runs, as the kubelet runs a hook."""
        namespaces = ("--user", "--mount", "--uts", "--ipc", "--net", "--pid")
        entered = ("nsenter", "--preserve-credentials", *namespaces, "--wd", "--target", str(self.main.pid), "--")
        return subprocess.run(
            [*entered, *command], env=self._environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def kill(self) -> None:
        """Kill the pod with everything that runs in it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.main.kill()
        self._process.wait(WAIT_S)


def _first_child(pid: int) -> psutil.Process:
    deadline_s = time.monotonic() + WAIT_S
    while not (children := psutil.Process(pid).children()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return children[0]


class Pods:
    """The pods of one cluster, which know one another's names.

    Args:
        folder: for what they write; each has a subfolder, its home. All see what lies beside it, and may write there.
        names: of all that there will be.
    """

    def __init__(self, folder: Path, names: Sequence[Names]) -> None:
        self._folder = folder
        self._names = names
        self._running: list[Pod] = []

    def __enter__(self) -> "Pods":
        self._folder.mkdir(parents=True, exist_ok=True)
        self._switch = subprocess.Popen(["unshare", "-Urnm", "cat"], stdin=subprocess.PIPE)
        deadline_s = time.monotonic() + WAIT_S
        while psutil.Process(self._switch.pid).name() != "cat":
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        self._here("ip", "link", "add", "br0", "type", "bridge")
        self._here("ip", "address", "add", f"{_OUTSIDE}/24", "dev", "br0")
        self._here("ip", "link", "set", "br0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self._running:
            pod.kill()
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.wait(WAIT_S)

    def start(self, names: Names, command: Sequence[str], environ: Mapping[str, str]) -> Pod:
        """Start a pod; what it says is in `log` in its home."""
        home = self._folder / names.name
        home.mkdir(exist_ok=True)
        known = [f"{each.address} {each.name}.{each.domain}" for each in self._names]
        own = f"{names.address} {names.name}"
        (home / "hosts").write_text("\n".join(["127.0.0.1 localhost", *known, own, ""]))
        (home / "passwd").write_text(f"{_USER_NAME}:x:{_USER}:{_USER}::/:/bin/sh\n")
        quoted = {"home": shlex.quote(str(home)), "top": shlex.quote(str(self._folder.parent))}
        begin = _BEGIN.format(name=names.name, user=_USER, **quoted)
        environ = {"HOME": str(home), **environ}
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [*self._entered(), *_NEW_POD, "bash", "-c", begin, "pod", *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        pod = Pod(names, process, home, environ)
        self._running.append(pod)
        cable = f"v{self._names.index(names)}"
        self._here("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pod.main.pid))
        self._here("ip", "link", "set", cable, "master", "br0", "up")
        inside = ("nsenter", f"--net=/proc/{pod.main.pid}/ns/net", "ip")
        self._here(*inside, "link", "set", "eth0", "up")
        self._here(*inside, "address", "add", f"{names.address}/24", "dev", "eth0")
        return pod

    def cut(self, pod: Pod) -> None:
        """Cut the pod's cable: from now on nobody hears of it, and it hears of nobody."""
        self._here("ip", "link", "set", f"v{self._names.index(pod.names)}", "down")

    def outside(self, command: Sequence[str]) -> "subprocess.Popen[str]":
        """Run a client's command on the network of the pods."""
        return subprocess.Popen([*self._entered(), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _entered(self) -> tuple[str, ...]:
        return ("nsenter", "--preserve-credentials", "-U", "-n", "-m", "-t", str(self._switch.pid))

    def _here(self, *command: str) -> None:
        subprocess.run([*self._entered(), *command], check=True, timeout=WAIT_S)


@contextlib.contextmanager
def _one_pod() -> Iterator[Pod]:
    names = Names("probe", "test", "10.77.0.9")
    with tempfile.TemporaryDirectory() as folder, Pods(Path(folder) / "pods", [names]) as pods:
        yield pods.start(names, ("true",), dict(os.environ))


@functools.cache
def why_not() -> str | None:
    """Return why there can be no pods here; None: there can."""
    if _PROJECT.is_relative_to("/tmp"):
        return f"pods have a /tmp of their own, and see nothing of {_PROJECT}"
    try:
        with _one_pod() as pod:
            status = pod.wait()
            return None if status == 0 else f"a pod ends with {status}: {pod.log().strip()}"
    except (OSError, AssertionError, subprocess.SubprocessError, psutil.Error) as exc:
        return f"no namespaces of a user here: {exc}"
