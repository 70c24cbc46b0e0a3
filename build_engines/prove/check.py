# SPDX-License-Identifier: Apache-2.0
"""A check of a proof: how it ends, and how checks are run so that a failure does not lose the others."""

import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from build_engines.prove.proof import CheckRecord
from trireme.base.errors import ServingError


class CheckFailed(Exception):
    """The failure of a check; `last_lines` are the end of the program's output."""

    def __init__(self, reason: str, last_lines: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.last_lines = list(last_lines)


class LeftOut(Exception):
    """The omission of a check, which is not a failure of its own.

    The check cannot be done here, or what it needs has failed.
    """


class Check(NamedTuple):
    """A check: its name, what it does, and the function that does it."""

    name: str
    what: str  # what it does, for people
    run: Callable[[], None]


Watch = Callable[[Check], AbstractContextManager[None]]


def run_check(check: Check, watch: Watch) -> CheckRecord:
    """Run a check; whatever it raises becomes its record.

    Args:
        check: the check to run.
        watch: shows that it runs.
    """
    started_s = time.monotonic()

    def record(**how: object) -> CheckRecord:
        duration_s = round(time.monotonic() - started_s, 3)
        return CheckRecord(name=check.name, duration_s=duration_s, **how)  # type: ignore[arg-type]

    try:
        with watch(check):
            check.run()
    except LeftOut as exc:
        return record(status="left out", reason=str(exc))
    except CheckFailed as exc:
        return record(status="failed", reason=str(exc), last_lines=exc.last_lines)
    except ServingError as exc:
        return record(status="failed", reason=exc.message)
    except Exception as exc:  # a check is a boundary: what nobody expected on a GPU is what a proof is for
        lines = "".join(traceback.format_exception(exc)).splitlines()[-20:]
        return record(status="failed", reason=f"{type(exc).__name__}: {exc}", last_lines=lines)
    return record(status="passed")
