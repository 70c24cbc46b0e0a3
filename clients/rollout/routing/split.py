# SPDX-License-Identifier: Apache-2.0
"""Which arm of a rollout a request belongs to: by its key, by a share, the same wherever it is asked.

A key's place is a number in [0, 1) that its hash gives, salted by the rollout. The rollout cuts [0, 1) into slices and
says of each who answers (`clients.rollout.traffic`); a client needs nothing but them.
"""

import hashlib
import math
import random
import threading
from collections.abc import Sequence

import msgspec

CANDIDATE, BASELINE, STABLE = "candidate", "baseline", "stable"
_GOLDEN = (math.sqrt(5) - 1) / 2
_PLACES = 2**53  # what a float holds exactly


class Slice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose the places below `upto` are, from where the slice before it ends.

    Attributes:
        arm: what its requests count for.
        model: that answers them.
        release: that they name; None: none.
        url: ``host:port`` of the server that answers; "": the client's own.
        is_compared: the rollout hears how they end.
        has_fallback: the stable release answers what this one cannot take.
    """

    upto: float
    arm: str
    model: str
    release: int | None = None
    url: str = ""
    is_compared: bool = False
    has_fallback: bool = False


def slice_at(slices: Sequence[Slice], place: float) -> Slice:
    """The one that a place in [0, 1) lies in."""
    return next((each for each in slices if place < each.upto), slices[-1])


def place_of(key: str, salt: str) -> float:
    """Where a key lies: uniform in [0, 1), and always the same under one salt."""
    return (int.from_bytes(_digest(key, salt), "big") >> 11) / _PLACES


def unit_of(key: str, salt: str) -> str:
    """What stands for a key in a log: it tells the same key from others, and not who that is."""
    return _digest(key, f"unit {salt}").hex()


def _digest(key: str, salt: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8, key=salt.encode()[:64]).digest()


class Places:
    """Places of requests that have no key, spread evenly over each stratum; for any number of threads.

    Multiples of the golden ratio (Weyl's sequence) miss any share by four requests at most in thousands, where
    places by chance would miss it by the square root of their number. Each client begins at a place of its own, or all
    that send a single request would have the same arm.
    """

    def __init__(self, first: float | None = None) -> None:
        """Args: `first`: the place of the first request; None: by chance."""
        self._first = random.random() if first is None else first
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def next(self, stratum: int) -> float:
        """The place of the next request of a stratum."""
        with self._lock:
            count = self._counts.get(stratum, 0)
            self._counts[stratum] = count + 1
        return (self._first + (count + stratum * 0.5) * _GOLDEN) % 1.0


def stratum_of(num_prompt_chars: int) -> int:
    """Prompts of about the same length: one stratum for each doubling, from 64 characters up; 0 to 10."""
    return min(max(num_prompt_chars // 64, 0).bit_length(), 10)
