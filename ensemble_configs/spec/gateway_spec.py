# SPDX-License-Identifier: Apache-2.0
"""The gateway's part of a deployment as typed data: what it does where something that it needs is away."""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from ensemble_configs.spec.base import Name, PositiveSize, Spec
from ensemble_configs.spec.price_spec import Dollars

Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,64}$")]


class TenantSpec(Spec):
    """The limits of a tenant, of all its keys together."""

    name: str = Field(pattern=r"^[A-Za-z0-9._:@/-]{1,128}$", description="as keys have it (--tenant)")
    requests_per_minute: PositiveSize | None = Field(default=None, description="that may begin; none: any number")
    tokens_per_minute: PositiveSize | None = Field(default=None, description="of prompts and answers; none: any")
    streams: PositiveSize | None = Field(default=None, description="requests that may run at a time; none: any")
    usd_per_day: Dollars | None = Field(default=None, description="in a day of UTC, by the ledger; none: any")
    usd_per_month: Dollars | None = Field(default=None, description="in a month of UTC, by the ledger; none: any")


class GatewaySpec(Spec):
    """Rules of the gateways before the deployment."""

    aliases: dict[Alias, Name] = Field(
        default={}, description="other names that callers may write for a model, such as `gpt-4o: chat`"
    )
    tenants: tuple[TenantSpec, ...] = Field(default=(), description="limits of tenants; others have none")
    when_limits_are_away: Literal["refuse", "admit"] = Field(
        default="refuse",
        description="keys with limits, while the Redis of limits is away: refused, or counted by each gateway",
    )

    def find_clashes(self, models: Collection[str]) -> list[str]:
        """Return what is wrong with these rules in a deployment with some models."""
        known = ", ".join(sorted(models))
        found = [
            f"gateway.aliases.{alias} must name a model, got {name!r}; there are {known}"
            for alias, name in self.aliases.items()
            if name not in models
        ]
        names = [tenant.name for tenant in self.tenants]
        found += [f"gateway.tenants has {name!r} twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        return found + [f"gateway.aliases.{alias} is the name of a model" for alias in self.aliases if alias in models]
