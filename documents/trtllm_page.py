# SPDX-License-Identifier: Apache-2.0
"""The writer of the tables of `docs/trtllm_versions.md`: where each fact is from, and how two versions differ."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from documents.pages import DOCS, with_tables
from scripts.trtllm_facts import FACTS, known_versions
from scripts.trtllm_names import PARTS
from trireme.base.text_tables import markdown_table

PAGE = DOCS / "trtllm_versions.md"
_ROOT = "TorchLlmArgs"  # what both versions have
_MAX_SHOWN = 60  # characters of a type or a default
_WORD = re.compile(r"\w+")

Fields = dict[str, dict[str, Any]]


def page(document: str) -> str:
    """Return the document with its tables written again."""
    parts = ["## Where it is from"]
    for version in known_versions():
        parts += [f"### {version}", markdown_table(["of", "read", "from", "how sure"], _sources(version))]
    for old, new in pairwise(known_versions()):
        header = ["class", "argument", "change", old, new]
        parts += [f"## From {old} to {new}", markdown_table(header, _differences(old, new))]
    return with_tables(document, {"facts": "\n" + "\n\n".join(parts) + "\n"})


def _files(version: str) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (FACTS / version).glob("*.json")}


def _facts(version: str) -> dict[str, Any]:
    return {name: fact for file in _files(version).values() for name, fact in file.get("classes", {}).items()}


def _sources(version: str) -> Iterator[list[str]]:
    files = _files(version)
    for file, part in PARTS.items():
        if file in files:
            facts = files[file]
            yield list(map(_cell, (part, facts["read"], facts.get("source", ""), facts.get("confidence", ""))))


def _differences(old: str, new: str) -> Iterator[list[str]]:
    before, after = _classes(old), _classes(new)
    replaced = _files(new)["llm_args"].get("replaced", {})
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield [f"`{name}`", "", "class removed", _names(before[name]), replaced.get(name, "")]
        elif name not in before:
            change = "not read before" if name in _named(old) else "class added"
            yield [f"`{name}`", "", change, "", _names(after[name])]
        else:
            moved = _with_bases(name, old) & _with_bases(name, new) & (before[name].keys() ^ after[name].keys())
            for row in _field_differences(before[name], after[name], replaced, name, moved):
                yield [f"`{name}`", *row]


def _named(version: str) -> set[str]:
    """Return the classes that a version's facts name in a type, described or not."""
    return {
        word for fields in _classes(version).values() for of in fields.values() for word in _WORD.findall(of["type"])
    }


def _names(fields: Fields) -> str:
    return ", ".join(f"`{name}`" for name in fields)


def _field_differences(
    before: Fields, after: Fields, replaced: dict[str, str], name: str, moved: set[str]
) -> Iterator[list[str]]:
    for field in dict.fromkeys([*before, *after]):
        was, now = before.get(field), after.get(field)
        if field in moved:
            continue
        if now is None:
            yield [f"`{field}`", "removed", _shown(was), replaced.get(f"{name}.{field}", "")]
        elif was is None:
            yield [f"`{field}`", "added", "", _shown(now)]
        else:
            yield from _changes(field, was, now)


def _changes(field: str, was: dict[str, Any], now: dict[str, Any]) -> Iterator[list[str]]:
    if was.get("default") != now.get("default") or was.get("required") != now.get("required"):
        yield [f"`{field}`", "other default", _default(was), _default(now)]
    if _plain(was["type"]) != _plain(now["type"]):
        yield [f"`{field}`", "other type", _cell(was["type"]), _cell(now["type"])]
    if now.get("deprecated") and not was.get("deprecated"):
        yield [f"`{field}`", "deprecated", "", _cell(now.get("note", "deprecated"))]


def _classes(version: str) -> dict[str, Fields]:
    """Return the classes that can be reached from the LLM's arguments, their bases too, each with its own fields."""
    facts = _facts(version)
    found: dict[str, Fields] = {}
    waiting = [_ROOT]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = facts[name]["fields"]
            text = " ".join(field["type"] for field in found[name].values())
            plain = re.sub(r"Literal\[[^\]]*\]", "", text)
            parts = [*facts[name].get("bases", ()), *_WORD.findall(plain)]
            waiting += [part for part in parts if "fields" in facts.get(part, ())]
    return found


def _with_bases(name: str, version: str) -> set[str]:
    """Return the fields of a class and of its bases: what moved between them is no difference."""
    facts = _facts(version)
    return {*facts[name]["fields"], *(field for base in facts[name]["bases"] for field in _with_bases(base, version))}


def _plain(text: str) -> str:
    """Return a type without the words in which two sources that agree differ."""
    return re.sub(r"\b(Optional|Any|object|dict)\b", "", text)


def _shown(fact: dict[str, Any] | None) -> str:
    assert fact is not None
    return f"{_cell(fact['type'])}, {_default(fact)}"


def _default(fact: dict[str, Any]) -> str:
    return "required" if fact.get("required") else f"`{_short(json.dumps(fact['default']))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
