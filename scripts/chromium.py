# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium in `.tools/chromium`, unpacked from the distribution's packages; needs no root.

Tests open pages in it. A Chromium on PATH is taken as it is. Where apt has none (Ubuntu), nothing is installed, and
what needs it is skipped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trireme.installing.commands import say
from trireme.installing.system_packages import apt_line, fetch_missing_packages

DIRECTORY = ".tools/chromium"
PACKAGE = "chromium-headless-shell"  # Debian's, without a window; it draws by its own means
INSTALLED = ("chromium-headless-shell", "chromium", "google-chrome")
# What its packages want for a desktop, 200 of 520 MB.
LEFT_OUT = (
    "libgl1-mesa-dri", "libicu72", "libllvm15", "libx11-data", "libxml2", "libz3-4", "x11-common", "x11-utils",
    "xdg-utils",
)  # fmt: skip


def program(root: Path) -> Path | None:
    """Return the path of Chromium; None: there is none."""
    unpacked = root / DIRECTORY / "usr/lib/chromium" / PACKAGE
    if unpacked.is_file():
        return unpacked
    return next((Path(found) for name in INSTALLED if (found := shutil.which(name))), None)


def environment(root: Path) -> dict[str, str]:
    """Return the environment variables with which Chromium runs: its libraries and fonts are in no usual place."""
    unpacked = root / DIRECTORY
    if not unpacked.is_dir():
        return dict(os.environ)
    folders = {path.parent for path in unpacked.glob("**/lib*.so*")}
    return os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, sorted(folders))),
        **({"FONTCONFIG_SYSROOT": str(unpacked)} if (unpacked / "etc/fonts").is_dir() else {}),
    }


def is_current(root: Path) -> bool:
    """Return whether there is a Chromium, or none can be had in this way."""
    return shutil.which("apt-get") is None or program(root) is not None


def prepare(root: Path) -> None:
    """Unpack the packages; without them the rest of the project works, so nothing fails."""
    say(f"{DIRECTORY}: fetching the package {PACKAGE} and what it needs (up to 110 MB)")
    fetch_missing_packages(PACKAGE, root / DIRECTORY, without=LEFT_OUT)
    if program(root) is None:
        say(f"{DIRECTORY}: apt has no such package here; what needs it is skipped. {apt_line('chromium')}")
    else:
        say(f"{DIRECTORY}: chromium is {program(root)}")
