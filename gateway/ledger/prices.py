# SPDX-License-Identifier: Apache-2.0
"""The cost of a request by the prices of its model."""

from decimal import ROUND_HALF_EVEN, Decimal

from clients.openai_api.answer_deltas import Usage
from ensemble_configs.spec.price_spec import PriceSpec

_NANO_PER_MICRO = 1000  # a price in dollars for a million tokens is one in millionths of a dollar for a token


def cost_nano_usd(price: PriceSpec | None, usage: Usage) -> int:
    """Return what a request costs in billionths of a US dollar, rounded once; 0 without a price.

    Prompt tokens that the KV cache had cost `cached_input`; where the engine does not tell, all cost `input`.
    """
    if price is None:
        return 0
    cached = usage.cached_tokens or 0
    cached_price = price.input if price.cached_input is None else price.cached_input
    # By their decimal digits: a binary fraction would put a bill's last digit where no price says it is.
    total = (
        (usage.prompt_tokens - cached) * Decimal(str(price.input))
        + cached * Decimal(str(cached_price))
        + usage.completion_tokens * Decimal(str(price.output))
    )
    return int((total * _NANO_PER_MICRO).to_integral_value(ROUND_HALF_EVEN))
