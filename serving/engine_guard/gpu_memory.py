# SPDX-License-Identifier: Apache-2.0
"""The memory of an engine's GPUs after its end: waited for until the driver has taken it back.

A process that has ended frees its memory on the GPU a little later, tens of seconds with many ranks, and the next
engine would find less: it fails, or makes a smaller KV cache. Other engines may be on the same GPUs and take memory at
any time, so this waits until no process of the ended engine holds any and the free memory has stopped growing.
"""

import csv
import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

from serving.process.this_machine import read_machine

_log = logging.getLogger("trireme.gpu_memory")

_TIMEOUT_S = 30.0
_POLL_S = 0.5
_SETTLED_S = 1.0
_TOLERANCE_BYTES = 256 << 20  # the driver's own share comes and goes
_ASK_S = 20.0

Free = tuple[int, ...]  # bytes, by GPU


class GpuMemory:
    """The free memory of the GPUs that this process sees.

    Args:
        read_free: free bytes by GPU; empty where there are no GPUs.
        read_holders: process id and text of each process that holds memory of a GPU.
    """

    def __init__(
        self,
        read_free: Callable[[], Free] | None = None,
        read_holders: Callable[[], dict[int, str]] | None = None,
    ) -> None:
        self._read_free = read_free or _read_free
        self._read_holders = read_holders or _read_holders
        self._before: Free = ()

    def note_before_start(self) -> None:
        """Note the free memory before an engine is started."""
        self._before = self._read_free()

    def wait_until_free(self, pids: Sequence[int], *, timeout_s: float = _TIMEOUT_S) -> str | None:
        """Wait until an ended engine holds no memory; return the holders if that takes too long, None otherwise.

        Args:
            pids: ids of all processes of the engine.
            timeout_s: longest wait in seconds.
        """
        if not self._before:
            return None
        began_s = time.monotonic()
        most, grew_s = self._read_free(), began_s
        while not self._is_as_before(most):
            time.sleep(_POLL_S)
            free, now_s = self._read_free(), time.monotonic()
            holders = {pid: text for pid, text in self._read_holders().items() if pid in pids}
            if sum(free) > sum(most) + _TOLERANCE_BYTES // 8:
                most, grew_s = free, now_s
            elif not holders and now_s - grew_s >= _SETTLED_S:
                _log.info("GPU memory after the engine's end, MiB free: %s", [size >> 20 for size in free])
                return None
            if now_s - began_s > timeout_s:
                return self._complaint(free, holders, timeout_s)
        return None

    def _is_as_before(self, free: Free) -> bool:
        return len(free) != len(self._before) or all(
            now >= before - _TOLERANCE_BYTES for now, before in zip(free, self._before, strict=True)
        )

    def _complaint(self, free: Free, holders: dict[int, str], timeout_s: float) -> str:
        missing = [
            f"{(before - now) >> 20} MiB of GPU {number}"
            for number, (now, before) in enumerate(zip(free, self._before, strict=False))
            if before - now > _TOLERANCE_BYTES
        ]
        who = ", ".join(holders.values()) or "no process that nvidia-smi names"
        return f"{timeout_s:g} s after the engine's end {', '.join(missing)} are not free again, held by {who}"


def _read_free() -> Free:
    if shutil.which("nvidia-smi") is None:
        return ()
    gpus = read_machine((), is_asking_for_gpus=True).gpus
    return tuple(gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None)


def _read_holders() -> dict[int, str]:
    """Return the processes that nvidia-smi names, by process id; in a container it may name none."""
    command = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [row for row in csv.reader(result.stdout.splitlines(), skipinitialspace=True) if len(row) == 3]
    return {int(pid): f"process {pid} ({name}, {used} MiB)" for pid, name, used in rows if pid.isdecimal()}
