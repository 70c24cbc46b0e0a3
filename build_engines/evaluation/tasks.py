# SPDX-License-Identifier: Apache-2.0
"""The items that a release is asked: a file with an item a line, each JSON with task, group, kind, prompt, expected.

    {"task": "facts", "group": "en", "kind": "exact", "prompt": "What is ...?", "expected": " It is ..."}

Figures are kept apart by `group`: a language, a length. `kind` says how the item is judged (`Kind`).
"""

import enum
import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trireme.base.errors import SpecError
from trireme.base.known_types import known


class Kind(enum.StrEnum):
    """The way in which an item is judged."""

    EXACT = "exact"  # the answer must be `expected`, character for character, up to the end token
    NEEDLE = "needle"  # the answer must begin with `expected`, which stands somewhere in the long prompt
    OPEN = "open"  # no right answer: how long is the answer equal to the base's?
    TEXT = "text"  # how likely is `expected` after `prompt`? Held out, never trained on


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item, which is one line of the file."""

    task: str
    kind: Kind
    group: str = "all"
    prompt: str = ""
    expected: str = ""


def load_items(file: Path) -> list[Item]:
    """Return all items of a file, without empty lines.

    Raises:
        SpecError: the file cannot be read, or a line is not an item; the text names the line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"cannot read the tasks {file}: {exc}", file=file) from exc
    items = [_item(line, file, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise SpecError(f"{file} has no items", file=file)
    return items


def _item(line: str, file: Path, number: int) -> Item:
    try:
        item = msgspec.json.decode(line, type=known(Item))
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{file}, line {number}: {exc}", file=file, line=number) from exc
    needed = "expected" if item.kind is Kind.TEXT else "prompt"
    if not getattr(item, needed) or (item.kind is Kind.NEEDLE and not item.expected):
        raise SpecError(f"{file}, line {number}: an item of kind {item.kind} needs {needed}", file=file, line=number)
    return item


def hash_items(file: Path) -> str:
    """Return the SHA-256 of the file, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def sample(items: Sequence[Item], limit: int, *, seed: int) -> list[Item]:
    """Return at most `limit` items of each task and group, in the file's order; the seed decides which."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault((item.task, item.group), []).append(index)
    rng = random.Random(seed)
    chosen = [index for each in groups.values() for index in rng.sample(each, min(limit, len(each)))]
    return [items[index] for index in sorted(chosen)]
