# SPDX-License-Identifier: Apache-2.0
"""What `trireme bench locust` tells its locustfile, and what that leaves for it. Imports no Locust."""

import msgspec

from clients.load.load_options import Load
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord

# Environment variables of files; a worker has none.
LOAD_VARIABLE, RECORDS_VARIABLE = "TRIREME_LOCUST_LOAD", "TRIREME_LOCUST_RECORDS"


class LocustLoad(msgspec.Struct, frozen=True):
    """What a locustfile is told."""

    load: Load
    counts_each: bool = False  # of an OpenAI-compatible server: it tells the tokens of every chunk


class LocustShare(msgspec.Struct, frozen=True):
    """What the master tells its workers, who share the sessions."""

    told: LocustLoad
    num_workers: int


class LocustFound(msgspec.Struct):
    """What a run of Locust's leaves; times are of the wall clock."""

    records: list[LoadRecord]
    cpu: list[list[CpuSample]]
    failure: str = ""  # why nothing more could be asked
