# SPDX-License-Identifier: Apache-2.0
"""The wheel of the project, and a user that is not root and may not write where the wheel is installed."""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
_USER = 10001  # of nobody here
_COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "ld", "make")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of what git knows, and return its file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT, capture_output=True, check=True,
    )  # fmt: skip
    source = folder / "source"
    for name in filter(None, listed.stdout.decode().split("\0")):
        if not name.startswith(("tests/", "benchmarks/", "docs/")) and (PROJECT / name).is_file():
            copy = source / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    subprocess.run([*command, str(folder / "dist"), str(source)], capture_output=True, check=True)
    [wheel] = (folder / "dist").glob("trireme-*.whl")
    return wheel


class User:
    """A user of an installed Trireme: in a folder of its own, with a home that is empty at first."""

    def __init__(
        self, folder: Path, python: Path, *, packages: Path | None = None, container: Sequence[str] = ()
    ) -> None:
        """Make a user.

        Args:
            folder: the user's own.
            python: of the environment.
            packages: a folder in front of the environment's own packages.
            container: a command that starts the one behind it.
        """
        self.folder, self._python, self._container = folder / "work", python, container
        home = folder / "home"
        for made in (self.folder, home):
            made.mkdir(parents=True)
            if os.geteuid() == 0:
                os.chown(made, _USER, _USER)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG"))},
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "HOME": str(home),
            **({} if packages is None else {"PYTHONPATH": str(packages)}),
        }

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line of `trireme ...` as this user."""
        who = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if os.geteuid() == 0 else []
        return [*self._container, *who, str(self._python), "-m", "trireme", *arguments]

    def run(self, *arguments: str, is_refused: bool = False) -> str:
        """Return what a command printed; it has to end well, or with a usage error."""
        done = subprocess.run(
            self.command(arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == (2 if is_refused else 0), done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if is_refused else done.stdout


def container_of(environment: Path) -> list[str]:
    """Return a command that starts the one behind it as in a container of this environment. Needs root.

    There is no checkout and no compiler, and nobody can write where the packages are. Its network is the machine's.
    """
    compilers = [found for name in _COMPILERS if (found := shutil.which(name)) is not None]
    mounts = [
        f"mount --bind {environment} {environment}",
        f"mount -o remount,bind,ro {environment}",
        f"mount -t tmpfs none {PROJECT}",
        *(f"mount --bind /dev/null {compiler}" for compiler in dict.fromkeys(map(os.path.realpath, compilers))),
        *_open_python(Path(sys.base_prefix)),
    ]
    return ["unshare", "--mount", "sh", "-ec", f'{"; ".join(mounts)}; exec "$@"', "sh"]


def _open_python(installation: Path) -> list[str]:
    """Return the mounts that let any user reach a Python below a folder that is closed, as root's home often is."""
    closed = next((path for path in reversed(installation.parents) if not path.stat().st_mode & stat.S_IXOTH), None)
    if closed is None:
        return []
    return [
        f"mount --bind {installation} /mnt",
        f"mount -t tmpfs -o mode=755 none {closed}",
        f"mkdir -p {installation}",
        f"mount --move /mnt {installation}",
    ]


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Give an empty folder that every user may read; pytest closes its own to others whenever another pytest starts."""
    with tempfile.TemporaryDirectory(prefix="trireme-wheel-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        if os.geteuid() != 0:
            subprocess.run(["chmod", "-R", "u+w", name], check=True)


def forbid_writing(folder: Path) -> None:
    """Take the right to write from all in a folder, where this process is not root; root's files are root's anyway."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
