# SPDX-License-Identifier: Apache-2.0
"""Prometheus and Alertmanager in `.tools/prometheus`, from the distribution's packages; needs no root.

Tests of rules and dashboards run them, and `make observe`. What is installed on the machine is taken as it is. Where
apt has no such package nothing is installed, and what needs it is skipped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from trireme.installing.commands import say
from trireme.installing.system_packages import apt_line, fetch_package_files

DIRECTORY = ".tools/prometheus"
PACKAGES = ("prometheus", "prometheus-alertmanager")  # Debian's and Ubuntu's names
PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")

# Debian's Alertmanager does not start without its templates in this folder, which it cannot be told to look for
# elsewhere. In the unpacked program the path is replaced by one of the same length, in the folder that it is started
# in; `observability.local_prometheus` makes a link there. Can go when there is a build with the templates in it.
_TEMPLATES = b"/usr/share/prometheus/alertmanager"
_TEMPLATES_HERE = b"/proc/self/cwd/alertmanager_files_"


def program(root: Path, name: str) -> Path:
    """Return the path of one of `PROGRAMS`, which need not be there."""
    unpacked = root / DIRECTORY / "usr" / "bin" / name
    found = None if unpacked.is_file() else shutil.which(name)
    return unpacked if found is None else Path(found)


def is_current(root: Path) -> bool:
    """Return whether every program is installed, or none can be installed in this way."""
    return shutil.which("apt-get") is None or all(program(root, name).is_file() for name in PROGRAMS)


def prepare(root: Path) -> None:
    """Unpack the packages; without them the rest of the project works, so nothing fails."""
    say(f"{DIRECTORY}: fetching the packages {', '.join(PACKAGES)} (30 MB)")
    for package in PACKAGES:
        fetch_package_files((package,), root / DIRECTORY)
    _look_for_templates_here(root / DIRECTORY / "usr" / "bin" / "prometheus-alertmanager")
    if is_current(root):
        say(f"{DIRECTORY}: prometheus is {program(root, 'prometheus')}")
    else:
        say(f"{DIRECTORY}: apt has no such packages here; what needs them is skipped. {apt_line(*PACKAGES)}")


def _look_for_templates_here(alertmanager: Path) -> None:
    if not alertmanager.is_file():
        return
    partial = alertmanager.with_suffix(".partial")
    partial.write_bytes(alertmanager.read_bytes().replace(_TEMPLATES, _TEMPLATES_HERE))
    partial.chmod(0o755)
    partial.replace(alertmanager)
