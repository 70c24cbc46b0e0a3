# SPDX-License-Identifier: Apache-2.0
"""The file of held-out prompts, a JSON object a line, read strictly; `clients.rollout.judging.replay` asks them.

    {"prompt": "What is the capital of France?", "reference": "The capital of France is Paris.", "name": "paris"}

A plan keeps where the file is and its hash, never a prompt, so a rollout that goes on after a kill reads it again.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trireme.base.errors import SpecError

MAX_FILE_BYTES = 8 << 20
MAX_PROMPTS = 2000
MAX_NAME_CHARS = 80
MOST_TOKENS = 1024
_FIELDS = ("prompt", "reference", "name", "max_tokens")
_CORRECT = "correct it and start again"


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, from one line of the file.

    Attributes:
        name: what the log calls it; no other has it.
        text: sent as `text_input`, as it is: with the chat template where the model wants one.
        reference: a right answer; None: the stable release's answer stands for it.
        max_tokens: limit of each answer.
    """

    name: str
    text: str
    reference: str | None = None
    max_tokens: int = 64


class _Wrong(ValueError):
    """A description of what is wrong with a line."""


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """The reference to a file of prompts that a plan keeps.

    Attributes:
        file: its absolute path.
        sha256: digest of its bytes, in hexadecimal.
        num_at_a_time: requests in flight, of both releases together.
    """

    file: str
    sha256: str
    num_prompts: int
    num_at_a_time: int


def held_out_in(file: Path, *, num_at_a_time: int) -> HeldOut:
    """Look through a file before a rollout.

    Raises:
        SpecError: it cannot be read, or a line is wrong.
    """
    data = _read(file)
    return HeldOut(
        file=str(file.resolve()),
        sha256=hashlib.sha256(data).hexdigest(),
        num_prompts=len(parse_prompts(data, file)),
        num_at_a_time=num_at_a_time,
    )


def prompts_of(held_out: HeldOut) -> tuple[Prompt, ...]:
    """Return the prompts that a rollout was started with.

    Raises:
        SpecError: the file cannot be read, or is another one by now.
    """
    file = Path(held_out.file)
    data = _read(file)
    if (found := hashlib.sha256(data).hexdigest()) != held_out.sha256:
        raise SpecError(
            f"{file} has changed since the rollout began: its SHA-256 was {held_out.sha256[:12]}... and is "
            f"{found[:12]}...; start another rollout with the file as it is to be",
            file=file,
        )
    return parse_prompts(data, file)


def parse_prompts(data: bytes, file: Path) -> tuple[Prompt, ...]:
    """Return the prompts in the bytes of a file; lines of white space are left out.

    Args:
        file: named in messages.

    Raises:
        SpecError: by line and field, what is wrong and what is allowed.
    """
    prompts: dict[str, Prompt] = {}
    line_of: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line, number)
            _check_name(prompt.name, line_of)
        except _Wrong as exc:
            raise SpecError(f"{file}, line {number}: {exc}; {_CORRECT}", file=file, line=number) from exc
        prompts[prompt.name], line_of[prompt.name] = prompt, number
        if len(prompts) > MAX_PROMPTS:
            raise SpecError(
                f"{file} has more than {MAX_PROMPTS} prompts; some hundreds tell as much: take a sample", file=file
            )
    if not prompts:
        raise SpecError(f'{file} has no prompts; write one a line, such as {{"prompt": "What is 2 + 2?"}}', file=file)
    return tuple(prompts.values())


def _read(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise SpecError(
                f"the prompts {file} are not a file; they are read again when a rollout goes on: name a JSONL file",
                file=file,
            )
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise SpecError(
            f"cannot read the prompts {file}: {exc.strerror}; name a JSONL file with a prompt a line", file=file
        ) from exc
    if len(data) > MAX_FILE_BYTES:
        raise SpecError(
            f"the prompts {file} have more than {MAX_FILE_BYTES >> 20} MiB; some hundreds of prompts tell as much: "
            "take a sample",
            file=file,
        )
    return data


def _prompt(line: bytes, number: int) -> Prompt:
    fields = _object(line)
    for name in fields:
        if name not in _FIELDS:
            raise _Wrong(f"{_shown(name)} is not a field of a prompt; allowed are {', '.join(_FIELDS)}")
    if "prompt" not in fields:
        raise _Wrong("prompt is missing; it must be text that is not empty")
    reference, max_tokens = fields.get("reference"), fields.get("max_tokens", 64)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or not 1 <= max_tokens <= MOST_TOKENS:
        raise _Wrong(f"max_tokens must be a whole number from 1 to {MOST_TOKENS}, got {_shown(max_tokens)}")
    return Prompt(
        name=_name(fields.get("name", str(number))),
        text=_text("prompt", fields["prompt"]),
        reference=None if reference is None else _text("reference", reference),
        max_tokens=max_tokens,
    )


def _object(line: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(line.decode(), object_pairs_hook=_once)
    except _Wrong:
        raise
    except json.JSONDecodeError as exc:
        raise _Wrong(f"it is not JSON: {exc.msg} (column {exc.colno})") from exc
    except (ValueError, RecursionError) as exc:
        raise _Wrong(f"it is not JSON in UTF-8: {exc}") from exc
    if not isinstance(found, dict):
        raise _Wrong(f"it must be a JSON object with {', '.join(_FIELDS)}, got {_shown(found)}")
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _Wrong(f"{_shown(key)} stands twice; keep one")
        found[key] = value
    return found


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"{field} must be text that is not empty, got {_shown(value)}")
    _check_unicode(field, value)
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
        raise _Wrong(f"name must be 1 to {MAX_NAME_CHARS} printable characters, got {_shown(value)}")
    return value


def _check_name(name: str, line_of: Mapping[str, int]) -> None:
    if name in line_of:
        raise _Wrong(
            f"name {name!r} is that of line {line_of[name]} already; each must be unique, and a line without one has "
            "its number for a name"
        )


def _check_unicode(field: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise _Wrong(f"{field} must be text that UTF-8 can hold; it has a lone surrogate") from exc


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
