# SPDX-License-Identifier: Apache-2.0
"""The last part of a build: the stages' outputs become a sealed release, in one rename."""

import getpass
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from build_engines.cache.linked_files import link_or_copy
from build_engines.stages.build_job import BuildPlan
from build_engines.stages.work_folder import Stamp, WorkFolder, partial_of
from ensemble_configs.releases.release_manifest import PROVENANCE_FILE, address, seal, verify
from ensemble_configs.releases.release_parts import Provenance
from trireme.base.durable_files import sync, write_atomically
from trireme.base.errors import BuildError, SpecError

_NAME = "release"


class BuiltRelease(NamedTuple):
    """A release made by a build."""

    path: Path
    address: str
    is_new: bool  # False: the same content was there already


def assemble(
    plan: BuildPlan, stamps: Mapping[str, Stamp], work: WorkFolder, *, name: str, details: Mapping[str, JsonValue]
) -> BuiltRelease:
    """Put the release together in the work folder, and move it to ``OUT/<name>-<address>`` when it is whole.

    Args:
        plan: says which outputs go where, and the manifest.
        stamps: the stamps of the stages.
        work: the work folder, which lies in OUT.
        name: the recipe's name.
        details: more for `provenance.json`.

    Raises:
        BuildError: something else, or a damaged release, has its place.
        SpecError: a file is missing that such a release must have.
    """
    folder = work.begin(_NAME)
    for stage, part in plan.parts.items():
        _link_tree(work.path / stage, folder / part)
    sealed = seal(folder, plan.describe(folder))
    _write_provenance(folder, stamps, details)
    place = work.path.parent / f"{name}-{sealed[:12]}"
    if place.exists():
        _refuse_other(place, sealed)
        work.discard(_NAME)
        return BuiltRelease(place, sealed, is_new=False)
    (work.path / partial_of(_NAME)).rename(place)
    sync(place.parent)
    return BuiltRelease(place, sealed, is_new=True)


def _refuse_other(place: Path, sealed: str) -> None:
    try:
        verify(place, is_quick=True)
        if address(place) == sealed:
            return
        found = f"a release with the address {address(place)}"
    except SpecError as exc:
        found = f"a damaged release ({exc.message})"
    raise BuildError(
        f"{place} is in the way: {found}; move it away and go on with --resume, which takes a moment", file=place
    )


def _link_tree(source: Path, target: Path) -> None:
    """Link the files of a folder into another one of the same disk.

    Files are copied where the file system has no links.
    """
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        link_or_copy(path, place)


def _write_provenance(folder: Path, stamps: Mapping[str, Stamp], details: Mapping[str, JsonValue]) -> None:
    seconds: dict[str, JsonValue] = {stage: stamp.duration_s for stage, stamp in stamps.items()}
    provenance = Provenance(
        built_by=_user(),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node() or "unknown",
        duration_s=round(sum(stamp.duration_s for stamp in stamps.values()), 3),
        details={"stage_seconds": seconds, **details},
    )
    write_atomically(folder / PROVENANCE_FILE, provenance.model_dump_json(indent=2) + "\n")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user has no name
        return str(os.getuid())
