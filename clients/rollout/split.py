# SPDX-License-Identifier: Apache-2.0
"""Which arm of a rollout a request belongs to: by its key, by a share, the same wherever it is asked.

A key's place is a number in [0, 1) that its hash gives, salted by the rollout. The candidate takes the places below its
share; so as the share grows, keys only ever move into the candidate, and each at most once. The baseline, an equal
part of the stable release's requests that the candidate is compared with, takes as many places at the other end. What
lies between is stable too, and is not compared.
"""

import hashlib
import math
import random
import threading

import msgspec

from ensemble_configs.errors import RequestError

CANDIDATE, BASELINE, STABLE = "candidate", "baseline", "stable"
_GOLDEN = (math.sqrt(5) - 1) / 2
_PLACES = 2**53  # what a float holds exactly


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of one moment.

    Attributes:
        salt: the rollout's own, so that two rollouts do not try the same users first.
        share: of the requests, 0 to 1, that the candidate answers.
    """

    salt: str
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise RequestError(f"share must be between 0 and 1, got {self.share}", field="share", value=self.share)

    def arm(self, place: float) -> str:
        """Of a place in [0, 1): `CANDIDATE`, `BASELINE` or `STABLE`."""
        if place < self.share:
            return CANDIDATE
        return BASELINE if place >= 1 - min(self.share, 1 - self.share) else STABLE

    def is_compared(self, place: float) -> bool:
        """Whether the gate hears of it: of either arm the same share, also where the candidate has more than half."""
        return place < min(self.share, 1 - self.share) or self.arm(place) == BASELINE

    def place(self, key: str) -> float:
        """Where a key lies: uniform in [0, 1), and always the same under one salt."""
        digest = hashlib.blake2b(key.encode(), digest_size=8, key=self.salt.encode()[:64]).digest()
        return (int.from_bytes(digest, "big") >> 11) / _PLACES


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
