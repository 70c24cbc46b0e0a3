# SPDX-License-Identifier: Apache-2.0
"""The results that pages are written from: the newest of each name, and the line that names its file and machine."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.support.report import RESULTS, is_clean

Document = Mapping[str, Any]


def newest(name: str) -> Path:
    """Return the file of the newest result of a name, by its date."""
    return max(RESULTS.glob(f"{name}_[0-9]*.json"))


def has_result(name: str) -> bool:
    """Return whether there is a result of a name."""
    return any(RESULTS.glob(f"{name}_[0-9]*.json"))


def latest(name: str) -> Document:
    """Return the newest result of a name."""
    return read(newest(name))


def read(path: Path) -> Document:
    """Return the result in a file."""
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def source(*names: str) -> str:
    """Return a line that names the newest results, with processor and load of each; a file's name has its date."""
    return "; ".join(source_of(newest(name)) for name in names) + "."


def source_of(path: Path) -> str:
    """Return the words that name one result, with its processor and load."""
    result = read(path)
    where = result["environment"]
    processor = where["cpu"].replace("(R)", "").partition(" Processor")[0]
    return f"`benchmarks/results/{path.name}` ({processor}, load {where['load_1min']:.1f}{no_clean_commit(result)})"


def with_interval(found: Document) -> str:
    """Return a median with its interval."""
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def no_clean_commit(result: Document) -> str:
    """Return a remark where a part of a result names no commit, or was measured on a tree that no commit holds."""
    environments = (part["environment"] for part in parts_of(result) if "environment" in part)
    return "" if all(is_clean(each.get("commit") or "") for each in environments) else ", of no clean commit"


def parts_of(value: object) -> Iterator[Document]:
    """Yield every object in a result, the result itself first."""
    if isinstance(value, Mapping):
        yield value
        for each in value.values():
            yield from parts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from parts_of(each)
