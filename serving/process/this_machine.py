# SPDX-License-Identifier: Apache-2.0
"""The machine that this process runs on, as far as a release may need it; read without loading an engine or CUDA."""

import csv
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from ensemble_configs.releases.machine import Gpu, Machine

_MIB = 1 << 20
_TIMEOUT_S = 60.0  # the first call loads the driver, GPU by GPU
_QUERY = "index,uuid,name,compute_cap,memory.total,memory.free"
# TensorRT's Python package is named for its CUDA version.
_DISTRIBUTIONS = {"tensorrt": ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")}


class NoDriverError(Exception):
    """The error of a machine without an NVIDIA driver or usable GPUs; the text says why."""


def read_machine(packages: Iterable[str], *, is_asking_for_gpus: bool) -> Machine:
    """Return the memory and GPUs that are free now, and the versions of installed packages.

    Args:
        packages: the packages to look for, named with underscores.
        is_asking_for_gpus: takes a second or so with `nvidia-smi`.
    """
    gpus: tuple[Gpu, ...] = ()
    why_no_gpus = None
    if is_asking_for_gpus:
        try:
            gpus = _read_gpus()
        except NoDriverError as exc:
            why_no_gpus = str(exc)
    installed = {name: found for name in packages if (found := _installed_version(name)) is not None}
    return Machine(gpus=gpus, why_no_gpus=why_no_gpus, free_host_bytes=_free_host_bytes(), packages=installed)


def _installed_version(name: str) -> str | None:
    for distribution in _DISTRIBUTIONS.get(name, (name,)):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def _read_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA shows to this process. Raises: NoDriverError."""
    answer = _ask_driver(_QUERY)
    try:
        rows = [_Row(*row) for row in csv.reader(answer.splitlines(), skipinitialspace=True) if row]
        return tuple(row.gpu() for row in _visible(rows))
    except (TypeError, ValueError) as exc:
        raise NoDriverError(f"nvidia-smi says what we do not understand: {answer!r}") from exc


def _ask_driver(query: str) -> str:
    """Return the answer of nvidia-smi to a query. Raises: NoDriverError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NoDriverError("there is no nvidia-smi on PATH, so no driver")
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NoDriverError(f"nvidia-smi fails: {exc}") from exc
    if result.returncode != 0:
        reason = " ".join((result.stdout + result.stderr).split())
        raise NoDriverError(f"nvidia-smi fails with status {result.returncode}: {reason}")
    return result.stdout


@dataclass(frozen=True)
class _Row:
    """A line of nvidia-smi's list of GPUs."""

    index: str
    uuid: str
    name: str
    compute_cap: str
    total_mib: str
    free_mib: str

    def gpu(self) -> Gpu:
        """Return the GPU of this line. Raises: ValueError: a figure is not a number."""
        return Gpu(
            name=self.name,
            sm=int(self.compute_cap.replace(".", "")),
            memory_bytes=_bytes(self.total_mib),
            free_bytes=_bytes(self.free_mib),
        )


def _bytes(mib: str) -> int | None:
    return None if mib.startswith("[") else int(mib) * _MIB  # "[N/A]" where memory is the host's


def _visible(rows: list[_Row]) -> list[_Row]:
    """Return the GPUs that CUDA shows to a process, in its order; nvidia-smi shows all."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return rows
    visible = []
    for name in map(str.strip, shown.split(",")):
        found = [row for row in rows if name and (row.index == name or row.uuid.startswith(name))]
        if not found:  # as CUDA does: entries after an unknown name are hidden too
            break
        visible += found[:1]
    return visible


def read_driver_version() -> str:
    """Return the version of the NVIDIA driver, as in `590.44.01`; takes a second or so.

    Raises:
        NoDriverError: there is no driver, or it does not answer.
    """
    lines = _ask_driver("driver_version").split()
    if not lines:
        raise NoDriverError("nvidia-smi lists no GPU")
    return lines[0]


def _free_host_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes can be had without swapping, under this container's limit."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        if limit != "max":  # pages of files are given back where memory is short
            free = min(free, int(limit) - used + int(stat["inactive_file"]) + int(stat["active_file"]))
    except (OSError, ValueError, KeyError):
        return free  # no such limit here
    return max(free, 0)
