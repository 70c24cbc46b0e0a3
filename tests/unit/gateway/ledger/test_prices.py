# SPDX-License-Identifier: Apache-2.0
"""The cost of a request, to the last digit."""

import pytest

from clients.openai_api.answer_deltas import Usage
from ensemble_configs.spec.price_spec import PriceSpec
from gateway.ledger.prices import cost_nano_usd


@pytest.mark.parametrize(
    ("price", "prompt", "completion", "cached", "nano_usd"),
    [
        (None, 10, 10, None, 0),
        (PriceSpec(input=0.15, output=0.6), 1000, 500, None, 1000 * 150 + 500 * 600),
        (PriceSpec(input=0.15, output=0.6), 1000, 0, 400, 1000 * 150),
        (PriceSpec(input=3, output=15, cached_input=0.3), 1000, 10, 400, 600 * 3000 + 400 * 300 + 10 * 15_000),
        (PriceSpec(input=0.0375, output=0), 1, 0, None, 38),  # 37.5: to the even one
        (PriceSpec(input=0.0365, output=0), 1, 0, None, 36),
        (PriceSpec(input=0.1, output=0.2), 3, 0, None, 300),  # no 300.00000000000004
        (PriceSpec(input=0, output=0), 10**9, 10**9, None, 0),
    ],
)
def test_a_cost_is_exact(
    price: PriceSpec | None, prompt: int, completion: int, cached: int | None, nano_usd: int
) -> None:
    assert cost_nano_usd(price, Usage(prompt, completion, cached)) == nano_usd
