# SPDX-License-Identifier: Apache-2.0
"""A writer of protobuf text from plain data: the little of the format that a `config.pbtxt` needs.

Google's own printer leaves out fields that hold their default, and Triton needs ``max_batch_size: 0`` written out; it
also would make every reader of a deployment install a Triton client. Tests parse what this writes with Triton's
`ModelConfig`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence


class Symbol(str):
    """An enum value or another bare word."""

    __slots__ = ()


def to_pbtxt(message: Mapping[str, object]) -> str:
    """Return the protobuf text of a message; a sequence is a repeated field, inline if it holds numbers or symbols."""
    return "".join(f"{line}\n" for line in _message(message))


def _message(message: Mapping[str, object]) -> Iterator[str]:
    for key, value in message.items():
        yield from _field(key, value)


def _field(key: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        body = list(_message(value))
        if not body:
            yield f"{key} {{}}"
            return
        yield f"{key} {{"
        yield from (f"  {line}" for line in body)
        yield "}"
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if all(isinstance(item, int | float | Symbol) for item in value):
            yield f"{key}: [{', '.join(_scalar(item) for item in value)}]"
        else:
            for item in value:
                yield from _field(key, item)
    else:
        yield f"{key}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Symbol | int | float):
        return str(value)
    if isinstance(value, str):
        # Protobuf text understands the escapes of JSON but for those beyond U+FFFF, which need none.
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"a config field holds text, numbers, symbols, mappings or sequences of these, not {value!r}")
