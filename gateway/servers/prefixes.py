# SPDX-License-Identifier: Apache-2.0
"""The beginnings of prompts that a server has in its KV cache: as it tells, or as guessed by what it was sent.

What they are called is in `ensemble_configs.chat.prefix_numbers`. A server that tells KV events
(`gateway.servers.cache_feed`) is believed, and so it is known what it has lost, and what others have sent there. What
was sent a moment ago counts as well, for the server has not told of it yet.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from clients.infer_messages import GenerateRequest
from ensemble_configs.chat.prefix_numbers import named_number, prompt_prefix

_MAX_KEPT = 200_000  # pieces of a server: up to 50 MB of text
_UNTOLD_S = 2.0  # before a server that tells is believed about what it was sent


def numbers_of(request: GenerateRequest, *, session: str = "", tenant: str = "") -> list[int]:
    """Return the numbers of a prompt's pieces; with a session its number is before them.

    Args:
        session: name that its caller gives a conversation; "": none.
        tenant: whose prompts alone these are; a server's cache may be salted with it.
    """
    adapter = request.lora_name or ("" if request.lora_task_id is None else str(request.lora_task_id))
    found = prompt_prefix(
        messages=[msgspec.json.encode(message) for message in request.messages or ()],
        tools=msgspec.json.encode(request.tools) if request.tools else b"",
        text=b"" if request.messages else (request.text_input or "").encode(errors="surrogatepass"),
        tenant=tenant,
        adapter=adapter,
    ).numbers
    return [named_number("session", f"{len(tenant)} {tenant}{session}"), *found] if session else found


class _Sent(NamedTuple):
    is_end: bool  # whether a prompt ended there
    at_s: float


@dataclass
class _Told:
    numbers: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)


class Prefixes:
    """The beginnings that one server has.

    Args:
        max_kept: of those that were sent there, the newest.
        now_s: seconds of a clock that nobody sets.
    """

    def __init__(self, max_kept: int = _MAX_KEPT, now_s: Callable[[], float] = time.monotonic) -> None:
        self._max_kept, self._now_s = max_kept, now_s
        self._sent: OrderedDict[int, _Sent] = OrderedDict()
        self._told: dict[str, _Told] = {}  # by engine and release, as `tensorrt_llm/1`

    def num_had(self, numbers: Sequence[int], *, engine: str | None = "", is_session: bool = False) -> int:
        """Return how many of a prompt's pieces, from its beginning, the server has.

        Args:
            engine: Triton's name of the one that is asked; "": any; None: engines have other numbers, so that what
                the server was sent counts.
            is_session: whether the first of the numbers is a session's, of which a server does not tell.
        """
        told = self._told_of(engine)
        since_s = self._now_s() - _UNTOLD_S
        for index, number in enumerate(numbers):
            sent = self._sent.get(number)
            is_had = sent is not None and (not told or sent.at_s >= since_s or (is_session and index == 0))
            if not is_had and not any(number in each.numbers for each in told):
                return index
        return len(numbers)

    def has_begun(self, numbers: Sequence[int], *, engine: str | None = "") -> bool:
        """Return whether a prompt goes on with one that the server has, as the next turn of a conversation does."""
        told = self._told_of(engine)
        since_s = self._now_s() - _UNTOLD_S
        for number in numbers:
            sent = self._sent.get(number)
            if sent is not None and sent.is_end and (not told or sent.at_s >= since_s):
                return True
            if any(number in each.ends for each in told):
                return True
        return False

    def add(self, numbers: Sequence[int]) -> None:
        """Note that the server was sent a prompt, and has begun to answer."""
        now_s = self._now_s()
        for number in reversed(numbers):  # a beginning is worth more than what follows: it goes last
            before = self._sent.get(number)
            self._sent[number] = _Sent(before is not None and before.is_end, now_s)
            self._sent.move_to_end(number)
        if numbers:
            self._sent[numbers[-1]] = _Sent(True, now_s)
        while len(self._sent) > self._max_kept:
            self._sent.popitem(last=False)

    def clear(self) -> None:
        """Note that the server's cache is empty, for it was started again."""
        self._sent.clear()
        for told in self._told.values():
            told.numbers.clear()
            told.ends.clear()

    def begin_to_tell(self, engines: Iterable[str]) -> None:
        """Note that the server tells what these engines have; each has nothing until it tells."""
        self._told = {engine: _Told() for engine in engines}

    def stop_telling(self) -> None:
        """Note that the server tells nothing now: what it was sent counts."""
        self._told.clear()

    def note_stored(self, engine: str, numbers: Iterable[int], ends: Iterable[int]) -> None:
        """Note what an engine tells that it has, beside what it has told."""
        told = self._told.setdefault(engine, _Told())
        told.numbers.update(numbers)
        told.ends.update(ends)

    def note_removed(self, engine: str, numbers: Iterable[int]) -> None:
        """Note what an engine tells that it has lost."""
        told = self._told.setdefault(engine, _Told())
        for number in numbers:
            told.numbers.discard(number)
            told.ends.discard(number)
            self._sent.pop(number, None)

    def note_cleared(self, engine: str) -> None:
        """Note that an engine has lost all, and with it what was sent to the server."""
        self._told[engine] = _Told()
        self._sent.clear()

    def _told_of(self, engine: str | None) -> list[_Told]:
        """Return what the releases of an engine tell; none: nobody tells."""
        if engine is None or not self._told:
            return []
        return [told for name, told in self._told.items() if not engine or name.rpartition("/")[0] == engine]
