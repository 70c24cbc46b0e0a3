# SPDX-License-Identifier: Apache-2.0
"""Writes what an evaluation found into the release's manifest, which gives the release another address."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.verdict import METRICS
from ensemble_configs.errors import SpecError
from ensemble_configs.release_manifest import address, seal, verify
from ensemble_configs.release_parts import EvaluationBase, EvaluationResult, Override


def refuse_unwritable(folder: Path) -> None:
    """Before an evaluation that is to be recorded.

    Raises:
        SpecError: its manifest cannot be written.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError(
            f"{folder} cannot be written to, so the results cannot be recorded in it; use --no-record, or a copy of it",
            file=folder,
        )


class Recorded(NamedTuple):
    """Where the release is now."""

    path: Path
    address: str
    old_address: str


def record(folder: Path, evaluation: Evaluation, override: Override | None) -> Recorded:
    """Seal a release again with the results, in place; what an earlier evaluation left is replaced.

    A folder that is named for its address, as `trireme build` names it, gets its new name: whoever serves the release
    has to name that one, and a signature of the old address holds no longer.

    Args:
        folder: of the release.
        evaluation: of this very release.
        override: of a verdict that is against it; None: the verdict stands.

    Raises:
        SpecError: the release was changed since it was evaluated, or there is nothing to override.
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
    new = seal(folder, manifest.model_copy(update=changes))
    return Recorded(_renamed(folder, manifest.name, old, new), new, old)


def _renamed(folder: Path, name: str, old: str, new: str) -> Path:
    """Its new name, if it was named for its address: by a build, or by `trireme pull`."""
    is_built = re.fullmatch(re.escape(name) + "-[0-9a-f]{12}", folder.resolve().name) is not None
    if not (is_built or folder.resolve().name == old) or folder.is_symlink():
        return folder
    place = folder.resolve().with_name(f"{name}-{new[:12]}" if is_built else new)
    return folder if place.exists() else folder.rename(place)


def _results(evaluation: Evaluation) -> Iterator[EvaluationResult]:
    """Every figure; of a comparison first both sides, then what is judged."""
    for figure in evaluation.figures:
        sides = METRICS[figure.metric].compares
        if sides is not None and figure.candidate is not None:
            yield EvaluationResult(
                task=figure.task,
                group=figure.group,
                metric=sides,
                value=figure.candidate,
                baseline=figure.baseline,
            )
        yield EvaluationResult(
            task=figure.task,
            group=figure.group,
            metric=figure.metric,
            value=figure.value,
            interval=figure.interval,
            passed=figure.passed,
        )
