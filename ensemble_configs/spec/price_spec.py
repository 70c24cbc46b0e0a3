# SPDX-License-Identifier: Apache-2.0
"""Prices of a model's tokens as typed data."""

from typing import Annotated

from pydantic import Field

from ensemble_configs.spec.base import Number, Spec

Dollars = Annotated[Number, Field(ge=0, le=1e6)]


class PriceSpec(Spec):
    """The prices of a model's tokens for callers of the gateway, in US dollars for a million tokens."""

    input: Dollars = Field(description="a million tokens of prompts")
    output: Dollars = Field(description="a million tokens of answers")
    cached_input: Dollars | None = Field(
        default=None, description="a million tokens of prompts that the KV cache had; none: as `input`"
    )
