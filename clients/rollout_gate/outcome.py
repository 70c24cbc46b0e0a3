# SPDX-License-Identifier: Apache-2.0
"""The outcome of one request that an arm of a rollout answered: facts and times, never text."""

from typing import Annotated

import msgspec

# What is sent by clients is bounded as it is read: one figure beyond all sense would spoil every mean.
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e8)]
Word = Annotated[str, msgspec.Meta(max_length=64)]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one request, as its client saw it.

    Attributes:
        arm: "candidate" or "baseline" (`clients.rollout.routing.split`), or an arm's name in an A/B test.
        stratum: stratum of the prompt's length (`clients.rollout.routing.split.stratum_of`).
        ttft_ms: from the call to the first text; None: there was none.
        tpot_ms: mean time between tokens after the first; None: fewer than two.
        e2e_ms: from the call to the end.
        num_tokens: number of tokens that were made.
        finish_reason: "stop", "length", or "" where it failed.
        error: the code of the error that ended it, such as "UNAVAILABLE"; "" of one that was answered.
        is_empty: it ended well without any text.
        is_looping: its text ends with the same few words over and over.
        is_disliked: the user said so; None: the user said nothing.
        is_feedback: it reports a user's opinion of a request that was reported before, and nothing else.
        unit: pseudonym of the request's key (`clients.rollout.routing.split.unit_of`); "": it had none.
        agreement: part of the longer text with which both a shadow's and the user's begin, 0 to 1; None: not compared.
        score: score of a held-out prompt's answer, 0 to 1; `prompt` names it, so that both arms are compared in pairs.
    """

    arm: Word
    stratum: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    num_tokens: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0
    finish_reason: Word = ""
    error: Word = ""
    is_empty: bool = False
    is_looping: bool = False
    is_disliked: bool | None = None
    is_feedback: bool = False
    unit: Word = ""
    agreement: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    prompt: str = ""
    score: float | None = None
