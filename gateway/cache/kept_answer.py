# SPDX-License-Identifier: Apache-2.0
"""An answer that is kept, the question that it answers, and the two as bytes."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from trireme.base.known_types import known

_VERSION = b"2"  # of the bytes below
# What does not change the text of an answer.
_OF_THE_WAY = (
    "stream", "return_num_input_tokens", "return_num_output_tokens", "return_num_cached_tokens",
    "return_finish_reason", "return_release", "return_token_ids", "priority", "tenant", "deadline_ms",
    "queue_timeout_ms",
)  # fmt: skip
_WITHOUT = dict.fromkeys(_OF_THE_WAY)
_KINDS: tuple[type[Delta], ...] = (Content, Reasoning, CallBegun, Arguments)
_Coded = tuple[int, list[tuple[int, list[str | int]]], str | None, str]  # a piece, with deltas by their kinds


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer that is kept.

    Attributes:
        pieces: with what belongs together in one.
        release: that gave it; None: unknown.
    """

    pieces: list[Piece]
    usage: Usage
    finish_reason: str
    release: int | None


def is_repeatable(request: GenerateRequest) -> bool:
    """Return whether a request has one answer, of text: it is greedy, or its draws have a seed."""
    return not request.return_log_probs and (not request.temperature or request.seed is not None)


def name_of(asked: Asked, *, model: str, owner: str) -> str:
    """Return the name of what is asked, the same for the same question of the same owner alone.

    Args:
        model: that is asked.
        owner: a tenant, or a key: whose answers these are. Nobody gets those of another one.
    """
    requests = [msgspec.to_builtins(msgspec.structs.replace(each, **_WITHOUT)) for each in asked.requests]
    told = (
        owner,
        model,
        asked.endpoint,
        asked.n,
        asked.max_calls,
        sorted(asked.tools),
        asked.prefixes,
        requests,
        asked.tool_choice,
    )
    return hashlib.sha256(_VERSION + msgspec.msgpack.encode(told)).hexdigest()


def packed(answer: KeptAnswer) -> bytes:
    """Return an answer as bytes."""
    coded: list[_Coded] = [
        (piece.choice, [_coded(delta) for delta in piece.deltas], piece.finish_reason, piece.stop_string)
        for piece in answer.pieces
    ]
    return msgspec.msgpack.encode((coded, answer.usage, answer.finish_reason, answer.release))


def unpacked(data: bytes) -> KeptAnswer:
    """Return the answer of some bytes.

    Raises:
        ValueError: they hold none.
    """
    coded, usage, finish_reason, release = _DECODER.decode(data)
    pieces = [
        Piece(choice, [_delta(*each) for each in deltas], reason, stop_string=stop)
        for choice, deltas, reason, stop in coded
    ]
    return KeptAnswer(pieces, usage, finish_reason, release)


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces as few: of each choice one, whose deltas are as long as can be."""
    deltas: dict[int, list[Delta]] = {}
    ends: dict[int, Piece] = {}
    for piece in pieces:
        for delta in piece.deltas:
            _add(deltas.setdefault(piece.choice, []), delta)
        if piece.finish_reason is not None:
            ends[piece.choice] = piece
    return [
        Piece(choice, deltas.get(choice, []), end.finish_reason, stop_string=end.stop_string)
        for choice, end in sorted(ends.items())
    ]


def is_whole(pieces: Sequence[Piece], asked: Asked, usage: Usage) -> bool:
    """Return whether every choice of an answer has its end, and none was cut below the length that was asked for.

    A server under load cuts answers of a low class, which nobody else is to have.
    """
    reasons = {piece.choice: piece.finish_reason for piece in pieces if piece.finish_reason is not None}
    if len(reasons) < asked.num_choices:
        return False
    if "length" not in reasons.values():
        return True
    most = [request.max_tokens for request in asked.requests]
    return AS_MANY_AS_FIT not in most and usage.completion_tokens >= asked.n * sum(most)


def _add(deltas: list[Delta], new: Delta) -> None:
    match deltas[-1:], new:
        case [Content(before)], Content(text):
            deltas[-1] = Content(before + text)
        case [Reasoning(before)], Reasoning(text):
            deltas[-1] = Reasoning(before + text)
        case [Arguments(index, before)], Arguments(new_index, text) if index == new_index:
            deltas[-1] = Arguments(index, before + text)
        case _:
            deltas.append(new)


def _coded(delta: Delta) -> tuple[int, list[str | int]]:
    return _KINDS.index(type(delta)), list(msgspec.structs.astuple(delta))


def _delta(kind: int, values: list[str | int]) -> Delta:
    if not 0 <= kind < len(_KINDS):
        raise ValueError(f"a kind of {kind}")
    return msgspec.convert(dict(zip(_KINDS[kind].__struct_fields__, values, strict=True)), known(_KINDS[kind]))


_DECODER = msgspec.msgpack.Decoder(known(tuple[list[_Coded], Usage, str, int | None]))
