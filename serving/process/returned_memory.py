# SPDX-License-Identifier: Apache-2.0
"""The settings with which processes return the memory of large messages and texts to the system after the answer.

glibc raises its threshold for blocks of their own to 32 MiB when it sees large ones come and go, and keeps what is
freed below: one message of 64 MB to each of its arenas, and tritonserver stays at 500 MiB. gRPC reads a large message
in pieces of 64 KiB: with a threshold above these, one small block after them holds up to 40 MB of an arena.
"""

import ctypes
from collections.abc import Mapping

_FIXED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}  # bytes


def with_returned_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that takes messages; variables that the operator has set stay."""
    return _FIXED | dict(environ)


def without_returned_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without those settings, for an engine: it takes and frees large blocks with every step."""
    return {name: value for name, value in environ.items() if _FIXED.get(name) != value}


def return_freed() -> None:
    """Return free memory inside the heap to the system, after work of many small blocks; 35 us with 15 MiB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
    if trim is not None:
        trim(0)
