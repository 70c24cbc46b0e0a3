# SPDX-License-Identifier: Apache-2.0
"""Findings: things that are wrong with a release or with the machine that is to serve it."""

from collections.abc import Sequence
from pathlib import Path

from ensemble_configs.spec.base import Spec
from trireme.base.errors import SpecError


class Finding(Spec):
    """A fault: what was found, what was wanted, and what to do now."""

    check: str  # what was looked at: "file engine/rank1.engine", "sm", "memory"
    found: str
    wanted: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.check}: found {self.found}, wanted {self.wanted}; {self.next_step}"


_NUM_SHOWN = 3


def refuse(findings: Sequence[Finding], *, source: Path) -> None:
    """Turn findings about `source` into one error.

    Raises:
        SpecError: there are findings; the error shows the first three in full.
    """
    if not findings:
        return
    lines = [str(finding) for finding in findings[:_NUM_SHOWN]]
    if len(findings) > _NUM_SHOWN:
        lines.append(f"and {len(findings) - _NUM_SHOWN} more (`trireme doctor` lists all)")
    shown = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n{line}" for line in lines)
    raise SpecError(f"{source}:{shown}", file=source, check=findings[0].check)
