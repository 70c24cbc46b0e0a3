# SPDX-License-Identifier: Apache-2.0
"""The outcome of one request that an arm of a rollout answered: facts and times, never text."""

from typing import Annotated

import msgspec

# What is sent by clients is bounded as it is read: one figure beyond all sense would spoil every mean.
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e8)]
Word = Annotated[str, msgspec.Meta(max_length=64)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e10)]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one request, as the server that answered it saw it, or its client.

    A server tells more than a client can see, from `queue_ms` to `step_kv_tokens`. Without those a comparison is of
    what clients see, with the arm's own queue in it.

    Attributes:
        arm: "candidate" or "baseline" (`clients.rollout.routing.split`), or an arm's name in an A/B test.
        stratum: stratum of the prompt's length (`ensemble_configs.split.places.stratum_of`).
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
        unit: pseudonym of the request's key (`ensemble_configs.split.places.unit_of`); "": it had none.
        agreement: part of the longer text with which both a shadow's and the user's begin, 0 to 1; None: not compared.
        score: score of a held-out prompt's answer, 0 to 1; `prompt` names it, so that both arms are compared in pairs.
        queue_ms: from its arrival at the model to its first engine step.
        prefill_ms: from its first engine step to its first token.
        num_prompt_tokens: number of tokens of the prompt.
        num_cached_tokens: those of them that were in the KV cache and needed no prefill.
        prefill_seqs: sequences in the batch at the step that made its first token.
        step_seqs: mean number of sequences in the batch over the steps in which it decoded.
        step_prompt_tokens: mean number of prompt tokens that those steps prefilled.
        step_kv_tokens: mean number of tokens of context that those steps read, of all sequences together.
        tenant: tenant of the request; "": none.
    """

    arm: Word
    stratum: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    num_tokens: Tokens = 0
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
    queue_ms: Milliseconds | None = None
    prefill_ms: Milliseconds | None = None
    num_prompt_tokens: Tokens | None = None
    num_cached_tokens: Tokens | None = None
    prefill_seqs: Amount | None = None
    step_seqs: Amount | None = None
    step_prompt_tokens: Amount | None = None
    step_kv_tokens: Amount | None = None
    tenant: Word = ""
