# SPDX-License-Identifier: Apache-2.0
"""The meaning of well-known lines in the log of an engine and its ranks, for the error of a failed start.

Sources: MPI and Open MPI's help texts, NVIDIA's issue #5495, PyTorch's and CUDA's error names, NCCL's user guide
(troubleshooting), glibc's loader.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_SHOWN_LINES = 5
_SHOWN_CHARS = 240
_OUR_LAST_WORDS = (
    "the engine has failed"  # from `serving.engine_process.engine_loop`; the rest of the line is in the error already
)


class Cause(NamedTuple):
    """A kind of failure, with the pattern of its lines in a log."""

    pattern: re.Pattern[str]
    meaning: str  # with the next step


def _cause(pattern: str, meaning: str) -> Cause:
    return Cause(re.compile(pattern, re.IGNORECASE), meaning)


CAUSES = (
    _cause(
        r"MPI_ERR_SPAWN|could not spawn processes|already filled|not enough slots",
        "MPI could not start the ranks; let engine.launcher be auto, or start the server under srun with "
        "trtllm-llmapi-launch",
    ),
    _cause(
        r"out of memory|cudaErrorMemoryAllocation|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY",
        "a GPU's memory is full; `nvidia-smi` shows who holds it; lower engine.free_gpu_memory_fraction or "
        "max_num_batched_tokens, or divide the model over more GPUs",
    ),
    _cause(
        r"driver version is insufficient|forward compatibility was attempted|cudaErrorInsufficientDriver",
        "the NVIDIA driver is too old for this CUDA; update the driver of the machine",
    ),
    _cause(
        r"cannot open shared object file|undefined symbol",
        "a library is missing or of another version; run this in NVIDIA's container",
    ),
    _cause(
        r"No space left on device|Bus error",
        "shared memory or a disk is full; give the container more (docker --shm-size, or an emptyDir of medium "
        "Memory at /dev/shm)",
    ),
    _cause(
        r"NCCL (WARN|error)|nccl(System|UnhandledCuda|Internal|Remote)Error",
        "the GPUs cannot reach one another through NCCL; NCCL_DEBUG=INFO says more",
    ),
    _cause(
        r"invalid device ordinal|no CUDA-capable device|cudaErrorNoDevice",
        "there are fewer GPUs here than ranks; look at placement.gpus, engine.tp_size and engine.pp_size",
    ),
    _cause(
        r"exited on signal 9|signal: Killed",
        "something has killed a process; the kernel does where the memory of the container is full (dmesg)",
    ),
)


def find_cause(lines: Sequence[str]) -> str | None:
    """Return the meaning of the first known cause among the lines; None: no line is well known."""
    for cause in CAUSES:
        if any(cause.pattern.search(line) for line in lines):
            return cause.meaning
    return None


def describe_failure(lines: Sequence[str]) -> list[str]:
    """Return the parts of an error: the cause, where it is known, and the last lines."""
    parts = []
    if cause := find_cause(lines):
        parts.append(cause)
    if shown := telling_lines(lines):
        parts.append("its log ends: " + " | ".join(shown))
    return parts


def is_telling(line: str) -> bool:
    """Return whether a line is well known."""
    return any(cause.pattern.search(line) for cause in CAUSES)


def telling_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines for a person: lines of a known cause, and the last lines before this server's own error."""
    ours = next((number for number, line in enumerate(lines) if _OUR_LAST_WORDS in line), len(lines))
    last = [line for line in lines[:ours] if re.search(r"\w", line)][-_SHOWN_LINES:]
    return [line[:_SHOWN_CHARS] for line in dict.fromkeys([*filter(is_telling, lines[:ours]), *last])]
