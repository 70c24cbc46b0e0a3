# SPDX-License-Identifier: Apache-2.0
"""Recorded requests: the moment of each, and the lengths of its prompt and its answer."""

import csv
import datetime
import io
from collections.abc import Iterator
from typing import Annotated

import msgspec

from clients.load.workload_spec import MAX_TOKENS, TraceWorkload
from trireme.base.errors import SpecError
from trireme.base.known_types import known

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceRow(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request of our own format, which has a line of JSON for each."""

    at_s: float
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    input_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)] = 0
    prompt: str | None = None
    tenant: str | None = None
    priority: Annotated[int, msgspec.Meta(ge=1, le=3)] | None = None  # premium, standard, batch


def read_trace(workload: TraceWorkload) -> Iterator[TraceRow]:
    """Yield requests in the order of their moments; seconds count from the first that is taken.

    Raises:
        SpecError: the file cannot be read, or a line is not what it should be.
    """
    path = workload.path
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"the trace {path} cannot be read: {exc}", field="path") from exc
    rows = sorted(_azure(text, path) if workload.format == "azure" else _jsonl(text, path), key=lambda row: row.at_s)
    if not rows:
        raise SpecError(f"the trace {path} has no request", field="path")
    first_s = rows[0].at_s + workload.start_s
    if not any(row.at_s >= first_s and row.output_tokens for row in rows):
        length_s = rows[-1].at_s - rows[0].at_s
        raise SpecError(
            f"the trace {path} has no answered request from start_s ({workload.start_s:g}) on; its last one comes "
            f"{length_s:g} s after its first",
            field="start_s",
        )
    for row in rows:
        if row.at_s < first_s:
            continue
        if row.output_tokens < 1:  # Azure's has some: they made nothing that could be measured
            continue
        row.at_s = (row.at_s - first_s) / workload.speedup
        row.input_tokens = min(row.input_tokens, workload.max_input_tokens or row.input_tokens)
        row.output_tokens = min(row.output_tokens, workload.max_output_tokens or row.output_tokens)
        yield row


def _azure(text: str, path: object) -> Iterator[TraceRow]:
    reader = csv.DictReader(io.StringIO(text))
    if missing := [name for name in _AZURE if name not in (reader.fieldnames or ())]:
        raise SpecError(
            f"{path}, line 1: the header lacks {', '.join(missing)}; Azure's has {', '.join(_AZURE)}", field="path"
        )
    for number, line in enumerate(reader, start=2):
        try:
            yield TraceRow(
                at_s=_seconds(line["TIMESTAMP"]),
                input_tokens=max(1, _count(line["ContextTokens"])),
                output_tokens=_count(line["GeneratedTokens"]),
            )
        except (TypeError, ValueError) as exc:
            raise SpecError(f"{path}, line {number}: is no line of {', '.join(_AZURE)}: {exc}", field="path") from exc


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count <= MAX_TOKENS:
        raise ValueError(f"{count} is no number of tokens")
    return count


def _seconds(stamp: str) -> float:
    """Return the seconds of a stamp with any number of digits, with a zone or none.

    Such as `2023-11-16 18:15:46.6805900` and `2024-05-10 00:00:00.009930+00:00`.
    """
    whole, _, rest = stamp.strip().partition(".")
    digits = rest.split("+")[0].rstrip("Z")
    at = datetime.datetime.fromisoformat(whole.split("+")[0]).replace(tzinfo=datetime.UTC)
    return at.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _jsonl(text: str, path: object) -> Iterator[TraceRow]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=known(TraceRow))
        except msgspec.MsgspecError as exc:
            fields = ", ".join(TraceRow.__struct_fields__)
            raise SpecError(f"{path}, line {number}: {exc}; a line has of {fields}", field="path") from exc
        if row.prompt is None and row.input_tokens < 1:
            raise SpecError(f"{path}, line {number}: needs prompt, or input_tokens of at least 1", field="path")
        yield row
