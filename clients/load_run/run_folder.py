# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: what was asked (`run.json`), every request (`requests.jsonl`), the server (`server.jsonl`).

Every tool's run becomes such a folder, and a report reads nothing else.
"""

import contextlib
import datetime
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from clients.load_run.cpu_sample import CpuSample
from clients.load_run.json_lines import Lines, LinesFile, read_lines, write_json
from clients.load_run.load_record import LoadRecord, Unended, check_record
from clients.load_run.server_samples import ServerSample
from trireme.base.errors import SpecError
from trireme.base.known_types import known
from trireme.base.provenance import cpu_model

_INFO, _RECORDS, _SAMPLES = "run.json", "requests.jsonl", "server.jsonl"
_PACKAGES = ("trireme", "openvino-genai", "tokenizers", "tritonclient", "grpcio", "msgspec", "numpy")


class RunInfo(msgspec.Struct, kw_only=True):
    """The description of a run.

    Attributes:
        tool: the program that put the load on, with its version: ``trireme 0.1.0``, ``perf_analyzer 2.51.0``.
        commands: as they were typed or started, each a line for a shell.
        is_open: the load is an open loop, of `rate_per_s`; otherwise a closed one, of `num_users`.
        workload: the workload as JSON data, or in words of a tool that has no workload of ours.
        lengths: how the lengths of prompts came about.
        warmup_requests: requests that were sent before, and are not in the records.
        cpu: CPU samples of each process of the client; none: not known.
        note: what a reader has to know to compare the run.
        was_interrupted: the run did not come to its end; what had ended by then is there.
        unended: requests that ran when it was stopped; None: there were none, or it is not known.
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
    unended: Unended | None = None
    tool_says: dict[str, str] = {}


class Run(msgspec.Struct, kw_only=True):
    """A run that was read from its folder."""

    path: Path
    info: RunInfo
    records: list[LoadRecord]
    samples: list[ServerSample]
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.path.resolve().name

    @property
    def metrics_gap(self) -> str:
        """Return what is missing of the server's metrics, in words; "": nothing is."""
        if not self.info.metrics_failure:
            return ""
        what = "not of the whole run" if self.samples else "not in it"
        return f"The server's metrics are {what}: {self.info.metrics_failure}"


class RunFiles:
    """The folder of a run while its load runs, inside a `with`; what has ended is in it, whatever happens here.

    `run.json` comes first, and says that the run was interrupted until `end` says how it was.

    Raises:
        ServingError: there, or later, a file cannot be written.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        self._path = path
        self.end(msgspec.structs.replace(info, was_interrupted=True))
        self._files = contextlib.ExitStack()
        self._records = self._files.enter_context(LinesFile(path / _RECORDS))
        self._samples = self._files.enter_context(LinesFile(path / _SAMPLES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, records: Iterable[LoadRecord], samples: Iterable[ServerSample]) -> None:
        """Write records and samples that are new."""
        self._records.add(records)
        self._samples.add(samples)

    def end(self, info: RunInfo) -> None:
        """Write the final description of the run."""
        write_json(self._path / _INFO, info)


def write_run(path: Path, info: RunInfo, records: Sequence[LoadRecord], samples: Sequence[ServerSample]) -> None:
    """Make the folder of a run that is over. Raises: ServingError: it cannot be written."""
    with RunFiles(path, info) as files:
        files.add(records, samples)
        files.end(info)


def read_run(path: Path) -> Run:
    """Return the run in a folder, with records in the order in which requests were due.

    A cut last line is left out, as the note says.

    Raises:
        SpecError: it is no run's folder, or a file of it is damaged.
    """
    try:
        info = msgspec.json.decode((path / _INFO).read_bytes(), type=known(RunInfo))
    except OSError as exc:
        raise SpecError(
            f"{path} is no run's folder: its run.json cannot be read ({exc.strerror or exc}); "
            "`trireme bench run --out` makes one",
            field="run",
        ) from exc
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{path / _INFO}: {exc}", field="run") from exc
    records = read_lines(path / _RECORDS, LoadRecord, check=check_record)
    has_samples = (path / _SAMPLES).exists()
    samples = read_lines(path / _SAMPLES, ServerSample) if has_samples else Lines(list[ServerSample](), is_cut=False)
    cut = [
        f"The last line of {name} is cut; the {len(items)} in front of it are used."
        for name, (items, is_cut) in ((_RECORDS, records), (_SAMPLES, samples))
        if is_cut
    ]
    info.note = " ".join(filter(None, [info.note, *cut]))
    records.items.sort(key=lambda record: record.due_ns)
    return Run(path=path, info=info, records=records.items, samples=samples.items)


def refuse_used(path: Path) -> None:
    """Raise a SpecError where the folder holds a run already, or a part of one."""
    if found := next((name for name in (_INFO, _RECORDS, _SAMPLES) if (path / name).exists()), None):
        raise SpecError(
            f"{path} holds a run already ({found}); name another folder with --out, or remove it", field="out"
        )
    if path.exists() and not path.is_dir():
        raise SpecError(f"{path} is a file; --out names a folder", field="out")


def environment() -> dict[str, Any]:
    """Return the machine and the versions of the client; the server may share the machine."""
    return {
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := package_version(name))},
    }


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def now() -> str:
    """Return the date for a run, ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
