# SPDX-License-Identifier: Apache-2.0
"""Whether a text ends in a loop, the commonest way in which a broken model shows."""

_MAX_PERIOD = 64  # characters
_MIN_REPEATS = 6
_MIN_LOOP = 96  # characters: a row of dashes is no loop


def is_looping(text: str) -> bool:
    """The text's end says the same thing, of at most 64 characters, at least six times in a row."""
    for period in range(1, _MAX_PERIOD + 1):
        length = max(period * _MIN_REPEATS, _MIN_LOOP)
        tail = text[-length:]
        if len(tail) == length and tail[period:] == tail[:-period]:
            return True
    return False
