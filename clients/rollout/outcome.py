# SPDX-License-Identifier: Apache-2.0
"""What is told of one request that an arm of a rollout answered: facts and times, never text."""

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to its end, as its client saw it.

    Attributes:
        arm: "candidate" or "baseline" (`clients.rollout.split`), or an arm's name in an A/B test.
        stratum: of the prompt's length (`clients.rollout.split.stratum_of`).
        ttft_ms: from the call to the first text; None: there was none.
        tpot_ms: mean time between tokens after the first; None: fewer than two.
        e2e_ms: from the call to the end.
        num_tokens: that were made.
        finish_reason: "stop", "length", or "" where it failed.
        error: the code of the error that ended it, such as "UNAVAILABLE"; "" of one that was answered.
        is_empty: it ended well without any text.
        is_looping: its text ends with the same few words over and over.
        is_disliked: the user said so; None: the user said nothing.
        score: of a prompt of the held-out set, 0 to 1; `prompt` names it, so that both arms' are compared in pairs.
    """

    arm: str
    stratum: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    num_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    is_empty: bool = False
    is_looping: bool = False
    is_disliked: bool | None = None
    prompt: str = ""
    score: float | None = None
