# SPDX-License-Identifier: Apache-2.0
"""The agreement of two greedy texts, for requests that a shadow answers too."""


def agreement(one: str, other: str) -> float:
    """Return the part of the longer text that both begin with, 0 to 1; greedy texts part at a differing token."""
    if one == other:
        return 1.0
    shorter, longer = sorted((one, other), key=len)
    num_alike = next((n for n, letter in enumerate(shorter) if letter != longer[n]), len(shorter))
    return num_alike / len(longer)
