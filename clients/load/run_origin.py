# SPDX-License-Identifier: Apache-2.0
"""The origin of a run for its page, gathered before the load, so that the load does not show in it."""

import shlex
import sys
from pathlib import Path

from clients.load.load_options import Load
from clients.load_run.run_folder import RunInfo, environment, now


def run_info(load: Load, *, tool: str, warmup: int = 0) -> RunInfo:
    """Return the description of a run that is about to begin, with the command of this process and its machine."""
    return RunInfo(
        tool=tool,
        commands=[shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])],
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
        date=now(),
        environment=environment(),
    )
