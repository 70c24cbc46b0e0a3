# SPDX-License-Identifier: Apache-2.0
"""The command `trireme rollout` in this process."""

from trireme.commands import run_command


def rollout(*arguments: str) -> int:
    """Run a command and return its exit status."""
    try:
        run_command("rollout", list(arguments))
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0
