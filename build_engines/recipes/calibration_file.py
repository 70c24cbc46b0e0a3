# SPDX-License-Identifier: Apache-2.0
"""Findings about the file of a recipe's own calibration set, before a tool reads it."""

from collections.abc import Iterator

from build_engines.recipes.recipe_findings import finding
from build_engines.recipes.recipe_parts import Calibration
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.spec.finding import Finding


def check_calibration_file(calibration: Calibration | None) -> Iterator[Finding]:
    """Yield a finding for each way in which a calibration file is not the one that the recipe means."""
    if calibration is None or calibration.file is None:
        return
    file = calibration.file
    if not file.is_file():
        yield finding("calibration.file", f"no file {file}", "one", "put it there, or name another")
    elif (found := hash_file(file)) != calibration.sha256:
        yield finding("calibration.sha256", found, str(calibration.sha256), f"restore {file.name}, or set its hash")
    elif file.suffix not in (".jsonl", ".txt"):
        yield finding("calibration.file", file.suffix, ".jsonl or .txt", "rewrite it as one of these")
