# SPDX-License-Identifier: Apache-2.0
"""The search for the hash seed that splits known keys closest to the shares.

A hash spreads keys as chance would: of 100,000 keys the share of one half has a standard deviation of 0.16 points. Of
several seeds the best is nearer than any one is likely to be.
"""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ensemble_configs.split.places import place_of
from trireme.base.errors import SpecError

_TRIES = 16


class HashSeed(NamedTuple):
    """A hash seed, and the largest difference between a wanted share and the keys' share, 0 to 1."""

    text: str
    off_by: float


def new_hash_seed() -> str:
    """Return a random hash seed."""
    return secrets.token_hex(8)


def best_hash_seed(
    keys: Sequence[str], shares: Sequence[float], *, make: Callable[[], str] = new_hash_seed
) -> HashSeed:
    """Return the best of sixteen hash seeds; 100,000 keys take two seconds.

    Args:
        keys: at least one.
        shares: bounds of places from 0 on that the keys should meet; from the other end, where the baseline is, they
            are met as well.
    """
    return min((_tried(make(), keys, shares) for _ in range(_TRIES)), key=lambda seed: seed.off_by)


def _tried(text: str, keys: Sequence[str], shares: Sequence[float]) -> HashSeed:
    places = np.sort([place_of(key, text) for key in keys])
    bounds = np.array([bound for share in shares for bound in (share, 1 - min(share, 1 - share))])
    found = np.searchsorted(places, bounds) / len(places)
    return HashSeed(text, float(np.abs(found - bounds).max()))


def read_keys(path: Path) -> list[str]:
    """Return the keys in a file with one key a line, each once, in order.

    Raises:
        SpecError: the file cannot be read, or has no key.
    """
    try:
        keys = sorted({line for line in path.read_text(encoding="utf-8").splitlines() if line})
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"cannot read the keys {path}: {exc}; it must be text with a key a line", file=path) from exc
    if not keys:
        raise SpecError(f"{path} holds no key; write one a line, as clients will send them", file=path)
    return keys
