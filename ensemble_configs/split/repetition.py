# SPDX-License-Identifier: Apache-2.0
"""The test for a text that ends in repetition, the commonest way in which a broken model shows."""

_MAX_PERIOD = 64  # characters
_MIN_REPEATS = 6
_MIN_LOOP = 96  # characters: a row of dashes is no loop


def ends_in_repetition(text: str) -> bool:
    """Return whether a text ends with at most 64 characters, repeated at least six times in a row."""
    for period in range(1, _MAX_PERIOD + 1):
        length = max(period * _MIN_REPEATS, _MIN_LOOP)
        tail = text[-length:]
        if len(tail) == length and tail[period:] == tail[:-period]:
            return True
    return False
