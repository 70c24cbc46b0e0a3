# SPDX-License-Identifier: Apache-2.0
"""The parts of a lock: for each package the lines with its version, its marker and its hashes."""

from __future__ import annotations

import re

from scripts.environments import normalized


def lock_blocks(text: str) -> dict[str, str]:
    """Return the lines of each package by its normalized name; several where versions differ by marker."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        name = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==", block)
        if name is not None:
            found[normalized(name[1])] = found.get(normalized(name[1]), "") + block.rstrip() + "\n"
    return found
