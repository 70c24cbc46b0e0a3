# SPDX-License-Identifier: Apache-2.0
"""The origin of a run for its page, gathered before the load, so that the load does not show in it."""

import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

from clients.load.load_options import Load
from clients.load_run.run_folder import RunInfo, environment, now


class Origin(NamedTuple):
    """The origin of one run."""

    command: str  # as it was typed, for a shell
    date: str
    where: dict[str, Any]

    @classmethod
    def here(cls) -> Self:
        """Return the origin of this process, now."""
        return cls(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]), now(), environment())

    def info(self, load: Load, *, tool: str, started: str | None = None, warmup: int = 0) -> RunInfo:
        """Return the description of a run of a load.

        Args:
            started: the command line of the tool, where it is another program.
        """
        return RunInfo(
            tool=tool,
            commands=[self.command, *([started] if started else [])],
            url=load.url,
            model=load.model,
            is_open=load.is_open,
            rate_per_s=load.rate_per_s,
            num_users=load.num_users,
            arrivals=load.arrivals if load.rate_per_s is not None else None,
            workload=load.workload,
            lengths=load.writer().how,
            seed=load.seed,
            warmup_requests=warmup,
            date=self.date,
            environment=self.where,
        )
