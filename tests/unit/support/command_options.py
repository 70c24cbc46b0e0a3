# SPDX-License-Identifier: Apache-2.0
"""The options of a command of ours, from its help."""

import re
from functools import cache

from typer.testing import CliRunner

from trireme.commands import command_app


@cache
def options(name: str, *verbs: str) -> frozenset[str]:
    """Return every option that `--help` names."""
    asked = CliRunner().invoke(command_app(name), [*verbs, "--help"], catch_exceptions=False)
    assert asked.exit_code == 0
    return frozenset(re.findall(r"^ +(--[a-z][a-z-]*)", asked.output, re.MULTILINE))
