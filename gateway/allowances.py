# SPDX-License-Identifier: Apache-2.0
"""The allowances of callers: what a request may take of limits and budgets, reserved and settled."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType

from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import NOT_BEGUN, ApiError
from gateway.access.caller import Caller
from gateway.ledger.budgets import Budgets
from gateway.ledger.counted_answer import CountedAnswer
from gateway.limits.key_limits import KeyLimits
from gateway.limits.limit_keeper import LimitKeeper, Reserved
from gateway.limits.refusals import holder_of, tenant_account


class Allowances:
    """The allowances of all callers: of their keys, and of the tenants on whose behalf these call.

    Args:
        limits: keep the use of limits.
        budgets: None: no ledger is kept, and whoever has a budget is refused.
        tenants: limits of tenants; others have none.
    """

    def __init__(
        self,
        limits: LimitKeeper,
        budgets: Budgets | None = None,
        tenants: Mapping[str, KeyLimits] = MappingProxyType({}),
    ) -> None:
        self._limits, self._budgets, self._tenants = limits, budgets, dict(tenants)

    @asynccontextmanager
    async def reserved(self, answer: CountedAnswer, caller: Caller) -> AsyncIterator["Allowed"]:
        """Reserve what an answer may take to the end of the block, and settle what it took.

        Raises:
            ApiError: a limit or a budget is reached (429), or neither can be asked (503).
        """
        accounts = [(caller.key_id, caller.limits)]
        if caller.tenant in self._tenants:
            accounts.append((tenant_account(caller.tenant), self._tenants[caller.tenant]))
        estimate = answer.estimate
        async with AsyncExitStack() as stack:
            yield Allowed([
                await stack.enter_async_context(self._of_account(account, limits, answer, estimate))
                for account, limits in accounts
            ])  # fmt: skip

    @asynccontextmanager
    async def _of_account(
        self, account: str, limits: KeyLimits, answer: CountedAnswer, estimate: Usage
    ) -> AsyncIterator[Reserved]:
        async with self._limits.reserved(account, limits, tokens=estimate.total_tokens) as reserved:
            budgets = self._known_budgets(account) if limits.has_budget else None
            if budgets is not None:
                await budgets.reserve(answer.id, account, limits, nano_usd=answer.most_nano_usd(estimate))
            taken: Usage | None = None
            try:
                yield reserved
            except asyncio.CancelledError:
                if not answer.is_streaming:  # nobody knows what it took until then
                    taken = estimate
                raise
            finally:
                taken = taken or answer.made
                reserved.settle(taken.total_tokens)
                if budgets is not None:
                    cost = answer.cost_nano_usd(answer.made)  # as the ledger has it
                    budgets.settle(answer.id, account, nano_usd=cost)

    def _known_budgets(self, account: str) -> Budgets:
        if self._budgets is None:
            raise ApiError(
                f"{holder_of(account)} has a budget, and this gateway keeps no ledger to tell what was spent; tell its "
                "operator",
                code="unavailable",
                status=503,
                headers={NOT_BEGUN: "true"},
            )
        return self._budgets


class Allowed:
    """The parts that one answer has of its caller's limits. Args: `parts`: the key's first."""

    def __init__(self, parts: Sequence[Reserved]) -> None:
        self._parts = parts

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers about the limits: the key's, and the tenant's where the key has none."""
        found: dict[str, str] = {}
        for part in reversed(self._parts):
            found |= part.headers()
        return found
