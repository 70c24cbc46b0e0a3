# SPDX-License-Identifier: Apache-2.0
"""The memory bandwidth of this machine's cores together: measured on demand, kept for each number of cores.

The bandwidth is not measured at an engine's start: that would delay the start, and beside other work the figure would
be too low for ever. There is no such figure for operations: OpenVINO chooses the unit and the precision of a product.
"""

import json
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trireme.base.durable_files import write_atomically
from trireme.base.provenance import cpu_model

_BYTES_PER_CORE = 64 << 20  # far more than a core's part of the last cache
_MOST_BYTES = 4 << 30
_ROUNDS = 20


def measure_bandwidth(*, num_rounds: int = _ROUNDS) -> float:
    """Return the bytes a second that all usable cores read, each from memory of its own: the best of 5 ms rounds."""
    cores = len(os.sched_getaffinity(0))
    size = min(_BYTES_PER_CORE, _MOST_BYTES // cores)
    pieces = [np.ones(size // 8, np.int64) for _ in range(cores)]
    best = 0.0
    with ThreadPoolExecutor(cores) as threads:  # numpy lets go of the interpreter while it reads
        for _ in range(num_rounds):
            began_s = time.perf_counter()
            list(threads.map(np.bitwise_or.reduce, pieces))
            best = max(best, size * cores / (time.perf_counter() - began_s))
    return best


def keep_bandwidth(bytes_per_s: float) -> Path:
    """Keep the bandwidth for the number of cores that are usable now, and return the file."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(file, json.dumps(_kept() | {_key(): bytes_per_s}, indent=2) + "\n")
    return file


def kept_bandwidth() -> float | None:
    """Return the bytes a second kept for this CPU and number of usable cores; None: it was never measured."""
    found = _kept().get(_key())
    return float(found) if isinstance(found, int | float) and found > 0 else None


def _kept() -> dict[str, object]:
    try:
        kept = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trireme" / "cpu_bandwidth.json"


def _key() -> str:
    """Return the CPU's name and the number of usable cores as a key."""
    return f"{cpu_model() or platform.machine()}, {len(os.sched_getaffinity(0))} cores"
