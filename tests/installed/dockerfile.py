# SPDX-License-Identifier: Apache-2.0
"""A Dockerfile as a list of steps, of the part of the language that ours uses."""

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple


class Step(NamedTuple):
    """An instruction: RUN, COPY, ENV, ..., and what stands behind it, continued lines joined."""

    word: str
    text: str


def read_dockerfile(text: str) -> list[Step]:
    """Return the instructions in order, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    steps = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [Step(word, rest.strip()) for word, rest in steps]


def assignments(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an ENV or ARG sets, with the variables that are known before it put in."""
    pairs = (word.partition("=") for word in shlex.split(text))
    return {name: expanded(value, environment) for name, _, value in pairs}


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Return a text with `${NAME}` replaced."""
    return re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], ""), text)
