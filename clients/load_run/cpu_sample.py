# SPDX-License-Identifier: Apache-2.0
"""Processor time that the load client used, as its run folder keeps it."""

import msgspec


class CpuSample(msgspec.Struct, frozen=True):
    """The CPU time that a process had used by a moment."""

    at_ns: int  # from the start of the run
    cpu_s: float
