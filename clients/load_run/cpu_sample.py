# SPDX-License-Identifier: Apache-2.0
"""Processor time that the load client used, as its run folder keeps it."""

import msgspec


class CpuSample(msgspec.Struct, frozen=True):
    """How much CPU a process had used by then."""

    at_ns: int  # from the start of the run
    cpu_s: float
