# SPDX-License-Identifier: Apache-2.0
"""Commands of a set-up: their output is kept in a log, and a failure becomes one clear line."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

LOG = ".tools/setup.log"

# The first pattern found in a command's output says what went wrong; a lost network is also followed by
# "No matching distribution", so the order matters.
CAUSES = (
    (r"No space left on device|Disk quota exceeded", "the disk is full (the temporary folder counts too)"),
    (r"DO NOT MATCH THE HASHES|\bEINTEGRITY\b", "a downloaded file does not have the hash that the lock asks for"),
    (
        r"NewConnectionError|NameResolutionError|Failed to resolve|Temporary failure in name resolution"
        r"|Network is unreachable|ConnectTimeout|ReadTimeout|ProxyError|Connection (refused|reset)|Could not connect"
        r"|\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT)\b",
        "no network: the package index cannot be reached",
    ),
    (
        r"No matching distribution found for \S+|Could not find a version that satisfies .*",
        "a package has no file for this machine (needed: Linux on x86_64 or aarch64, glibc 2.35 or newer)",
    ),
)


class SetupError(Exception):
    """The failure of a set-up step; the message is one line that says what to do."""


def say(text: str) -> None:
    """Write one line of progress to standard error."""
    sys.stderr.write(f"[setup] {text}\n")
    sys.stderr.flush()


def cause_of(output: str) -> str | None:
    """Return one line for a failure that `output` shows; None for a failure that is not known."""
    return next((cause for pattern, cause in CAUSES if re.search(pattern, output)), None)


def describe_os_error(error: OSError) -> str:
    """Return one line for an OSError of our own copying and writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full (the temporary folder counts too)"
    return str(error)


def run(
    command: list[str],
    *,
    root: Path,
    doing: str,
    environment: dict[str, str] | None = None,
    shows_output: bool = False,
) -> str:
    """Run `command` in `root` and return its output, or nothing where it goes to standard error at once.

    Raises:
        SetupError: the exit status is not 0; the whole output is in the log.
    """
    result = subprocess.run(
        command,
        cwd=root,
        env={**clean_environment(), **(environment or {})},
        stdout=sys.stderr if shows_output else subprocess.PIPE,
        stderr=None if shows_output else subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        check=False,
    )
    if shows_output:
        if result.returncode != 0:
            raise SetupError(f"{doing} failed; the lines above say why")
        return ""
    log = root / LOG
    log.parent.mkdir(exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{result.stdout}\n")
    if result.returncode != 0:
        last_line = next((line for line in reversed(result.stdout.splitlines()) if line.strip()), "no output")
        raise SetupError(f"{doing}: {cause_of(result.stdout) or last_line.strip()} (log: {LOG})")
    return result.stdout


def clean_environment() -> dict[str, str]:
    """Return the environment without what would point a child Python at other packages than its own."""
    dropped = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}
