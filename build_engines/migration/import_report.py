# SPDX-License-Identifier: Apache-2.0
"""The report on every setting of an old repository: carried, implied, or lost, each with its reason."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

UNFILLED = "not filled"  # the note of a value that is a placeholder still


class Outcome(StrEnum):
    """The class of a setting; each setting has exactly one."""

    CARRIED = "carried"
    IMPLIED = "implied"
    LOST = "lost"


HEADINGS = {
    Outcome.CARRIED: "carried into the deployment",
    Outcome.IMPLIED: "implied: needs no setting here",
    Outcome.LOST: "CANNOT be carried",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict of a rule on one setting."""

    outcome: Outcome
    why: str = ""  # lost: the reason and what to do instead
    where: str = ""  # carried: the deployment's field
    fields: dict[str, object] = field(default_factory=dict)  # dotted path in the deployment: its value


def carried(where: str, value: object, why: str = "") -> Verdict:
    """Return the verdict that the setting is a field of the deployment."""
    return Verdict(Outcome.CARRIED, why, where, {where: value})


def implied(why: str) -> Verdict:
    """Return the verdict that Trireme always does what the setting asks for, or that the setting did nothing."""
    return Verdict(Outcome.IMPLIED, why)


def lost(why: str, **fields: object) -> Verdict:
    """Return the verdict that the deployment cannot have the setting; `why` ends with what to do instead."""
    return Verdict(Outcome.LOST, why, fields=fields)


@dataclass(frozen=True)
class Entry:
    """A line of the report."""

    setting: str  # "tensorrt_llm.max_beam_width", "engine.version"
    value: str  # as it stands in the old file; "" where it is not set
    verdict: Verdict
    note: str = ""  # "not filled", "not a number"

    def __str__(self) -> str:
        shown = f" = {self.value}" if self.value and self.note != UNFILLED else ""
        note = f" ({self.note})" if self.note else ""
        target = f" -> {self.verdict.where}" if self.verdict.where else ""
        why = f": {self.verdict.why}" if self.verdict.why else ""
        return f"{self.setting}{shown}{note}{target}{why}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of an import."""

    repository: Path
    kind: str  # inflight_batcher_llm or llmapi
    deployment: Path
    entries: tuple[Entry, ...]

    def of(self, outcome: Outcome) -> list[Entry]:
        """Return the entries of one class, in the order of the old files."""
        return [entry for entry in self.entries if entry.verdict.outcome is outcome]

    def to_text(self) -> str:
        """Return the report for people."""
        lines = [f"{self.repository} ({self.kind}) -> {self.deployment}"]
        for outcome, heading in HEADINGS.items():
            entries = self.of(outcome)
            lines += ["", f"{heading} ({len(entries)})", *(f"  {entry}" for entry in entries)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the report as JSON."""
        data = {
            "repository": str(self.repository),
            "kind": self.kind,
            "deployment": str(self.deployment),
            "counts": {outcome: len(self.of(outcome)) for outcome in Outcome},
            "settings": [
                {
                    "setting": entry.setting,
                    "value": entry.value,
                    **{name: getattr(entry.verdict, name) for name in ("outcome", "where", "why")},
                    "note": entry.note,
                }
                for entry in self.entries
            ],
        }
        return json.dumps(data, indent=2)


def nested(entries: Iterable[Entry]) -> dict[str, object]:
    """Return the deployment's data: every entry's fields, dotted paths as mappings.

    A value of None is left out.
    """
    data: dict[str, object] = {}
    for entry in entries:
        for path, value in entry.verdict.fields.items():
            if value is None:
                continue
            *parents, last = path.split(".")
            inner: Any = data
            for name in parents:
                inner = inner.setdefault(name, {})
            inner[last] = value
    return data
