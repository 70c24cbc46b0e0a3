# SPDX-License-Identifier: Apache-2.0
"""The record of an evaluation in the release's manifest, which gives the release another address.

A release that is in use stays as it is, where it is: its engine may be started again at any time, from the same folder.
Its results are sealed in a release beside it, of the same files.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from build_engines.cache.linked_files import link_or_copy
from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.verdict import METRICS
from ensemble_configs.releases.release_lock import held_alone, lock_file
from ensemble_configs.releases.release_manifest import (
    PROVENANCE_FILE,
    ReleaseManifest,
    address,
    load_manifest,
    seal,
    verify,
)
from ensemble_configs.releases.release_parts import EvaluationBase, EvaluationResult, Override
from trireme.base.errors import SpecError


def refuse_unwritable(folder: Path) -> None:
    """Refuse a release with a manifest that cannot be written, before an evaluation that is to be recorded.

    Raises:
        SpecError: the manifest cannot be written, or the new folder cannot be made.
    """
    places = [folder]
    if folder.is_dir():
        with held_alone(folder) as is_free:
            if not is_free:
                places = [folder.resolve().parent]  # the release itself stays as it is
            elif _is_named_for(folder, load_manifest(folder).name, address(folder)):
                places.append(folder.resolve().parent)
    for place in places:
        if not os.access(place, os.W_OK | os.X_OK):
            raise SpecError(
                f"{place} cannot be written to, so the results cannot be recorded in it; use --no-record, or a copy of "
                "the release",
                file=place,
            )


class Recorded(NamedTuple):
    """The release that holds the results, and the address of the release that was evaluated."""

    path: Path
    address: str
    old_address: str
    was_in_use: bool = False  # the evaluated release is unchanged; `path` is another, of the same files


def record(folder: Path, evaluation: Evaluation, override: Override | None) -> Recorded:
    """Seal a release again with the results, in place; results of an earlier evaluation are replaced.

    A folder that is named for its address, as `trireme build` names it, gets its new name: a deployment that serves the
    release has to use that, and a signature of the old address holds no longer. A release that is in use is not
    touched, and the release with the results gets a folder of its own beside it.

    Args:
        folder: folder of the release.
        evaluation: the evaluation of this very release.
        override: overrides a verdict against the release; None: the verdict stands.

    Raises:
        SpecError: the release was changed since it was evaluated, there is nothing to override, or something else is in
            the place of the release with the results.
    """
    manifest = verify(folder)
    old = address(folder)
    if old != evaluation.release_address:
        raise SpecError(
            f"{folder} was changed while it was evaluated: its address was {evaluation.release_address} and is {old}; "
            "evaluate it again",
            file=folder,
        )
    if override is not None and evaluation.passed is not False:
        raise SpecError("nothing to override: the release has not failed; leave --override out", field="override")
    changes = {
        "evaluation": tuple(_results(evaluation)),
        "evaluated_against": EvaluationBase(
            name=evaluation.base,
            address=evaluation.base_address,
            tasks_sha256=evaluation.tasks_sha256,
            computed_in=evaluation.computed_in,
        ),
        "override": override,
    }
    judged = manifest.model_copy(update=changes)
    with held_alone(folder) as is_free:
        if not is_free:
            path, new = _sealed_beside(folder, judged, old)
            return Recorded(path, new, old, was_in_use=True)
        new = seal(folder, judged)
        return Recorded(_renamed(folder, manifest.name, old, new), new, old)


def _is_named_for(folder: Path, name: str, old: str) -> bool:
    """Return whether a build or `trireme pull` has named a folder for the address of its release."""
    there = folder.resolve().name
    return not folder.is_symlink() and (_is_built(there, name) or there == old)


def _is_built(there: str, name: str) -> bool:
    return re.fullmatch(re.escape(name) + "-[0-9a-f]{12}", there) is not None


def _renamed(folder: Path, name: str, old: str, new: str) -> Path:
    """Rename a folder that was named for its old address; return its path."""
    if not _is_named_for(folder, name, old):
        return folder
    place = _place(folder, name, old, new)
    if place.exists():
        return folder
    _count_in(folder, place)
    return folder.rename(place)


def _place(folder: Path, name: str, old: str, new: str) -> Path:
    """Return the place beside `folder` for a release with the address `new`."""
    there = folder.resolve()
    if there.name == old:
        return there.with_name(new)
    return there.with_name(f"{name if _is_built(there.name, name) else there.name}-{new[:12]}")


def _count_in(folder: Path, place: Path) -> None:
    """Have a cache treat a release of another name like the old one, for its bound and its evictions."""
    if (lock := lock_file(folder.resolve())).is_file():
        lock_file(place).write_text(lock.read_text())


def _sealed_beside(folder: Path, manifest: ReleaseManifest, old: str) -> tuple[Path, str]:
    """Seal the same files with another manifest in a folder of their own; return it, and its address."""
    draft = folder.resolve().with_name(f".evaluated-{secrets.token_hex(8)}")
    try:
        beside = [PROVENANCE_FILE] if (folder / PROVENANCE_FILE).is_file() else []
        for path in [*manifest.files, *beside]:
            link_or_copy(folder / path, draft / path)
        new = seal(draft, manifest)
        if new == old:
            return folder, new
        place = _place(folder, manifest.name, old, new)
        if not place.exists():
            _count_in(folder, place)
            draft.rename(place)
        elif address(place) != new:
            raise SpecError(
                f"{place} is in the way of the release with the results; move it away and evaluate again", file=place
            )
        return place, new
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _results(evaluation: Evaluation) -> Iterator[EvaluationResult]:
    """Yield every figure; for a comparison both sides first, then the judged figure."""
    for figure in evaluation.figures:
        sides = METRICS[figure.metric].compares
        task, group = figure.task, figure.group
        if sides is not None and figure.candidate is not None:
            yield EvaluationResult(
                task=task, group=group, metric=sides, value=figure.candidate, baseline=figure.baseline
            )
        yield EvaluationResult(
            task=task, group=group, metric=figure.metric, value=figure.value, interval=figure.interval,
            passed=figure.passed,
        )  # fmt: skip
