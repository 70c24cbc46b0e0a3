# SPDX-License-Identifier: Apache-2.0
"""Prometheus rules as typed data, and as the text of a rule file."""

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import dedent
from typing import Literal

import yaml

HEADER = "# Generated from observability/ by make observe-files\n"
RUNBOOKS = "docs/runbooks/alerts.md"  # here; `trireme observe files --runbooks-url` puts another in its place

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A recording rule, named `level:metric:operation`."""

    record: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()

    def document(self) -> dict[str, object]:
        """Return the rule as Prometheus reads it."""
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.record, "expr": _tidy(self.expr), **labels}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert; its texts are templates of Prometheus."""

    name: str
    expr: str
    lasts: str  # how long the expression has to hold, as a duration of Prometheus
    severity: Severity
    summary: str
    description: str
    runbooks: str = RUNBOOKS

    @property
    def runbook_url(self) -> str:
        """Return the URL of the runbook's heading that says what to do."""
        return f"{self.runbooks}#{self.name.lower()}"

    def document(self) -> dict[str, object]:
        """Return the alert as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": _tidy(self.expr),
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": self.runbook_url,
            },
        }


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: tuple[Record | Alert, ...]

    def document(self) -> dict[str, object]:
        """Return the group as Prometheus reads it."""
        return {"name": self.name, "rules": [rule.document() for rule in self.rules]}


def rule_file(groups: Iterable[Group]) -> str:
    """Return the text of a rule file."""
    return yaml_text({"groups": [group.document() for group in groups]})


def yaml_text(document: object) -> str:
    """Return the text of a generated YAML file; text of several lines is written in several lines."""
    return HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


def _tidy(expr: str) -> str:
    return dedent(expr).strip()


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes text of several lines as a literal block."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _text)
