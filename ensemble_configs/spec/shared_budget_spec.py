# SPDX-License-Identifier: Apache-2.0
"""A model's part of a device that it shares with the other models of its server, as typed data."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Number, Positive, Spec


class SharedResourceSpec(Spec):
    """A resource with one count for all models together; each model names the same count."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)] = Field(
        description="name of the resource, the same in every model"
    )
    count: Positive = Field(description="units that all models of the server may hold together")
    per: Literal["request", "kv_block", "token"] = Field(
        default="request", description="of a request in flight, with the longest output that its client allows"
    )
    units: Positive = Field(default=1, description="for each of these")

    @model_validator(mode="after")
    def _has_enough_for_one(self) -> "SharedResourceSpec":
        if self.units > self.count:
            raise ValueError(
                f"units ({self.units}) for each {self.per} are more than count ({self.count}): none would ever start"
            )
        return self

    def units_of(self, *, num_tokens: int, num_blocks: int) -> int:
        """Return the units of a request of `num_tokens` tokens, prompt and output, in `num_blocks` KV blocks."""
        return self.units * {"request": 1, "kv_block": num_blocks, "token": num_tokens}[self.per]


class SharedBudgetSpec(Spec):
    """A model's part in the ledger of its server (`serving.shared_budget.shared_ledger`)."""

    resources: Annotated[tuple[SharedResourceSpec, ...], Field(min_length=1, max_length=8)]
    weight: Annotated[Number, Field(ge=0.001, le=1000)] = Field(
        default=1.0, description="of this model's requests against the other models', while all want more"
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "SharedBudgetSpec":
        names = [resource.name for resource in self.resources]
        if len(set(names)) < len(names):
            raise ValueError(f"each resource may be named once, got {', '.join(names)}")
        return self
