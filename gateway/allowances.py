# SPDX-License-Identifier: Apache-2.0
"""The allowances of callers: what a request may take of its key's limits and budget, reserved and settled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from gateway.access.caller import Caller
from gateway.answer import Answer
from gateway.ledger.budgets import Budgets
from gateway.limits.limit_keeper import LimitKeeper, Reserved

# For the reservation alone: what is not taken comes back with the end of the request.
_CHARS_PER_TOKEN = 4
_USUAL_ANSWER = 512  # of one that may be as long as the model allows


class Allowances:
    """The allowances of all callers.

    Args:
        limits: keep the use of limits.
        budgets: None: no ledger is kept, and keys with a budget are refused.
    """

    def __init__(self, limits: LimitKeeper, budgets: Budgets | None = None) -> None:
        self._limits, self._budgets = limits, budgets

    @asynccontextmanager
    async def reserved(self, answer: Answer, caller: Caller) -> AsyncIterator[Reserved]:
        """Reserve what an answer may take to the end of the block, and settle what it took.

        Raises:
            ApiError: a limit or the budget is reached (429), or neither can be asked (503).
        """
        estimate = _estimate(answer.asked)
        async with self._limits.reserved(caller.key_id, caller.limits, tokens=estimate.total_tokens) as reserved:
            has_budget = caller.limits.has_budget
            if has_budget:
                await self._known_budgets().reserve(
                    answer.id, caller.key_id, caller.limits, nano_usd=answer.model.cost_nano_usd(estimate)
                )
            taken: Usage | None = None
            try:
                yield reserved
            except asyncio.CancelledError:
                if not answer.asked.is_streaming:  # nobody knows what it took until then
                    taken = estimate
                raise
            finally:
                taken = taken or answer.deltas.usage
                reserved.settle(taken.total_tokens)
                if has_budget:
                    cost = answer.model.cost_nano_usd(answer.deltas.usage)  # as the ledger has it
                    self._known_budgets().settle(answer.id, caller.key_id, nano_usd=cost)

    def _known_budgets(self) -> Budgets:
        if self._budgets is None:
            raise ApiError(
                "this key has a budget, and this gateway keeps no ledger to tell what was spent; tell its operator",
                code="unavailable",
                status=503,
            )
        return self._budgets


def _estimate(asked: Asked) -> Usage:
    """Return what a body may take, before a tokenizer has seen it."""
    num_prompt = num_answer = 0
    for request in asked.requests:
        num_chars = request.num_prompt_chars + (len(msgspec.json.encode(request.tools)) if request.tools else 0)
        num_prompt += num_chars // _CHARS_PER_TOKEN
        most = _USUAL_ANSWER if request.max_tokens == AS_MANY_AS_FIT else request.max_tokens
        num_answer += most * asked.n
    return Usage(num_prompt, num_answer)
