# SPDX-License-Identifier: Apache-2.0
"""The gateway's part of a deployment as typed data: what it does where something that it needs is away."""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from ensemble_configs.spec.base import Name, Spec

Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,64}$")]


class GatewaySpec(Spec):
    """Rules of the gateways before the deployment."""

    aliases: dict[Alias, Name] = Field(
        default={}, description="other names that callers may write for a model, such as `gpt-4o: chat`"
    )
    when_limits_are_away: Literal["refuse", "admit"] = Field(
        default="refuse",
        description="keys with limits, while the Redis of limits is away: refused, or counted by each gateway",
    )

    def find_clashes(self, models: Collection[str]) -> list[str]:
        """Return what is wrong with the aliases of a deployment with these models."""
        known = ", ".join(sorted(models))
        found = [
            f"gateway.aliases.{alias} must name a model, got {name!r}; there are {known}"
            for alias, name in self.aliases.items()
            if name not in models
        ]
        return found + [f"gateway.aliases.{alias} is the name of a model" for alias in self.aliases if alias in models]
