# SPDX-License-Identifier: Apache-2.0
"""One run as a folder: what was asked (`run.json`), every request (`requests.jsonl`), the server (`server.jsonl`).

Every tool's run becomes such a folder, and a report reads nothing else.
"""

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import psutil

from clients.load.load_record import LoadRecord, read_records, write_records
from clients.load.server_samples import ServerSample, read_samples, write_samples
from clients.load.worker import CpuSample
from ensemble_configs.errors import SpecError

_PACKAGES = ("trireme", "tritonclient", "grpcio", "msgspec", "numpy")


class RunInfo(msgspec.Struct, kw_only=True):
    """What a run was.

    Attributes:
        tool: that put the load on, with its version: ``trireme 0.1.0``, ``perf_analyzer 2.51.0``.
        commands: as they were typed or started, each a line for a shell.
        is_open: an open loop; rate_per_s, num_users: of it, or of a closed one.
        workload: as JSON data, or in words of a tool that has no workload of ours.
        lengths: how the lengths of prompts came about.
        warmup_requests: that were sent before, and are not in the records.
        cpu: what each process of the client had used by when; none: not known.
        note: what a reader has to know to compare it.
        was_interrupted: by Ctrl-C; what had ended by then is there.
        tool_says: figures that the tool itself prints, by its own names.
    """

    tool: str
    commands: list[str]
    url: str
    model: str
    is_open: bool
    rate_per_s: float | None = None
    num_users: int | None = None
    arrivals: str | None = None
    workload: Any = None
    lengths: str = ""
    seed: int | None = None
    warmup_requests: int = 0
    date: str = ""
    environment: dict[str, Any] = {}
    cpu: list[list[CpuSample]] = []
    note: str = ""
    metrics_failure: str | None = None
    was_interrupted: bool = False
    tool_says: dict[str, str] = {}


class Run(msgspec.Struct, kw_only=True):
    """A run, read."""

    path: Path
    info: RunInfo
    records: list[LoadRecord]
    samples: list[ServerSample]
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.path.resolve().name


def write_run(path: Path, info: RunInfo, records: Sequence[LoadRecord], samples: Sequence[ServerSample]) -> None:
    """Make the folder; `run.json` last, so that a folder with one is whole."""
    path.mkdir(parents=True, exist_ok=True)
    write_records(path / "requests.jsonl", records)
    write_samples(path / "server.jsonl", samples)
    (path / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(info), indent=1) + b"\n")


def read_run(path: Path) -> Run:
    """What `write_run` wrote.

    Raises:
        SpecError: it is no run's folder.
    """
    try:
        info = msgspec.json.decode((path / "run.json").read_bytes(), type=RunInfo)
    except OSError as exc:
        raise SpecError(
            f"{path} is no run's folder: its run.json cannot be read ({exc.strerror or exc}); "
            "`trireme bench run --out` makes one",
            field="run",
        ) from exc
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{path / 'run.json'}: {exc}", field="run") from exc
    return Run(
        path=path,
        info=info,
        records=read_records(path / "requests.jsonl"),
        samples=read_samples(path / "server.jsonl"),
    )


def refuse_used(path: Path) -> None:
    """Raises: SpecError: the folder holds a run already."""
    if (path / "run.json").exists():
        raise SpecError(f"{path} holds a run already; name another folder with --out, or remove it", field="out")
    if path.exists() and not path.is_dir():
        raise SpecError(f"{path} is a file; --out names a folder", field="out")


def environment() -> dict[str, Any]:
    """Where the client runs: it and the server may share the machine."""
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := package_version(name))},
    }


def package_version(name: str) -> str | None:
    """Of an installed package; None: there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def now() -> str:
    """For a run's date."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
