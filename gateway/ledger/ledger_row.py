# SPDX-License-Identifier: Apache-2.0
"""Rows of the ledger, as the journal and the database have them."""

import msgspec

UNSETTLED = "unsettled"  # how a request ended with which its gateway died
SECONDS_A_DAY = 86_400


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request in the ledger; nothing of its prompt and its answer is here.

    Attributes:
        id: of the answer, without the prefix of its kind.
        begun_at_s: seconds since 1970.
        key_id, tenant: of the caller; "": none.
        model: that was asked for.
        answered_by: name of what answered in its place; "": the model itself did.
        tier: that was asked for, where that stands for two models; "": a model was.
        release: that answered; None: the request failed before, or no model of the deployment answered.
        prompt_tokens: of each prompt once, however many answers it has.
        completion_tokens: of all answers, also of those that broke off.
        cached_tokens: of `prompt_tokens`, those that the KV cache had; None: the engine does not tell.
        ttft_s: time to the first text; None: the answer did not stream, or had none.
        duration_s: time to the last byte; None: unsettled.
        cost_nano_usd: cost by the prices of the day, in billionths of a US dollar.
        saved_nano_usd: what these tokens would have cost more at the large model of the tier, or if a kept answer had
            been made.
        finish: OpenAI's reason for the end, or the code of the error; "": the request runs; `UNSETTLED`.
    """

    id: str
    begun_at_s: float
    key_id: str
    tenant: str
    endpoint: str
    model: str
    answered_by: str = ""
    tier: str = ""
    release: int | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    cost_nano_usd: int = 0
    saved_nano_usd: int = 0
    finish: str = ""

    @property
    def day(self) -> int:
        """Return the day in which the request began, in days since 1970 of UTC."""
        return int(self.begun_at_s // SECONDS_A_DAY)


def unsettled(row: LedgerRow) -> LedgerRow:
    """Return the row of a request that had begun when its gateway died."""
    return msgspec.structs.replace(row, finish=UNSETTLED)
