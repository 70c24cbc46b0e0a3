# SPDX-License-Identifier: Apache-2.0
"""A span that is over, as plain data for `serving.telemetry.span_export`, and the part of an error that it may hold."""

import re

import msgspec

from serving.telemetry.trace_context import TraceContext
from trireme.base.errors import ServingError

Attribute = str | int | float | bool | list[str]

_TOKEN = re.compile(r"\[([A-Z_]+)((?: \w+=(?:\"(?:[^\"\\]|\\.)*\"|[^\s\[\]\"=]+))*)\]")
_TOLD_FACTS = re.compile(r" ((?:reason|field)=\w{1,64})(?= |$)", re.ASCII)


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span that is over; times are in ns of the system's clock."""

    name: str
    context: TraceContext  # its own
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Attribute]
    events: list[tuple[str, int]] = []  # ascending
    error: str | None = None  # None: it went well
    is_entry: bool = False  # where a request enters this process


def told_of(error: ServingError | str) -> str:
    """Return an error without its text and values, which may quote the prompt: ``UNAVAILABLE reason=queue_full``."""
    text = str(error)
    found = _TOKEN.search(text)
    if found is None:
        return error.code if isinstance(error, ServingError) else "INTERNAL"
    return " ".join([found[1], *_TOLD_FACTS.findall(found[2])])
