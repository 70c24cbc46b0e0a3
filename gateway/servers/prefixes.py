# SPDX-License-Identifier: Apache-2.0
"""The beginnings of prompts that a server has had, by which its KV cache is guessed; and those of a prompt.

A prompt is cut into pieces, each message by itself, and each piece's number follows from all pieces before it. So two
prompts have their first numbers in common as far as they are the same, and the next turn of a conversation begins with
all numbers of the last one.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from clients.infer_messages import GenerateRequest

_PIECE_CHARS = 256  # 64 tokens, more or less: a KV cache block of TensorRT-LLM
_MAX_PIECES = 4096  # of a prompt
_MAX_KEPT = 200_000  # pieces of a server: up to 50 MB of text


def numbers_of(request: GenerateRequest, *, session: str = "", tenant: str = "") -> list[int]:
    """Return the numbers of a prompt's pieces; with a session its number is before them.

    Args:
        session: name that its caller gives a conversation; "": none.
        tenant: whose prompts alone these are; a server's cache may be salted with it.
    """
    number = hash(tenant)
    numbers = [hash((number, "session", session))] if session else []
    for piece in _pieces(request):
        number = hash((number, piece))
        numbers.append(number)
        if len(numbers) == _MAX_PIECES:
            break
    return numbers


def _pieces(request: GenerateRequest) -> Iterator[str]:
    if request.tools:
        yield msgspec.json.encode(request.tools).decode()
    for message in request.messages or ():
        text = msgspec.json.encode(message).decode()
        yield from (text[begin : begin + _PIECE_CHARS] for begin in range(0, len(text), _PIECE_CHARS))
    text = request.text_input or ""  # of which nobody knows where it goes on: whole pieces alone
    for begin in range(0, len(text) - _PIECE_CHARS + 1, _PIECE_CHARS):
        yield text[begin : begin + _PIECE_CHARS]


class Prefixes:
    """The prompts that one server has had, those of late."""

    def __init__(self, max_kept: int = _MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: OrderedDict[int, bool] = OrderedDict()  # whether a prompt ended there

    def num_had(self, numbers: Sequence[int]) -> int:
        """Return how many of a prompt's pieces, from its beginning, the server has had."""
        for index, number in enumerate(numbers):
            if number not in self._kept:
                return index
        return len(numbers)

    def has_begun(self, numbers: Sequence[int]) -> bool:
        """Return whether a prompt goes on with one that the server had, as the next turn of a conversation does."""
        return any(self._kept.get(number, False) for number in numbers)

    def add(self, numbers: Sequence[int]) -> None:
        """Note that the server has a prompt now."""
        for number in reversed(numbers):  # a beginning is worth more than what follows: it goes last
            self._kept.setdefault(number, False)
            self._kept.move_to_end(number)
        if numbers:
            self._kept[numbers[-1]] = True
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Note that the server's cache is empty, for it was started again."""
        self._kept.clear()
