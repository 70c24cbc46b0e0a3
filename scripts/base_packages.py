# SPDX-License-Identifier: Apache-2.0
"""The packages of somebody else's Python environment, what a lock adds to them, and whether the two fit together.

Runs in that environment. It needs `packaging`, which every environment with TensorRT-LLM has: transformers asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from scripts.environments import lock_blocks


@dataclass(frozen=True)
class LockEntry:
    """A package of a lock: its version, and the lines of the lock with its hashes."""

    name: str
    version: str
    text: str


@dataclass(frozen=True)
class Package:
    """An installed package; `place` is the folder that it is imported from."""

    name: str
    version: str
    place: Path
    requires: tuple[Requirement, ...]


@dataclass(frozen=True)
class Conflict:
    """A requirement that the installed packages do not meet; `found` is None where the package is missing."""

    needed_by: str
    requirement: Requirement
    found: Package | None

    def __str__(self) -> str:
        have = f"{self.found.name} {self.found.version} is in {self.found.place}" if self.found else "it is missing"
        return f"{self.needed_by} needs {self.requirement}; {have}"


def read_lock(text: str) -> dict[str, LockEntry]:
    """Return the packages of a lock that this interpreter is to have, by name."""
    found = {}
    for name, block in lock_blocks(text).items():
        for line in re.findall(r"^[A-Za-z0-9].*==.*?(?= \\|$)", block, re.MULTILINE):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                version = next(iter(requirement.specifier)).version
                found[name] = LockEntry(name, version, block)
    return found


def read_requirements(text: str) -> list[Requirement]:
    """Return the requirements of a file that has one on each line, and comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line]


def installed_packages(folders: Sequence[Path]) -> dict[str, Package]:
    """Return the packages that are imported from `folders`, by name; of two with one name that of the first folder."""
    found: dict[str, Package] = {}
    for folder in folders:
        for distribution in distributions(path=[str(folder)]):
            package = _package(distribution, folder)
            if package is not None:
                found.setdefault(package.name, package)
    return found


def _package(distribution: Distribution, folder: Path) -> Package | None:
    name = distribution.metadata["Name"]
    if not name:  # half a package: a folder that an interrupted pip has left
        return None
    requires = tuple(Requirement(line) for line in distribution.requires or ())
    return Package(canonicalize_name(name), distribution.version, folder, requires)


def closure_conflicts(
    roots: Iterable[Requirement], packages: Mapping[str, Package], overrides: Mapping[str, SpecifierSet]
) -> list[Conflict]:
    """Return every requirement of `roots` and of what they need in turn that `packages` do not meet.

    Args:
        roots: what is asked for itself.
        packages: all that can be imported, by name.
        overrides: by name, the versions that do in place of those that packages ask for.
    """
    conflicts: list[Conflict] = []
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [("the project", requirement, frozenset[str]()) for requirement in roots]
    while waiting:
        needed_by, requirement, extras = waiting.pop()
        name = canonicalize_name(requirement.name)
        if not _applies(requirement, extras):
            continue
        package = packages.get(name)
        if package is None or not overrides.get(name, requirement.specifier).contains(
            package.version, prereleases=True
        ):
            conflicts.append(Conflict(needed_by, requirement, package))
            continue
        key = name, frozenset(requirement.extras)
        if key not in seen:
            seen.add(key)
            waiting += [(f"{name} {package.version}", each, key[1]) for each in package.requires]
    return conflicts


def replacement_conflicts(replaced: Mapping[str, str], packages: Mapping[str, Package]) -> Iterator[Conflict]:
    """Yield what of `packages` does not go with other versions of some of them.

    Args:
        replaced: the new versions by name.
        packages: by name, as they are.
    """
    for package in packages.values():
        for requirement in package.requires:
            version = replaced.get(canonicalize_name(requirement.name))
            if version is None or not _applies(requirement, frozenset()):
                continue
            if not requirement.specifier.contains(version, prereleases=True):
                new = Package(canonicalize_name(requirement.name), version, Path("the lock"), ())
                yield Conflict(f"{package.name} {package.version}", requirement, new)


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})
