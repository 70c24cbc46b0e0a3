# SPDX-License-Identifier: Apache-2.0
"""Files of Debian and Ubuntu packages: fetched without installing them where apt is there, else one line to type."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from trireme.installing.commands import SetupError, clean_environment, say


def apt_line(*packages: str) -> str:
    """Return the one line that installs `packages`."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install -y {' '.join(packages)}"


def fetch_package_files(names: tuple[str, ...], into: Path) -> bool:
    """Unpack the first of `names` that apt knows into the folder `into`; needs no root.

    A container starts without package lists: root reads them once and tries again.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    return _fetch(names, into) or (os.geteuid() == 0 and _succeeds(["apt-get", "update"]) and _fetch(names, into))


def fetch_missing_packages(name: str, into: Path, *, without: tuple[str, ...]) -> bool:
    """Unpack a package and what it needs that is not installed, but `without`, into the folder `into`; needs no root.

    A container starts without package lists: root reads them once.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    if not (missing := _missing_packages(name)) and os.geteuid() == 0 and _succeeds(["apt-get", "update"]):
        missing = _missing_packages(name)
    wanted = [package for package in missing if package not in without]
    with tempfile.TemporaryDirectory() as folder:
        if not wanted or not _succeeds(["apt-get", "download", *wanted], directory=folder):
            return False
        into.mkdir(parents=True, exist_ok=True)
        return all(_succeeds(["dpkg-deb", "-x", str(file), str(into)]) for file in Path(folder).glob("*.deb"))


def _missing_packages(name: str) -> list[str]:
    """Return a package and what it needs, as apt would install them; nothing where apt does not know it."""
    plan = subprocess.run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", name],
        env=clean_environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]


def install_or_explain(*packages: str, why: str) -> None:
    """Install system packages as root, which a CI container is.

    Raises:
        SetupError: not root, or apt failed; the message has the line to type.
    """
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        say(f"installing {', '.join(packages)} with apt: {why}")
        install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        if _succeeds(install) or (_succeeds(["apt-get", "update"]) and _succeeds(install)):
            return
    raise SetupError(f"{why}; run: {apt_line(*packages)}")


def _fetch(names: tuple[str, ...], into: Path) -> bool:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if not _succeeds(["apt-get", "download", name], directory=folder):
                continue
            into.mkdir(parents=True, exist_ok=True)
            return all(_succeeds(["dpkg-deb", "-x", str(file), str(into)]) for file in Path(folder).glob("*.deb"))
    return False


def _succeeds(command: list[str], *, directory: str | None = None) -> bool:
    result = subprocess.run(
        command,
        cwd=directory,
        env={**clean_environment(), "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return result.returncode == 0
