# SPDX-License-Identifier: Apache-2.0
"""Which salt splits the keys that are known closest to the shares.

A hash spreads keys as chance would: of 100,000 keys the share of one half has a standard deviation of 0.16 points. Of
several salts the best is nearer than any one is likely to be.
"""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clients.rollout.routing.split import place_of
from trireme.base.errors import SpecError

_TRIES = 16


class Salt(NamedTuple):
    """One, and the largest difference between a share that was wanted and the keys' own, 0 to 1."""

    text: str
    off_by: float


def new_salt() -> str:
    """By chance."""
    return secrets.token_hex(8)


def best_salt(keys: Sequence[str], shares: Sequence[float], *, make: Callable[[], str] = new_salt) -> Salt:
    """The best of sixteen: 100,000 keys take two seconds.

    Args:
        keys: at least one.
        shares: of places from 0 on, that the keys below them should meet; from the other end, where the baseline is,
            they are met as well.
    """
    return min((_tried(make(), keys, shares) for _ in range(_TRIES)), key=lambda salt: salt.off_by)


def _tried(text: str, keys: Sequence[str], shares: Sequence[float]) -> Salt:
    places = np.sort([place_of(key, text) for key in keys])
    bounds = np.array([bound for share in shares for bound in (share, 1 - min(share, 1 - share))])
    found = np.searchsorted(places, bounds) / len(places)
    return Salt(text, float(np.abs(found - bounds).max()))


def read_keys(path: Path) -> list[str]:
    """One key a line, each once.

    Raises:
        SpecError: there is none.
    """
    try:
        keys = sorted({line for line in path.read_text(encoding="utf-8").splitlines() if line})
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"cannot read the keys {path}: {exc}; it must be text with a key a line", file=path) from exc
    if not keys:
        raise SpecError(f"{path} holds no key; write one a line, as clients will send them", file=path)
    return keys
