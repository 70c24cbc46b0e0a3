# SPDX-License-Identifier: Apache-2.0
"""Names of TensorRT-LLM's arguments in each version that was read, to check a deployment where it is not installed.

`trtllm_facts.json` is written by `make docs` from the facts that the tests' stand-in is made of. A version stands for
all with its two leading numbers.
"""

import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).with_name("trtllm_facts.json")


@dataclass(frozen=True)
class VersionFacts:
    """The names that were read of one version.

    Attributes:
        version: the name of its folder of facts.
        read: for each part that was looked at, how: source, catalogue, partly, no or absent.
        llm: the class of the LLM's arguments, by provider.
        classes: of each class of arguments the fields, and of each field the classes that a mapping there fills.
        build_flags: that trtllm-build takes, without hyphens; none where there is no such tool.
    """

    version: str
    read: Mapping[str, str]
    llm: Mapping[str, str]
    classes: Mapping[str, Mapping[str, list[str]]]
    build_flags: tuple[str, ...]

    def unknown_arguments(self, provider: str, arguments: Mapping[str, object]) -> list[str]:
        """Return the dotted paths in `arguments` that the LLM of a provider does not take; all where it has none."""
        if provider not in self.llm:
            return list(arguments)
        return list(self._unknown([self.llm[provider]], arguments, ""))

    def _unknown(self, classes: list[str], arguments: Mapping[str, object], path: str) -> Iterator[str]:
        for name, value in arguments.items():
            having = [fields for each in classes if name in (fields := self.classes[each])]
            if not having:
                yield path + name
            elif isinstance(value, Mapping) and (parts := sorted({part for each in having for part in each[name]})):
                yield from self._unknown(parts, value, f"{path}{name}.")

    def nearest_argument(self, provider: str, path: str) -> str | None:
        """Return the argument that an unknown path perhaps means, or None."""
        *parents, name = path.split(".")
        classes = [self.llm[provider]] if provider in self.llm else []
        for parent in parents:
            classes = [part for each in classes for part in self.classes[each].get(parent, ())]
        fields = sorted({field for each in classes for field in self.classes[each]})
        found = difflib.get_close_matches(name, fields, n=1, cutoff=0.75)
        return ".".join([*parents, found[0]]) if found else None


@functools.cache
def _all_facts() -> dict[str, VersionFacts]:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    found = [VersionFacts(version=version, **facts) for version, facts in data.items()]
    return {facts.version: facts for facts in sorted(found, key=lambda facts: leading_numbers(facts.version))}


def known_facts() -> list[VersionFacts]:
    """Return the facts of all versions that were read, the oldest first."""
    return list(_all_facts().values())


def facts_of(version: str) -> VersionFacts | None:
    """Return the facts of a version, or None where it was not read."""
    numbers = leading_numbers(version)
    return next((facts for facts in known_facts() if leading_numbers(facts.version) == numbers), None)


def is_newer_than_known(version: str) -> bool:
    """Return whether a version came after the newest that was read."""
    return leading_numbers(version) > leading_numbers(known_facts()[-1].version)


def facts_note(version: str) -> str:
    """Return which facts hold for a version, for people."""
    if (facts := facts_of(version)) is not None:
        return f"TensorRT-LLM {version}: checked by what was read of {facts.version} (docs/support.md)"
    known = ", ".join(each.version for each in known_facts())
    age = "newer" if is_newer_than_known(version) else "older"
    return f"TensorRT-LLM {version}: not checked, it is {age} than what was read ({known})"


def leading_numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, (1, 3) of 1.3.0rc29; none of what is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else ()
