# SPDX-License-Identifier: Apache-2.0
"""The similarity of two texts, 0 to 1, which is the score of a held-out prompt."""

import difflib

# The comparison takes up to the square of the length (a text of one letter): 0.4 s at this one, 2 at twice as much.
COMPARED_CHARS = 2000


def similarity(text: str, other: str) -> float:
    """Return twice the characters in common blocks over the characters of both texts, 0 to 1.

    This is Ratcliff and Obershelp's measure. White space at either end does not count, nor text after the first
    `COMPARED_CHARS` characters. Equal texts have 1, two empty ones too; texts of one language that have nothing to do
    with each other have 0.1 to 0.4.

    Source: Ratcliff and Metzener, "Pattern Matching: The Gestalt Approach", Dr. Dobb's Journal, July 1988;
    `difflib.SequenceMatcher.ratio` without its heuristic for junk.
    """
    first, second = text.strip()[:COMPARED_CHARS], other.strip()[:COMPARED_CHARS]
    return 1.0 if first == second else difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()
