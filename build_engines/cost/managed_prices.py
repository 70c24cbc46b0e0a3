# SPDX-License-Identifier: Apache-2.0
"""The prices of managed APIs for a million tokens: a dated list, ours as an example (`managed_prices.yaml`)."""

import datetime
from pathlib import Path

from pydantic import Field

from build_engines.cost.bill import Tokens
from build_engines.cost.cost_spec import Usd
from ensemble_configs.spec.base import Spec

EXAMPLE = Path(__file__).with_name("managed_prices.yaml")


class ManagedPrice(Spec):
    """A managed API's offer, in US dollars per million tokens."""

    name: str
    model: str | None = Field(default=None, description="the model of ours that it is compared with; None: any")
    input_usd_per_million: Usd
    cached_input_usd_per_million: Usd | None = None  # None: as input
    output_usd_per_million: Usd
    source: str

    def usd(self, tokens: Tokens) -> float:
        """Return the price of these tokens, in US dollars."""
        cached = self.cached_input_usd_per_million
        cached = self.input_usd_per_million if cached is None else cached
        millions = tokens.prefilled * self.input_usd_per_million + tokens.cached * cached
        return (millions + tokens.output * self.output_usd_per_million) / 1e6


class ManagedPrices(Spec):
    """A list of prices, with its date; ours is the file `EXAMPLE`."""

    collected: datetime.date
    prices: tuple[ManagedPrice, ...] = Field(min_length=1)

    def of(self, model: str) -> tuple[ManagedPrice, ...]:
        """Return the offers to compare a model with; every offer, if none names the model."""
        named = any(one.model == model for one in self.prices)
        return tuple(one for one in self.prices if not named or one.model in {None, model})
