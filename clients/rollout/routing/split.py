# SPDX-License-Identifier: Apache-2.0
"""The split of requests among the arms of a rollout: by key or by share, with equal results in every client.

A key's place is a number in [0, 1) that its hash gives, with the rollout's hash seed. The rollout cuts [0, 1) into
slices, each with the model that answers it (`clients.rollout.traffic`); a client needs nothing but the slices.
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
    """A part of [0, 1) that one model answers: the places below `upto`, from the end of the slice before.

    Attributes:
        arm: arm that the requests count for.
        model: model that answers the requests.
        release: release that the requests name; None: none.
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
    """Return the slice that a place in [0, 1) lies in."""
    return next((each for each in slices if place < each.upto), slices[-1])


def place_of(key: str, hash_seed: str) -> float:
    """Return the place of a key, uniform in [0, 1) and constant under one hash seed."""
    return (int.from_bytes(_digest(key, hash_seed), "big") >> 11) / _PLACES


def unit_of(key: str, hash_seed: str) -> str:
    """Return the pseudonym of a key for a log: it tells keys apart, and does not reveal them."""
    return _digest(key, f"unit {hash_seed}").hex()


def _digest(key: str, hash_seed: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8, key=hash_seed.encode()[:64]).digest()


class Places:
    """The places of requests that have no key, spread evenly over each stratum; for any number of threads.

    Multiples of the golden ratio (Weyl's sequence) miss any share by four requests at most in thousands, where
    places by chance would miss it by the square root of their number. Each client begins at a place of its own, or all
    that send a single request would have the same arm.
    """

    def __init__(self, first: float | None = None) -> None:
        """Begin at a place.

        Args:
            first: the place of the first request; None: by chance.
        """
        self._first = random.random() if first is None else first
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def next(self, stratum: int) -> float:
        """Return the place of the next request of a stratum."""
        with self._lock:
            count = self._counts.get(stratum, 0)
            self._counts[stratum] = count + 1
        return (self._first + (count + stratum * 0.5) * _GOLDEN) % 1.0


def stratum_of(num_prompt_chars: int) -> int:
    """Return the stratum of a prompt's length, 0 to 10: one for each doubling, from 64 characters up."""
    return min(max(num_prompt_chars // 64, 0).bit_length(), 10)
