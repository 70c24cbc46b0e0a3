# SPDX-License-Identifier: Apache-2.0
"""The deltas of an answer joined, in the order in which they came."""

from collections.abc import Iterable, Sequence

from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, DeltaReader, Reasoning
from clients.openai_api.tool_calls.reader_choice import Style, call_reader

TOOLS: dict[str, dict[str, object]] = {name: {} for name in ("weather", "now", "search_web")}

Part = str | tuple[str, str]  # content, or a call's name and arguments; reasoning is ("", text)


def joined(deltas: Iterable[Delta]) -> list[Part]:
    """Return content as texts and calls as pairs; each index, id and order of deltas is checked."""
    parts: list[Part] = []
    ids: list[str] = []
    for delta in deltas:
        last = parts[-1] if parts else None
        match delta:
            case Content(text):
                assert text
                parts[-1:] = [last + text] if isinstance(last, str) else [*parts[-1:], text]
            case Reasoning(text):
                assert text
                assert isinstance(last, tuple) or not parts
                parts = [("", (last[1] if isinstance(last, tuple) else "") + text)]
            case CallBegun(index, call_id, name):
                assert index == len(ids)
                ids.append(call_id)
                parts.append((name, ""))
            case Arguments(index, text):
                assert text
                assert index == len(ids) - 1
                assert isinstance(last, tuple)
                parts[-1] = (last[0], last[1] + text)
    assert len(set(ids)) == len(ids)
    return parts


def read_all(reader: DeltaReader, pieces: Sequence[str]) -> list[Part]:
    return joined([delta for piece in pieces for delta in reader.read(piece)] + reader.end())


def read_style(style: Style, text: str) -> list[Part]:
    """Return a whole answer, which is the same a character at a time."""
    whole = read_all(call_reader(style, TOOLS), [text])
    assert read_all(call_reader(style, TOOLS), list(text)) == whole
    return whole
