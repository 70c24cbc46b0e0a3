# SPDX-License-Identifier: Apache-2.0
"""The options of a command of ours, from its help."""

import re
import subprocess
import sys
from functools import cache


@cache
def options(*command: str) -> frozenset[str]:
    """Return every option that `--help` names."""
    asked = [sys.executable, "-m", "trireme", *command, "--help"]
    text = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120).stdout
    return frozenset(re.findall(r"^ +(--[a-z][a-z-]*)", text, re.MULTILINE))
