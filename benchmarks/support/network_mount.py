# SPDX-License-Identifier: Apache-2.0
"""A folder as network storage has it: served over HTTP (WebDAV), and mounted through FUSE as a bucket is.

Between the two is a link of a stated rate, which the kernel keeps to (a token bucket on the loopback device of a
network namespace). rclone serves and mounts; it keeps no copy of what was read. Nothing is added to the delay of a
loopback device.

Needs root, for a namespace with a mount in it. What is to read from the mount is started in the namespace, too.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.unpacked_programs import RCLONE
from trireme.base.free_ports import free_ports

_ROOT = Path(__file__).resolve().parents[2]
_MOUNTED_S = 15.0

# The link first: a bucket that is served before it would not be slow. Packets of the loopback device have 64 KiB.
_BEGIN = """\
set -e
ip link set lo up
tc qdisc add dev lo root tbf rate {rate_mbit}mbit burst 256kb latency 100ms
{rclone} serve webdav --config /dev/null --addr 127.0.0.1:{port} --read-only {source} &
until (exec 3<> /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do sleep 0.05; done
exec {rclone} mount --config /dev/null --read-only --vfs-cache-mode off --dir-cache-time 1h \
  ":webdav,url='http://127.0.0.1:{port}':" {target}
"""


class NetworkMount:
    """A mount, there inside its `with`.

    Args:
        source: the folder in the store.
        target: an empty folder, where it is mounted; only commands of `run` see it.
        mb_per_s: of the link between them.
    """

    def __init__(self, source: Path, target: Path, *, mb_per_s: float) -> None:
        self.target = target
        self._source = source
        self._mb_per_s = mb_per_s

    def __enter__(self) -> "NetworkMount":
        self.target.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(map(str, RCLONE.folders(_ROOT)))
        script = _BEGIN.format(
            rclone=shutil.which("rclone", path=path),
            rate_mbit=round(self._mb_per_s * 8),
            port=free_ports(1)[0],
            source=self._source,
            target=self.target,
        )
        self._process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script],
            env=_environment(),
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + _MOUNTED_S
        while self._inside is None or self.run(["mountpoint", "-q", str(self.target)]).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__()
                raise SystemExit(f"{self._source} cannot be mounted: {why_not() or 'rclone does not come up'}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def num_link_bytes(self) -> int:
        """Return the bytes that have gone over the link so far."""
        [lines] = [line.split() for line in self.run(["cat", "/proc/net/dev"]).stdout.splitlines() if "lo:" in line]
        return int(lines[1])

    @property
    def _inside(self) -> int | None:
        """Return the first process in the namespaces."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs where the mount is, in this process's folder."""
        return ["nsenter", f"--target={self._inside}", "--net", "--mount", f"--wd={Path.cwd()}", "--", *command]

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command where the mount is, to its end."""
        return subprocess.run(self.command(command), capture_output=True, text=True, check=False, env=env)


def why_not() -> str | None:
    """Return what is missing for a mount; None: nothing."""
    if os.geteuid():
        return "a network namespace and a mount take root"
    if not RCLONE.is_there(_ROOT):
        return "rclone is not there: python3 scripts/bootstrap.py --only rclone"
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def _environment() -> dict[str, str]:
    paths = [*map(str, RCLONE.folders(_ROOT)), os.environ["PATH"]]
    libraries = os.pathsep.join(map(str, RCLONE.library_folders(_ROOT)))
    return dict(os.environ) | {"PATH": os.pathsep.join(paths), "LD_LIBRARY_PATH": libraries}
