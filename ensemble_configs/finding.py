# SPDX-License-Identifier: Apache-2.0
"""One thing that is wrong with a release or with the machine that is to serve it."""

from collections.abc import Sequence
from pathlib import Path

from ensemble_configs.errors import SpecError
from ensemble_configs.spec import Spec


class Finding(Spec):
    """What was found, what was wanted, and what to do now."""

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
        SpecError: there are any; it shows the first three in full.
    """
    if not findings:
        return
    shown = " | ".join(map(str, findings[:_NUM_SHOWN]))
    more = (
        f" | and {len(findings) - _NUM_SHOWN} more (`trireme doctor` lists all)" if len(findings) > _NUM_SHOWN else ""
    )
    raise SpecError(f"{source}: {shown}{more}", file=source, check=findings[0].check)
