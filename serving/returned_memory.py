# SPDX-License-Identifier: Apache-2.0
"""Have processes return the memory of large messages to the system once these are answered.

glibc raises its threshold for blocks of their own to 32 MiB when it sees large ones come and go, and keeps what is
freed below: one message of 64 MB to each of its arenas, and tritonserver stays at 500 MiB.
"""

from collections.abc import Mapping

_FIXED = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}  # bytes


def with_returned_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that takes messages; what the operator has set stays."""
    return _FIXED | dict(environ)


def without_returned_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it was, for an engine: it takes and frees large blocks with every step."""
    return {name: value for name, value in environ.items() if _FIXED.get(name) != value}
