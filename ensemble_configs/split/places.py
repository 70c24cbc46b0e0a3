# SPDX-License-Identifier: Apache-2.0
"""The place of a request in a split: a number in [0, 1), by its key or spread evenly, with equal results everywhere.

A key's place is what its hash gives with the rollout's hash seed. A rollout cuts [0, 1) into shares, each with the
release that answers it.
"""

import hashlib
import math
import random
import threading

_GOLDEN = (math.sqrt(5) - 1) / 2
_PLACES = 2**53  # what a float holds exactly


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
