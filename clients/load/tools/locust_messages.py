# SPDX-License-Identifier: Apache-2.0
"""The messages between `trireme bench locust`, its locustfile and its workers. Imports no Locust."""

import msgspec

from clients.load.load_options import Load
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord

# Environment variables of files; a worker has none.
LOAD_VARIABLE, RECORDS_VARIABLE = "TRIREME_LOCUST_LOAD", "TRIREME_LOCUST_RECORDS"


class LocustLoad(msgspec.Struct, frozen=True):
    """The load that a locustfile is given, and the message of the master to its workers, which share the sessions."""

    load: Load
    counts_each: bool = False  # of an OpenAI-compatible server: it tells the tokens of every chunk
    num_workers: int = 1


class LocustFound(msgspec.Struct):
    """The results that a run of Locust leaves; times are of the wall clock."""

    records: list[LoadRecord]
    cpu: list[list[CpuSample]]
    failure: str = ""  # why nothing more could be asked
    version: str = ""  # of Locust
