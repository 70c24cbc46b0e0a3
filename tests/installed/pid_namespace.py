# SPDX-License-Identifier: Apache-2.0
"""A PID namespace of its own for a program, as a container has one: the program is process 1 in it."""

import functools
import subprocess

import psutil
import pytest

IN_PID_NAMESPACE = ("unshare", "--fork", "--pid", "--mount-proc")


@functools.cache
def _why_not() -> str:
    try:
        tried = subprocess.run([*IN_PID_NAMESPACE, "true"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return "there is no unshare"
    return tried.stderr.strip() if tried.returncode else ""


def skip_without_pid_namespaces() -> None:
    if why := _why_not():
        pytest.skip(f"no PID namespace can be made here: {why}")


def process_1(unshare: subprocess.Popen[bytes]) -> psutil.Process:
    """Return process 1 of the namespace that a call of `unshare` has made, as it is seen from outside."""
    [found] = psutil.Process(unshare.pid).children()
    return found


def zombies(unshare: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the zombies of the namespace."""
    inside = psutil.Process(unshare.pid).children(recursive=True)
    return [process for process in inside if process.is_running() and process.status() == psutil.STATUS_ZOMBIE]
