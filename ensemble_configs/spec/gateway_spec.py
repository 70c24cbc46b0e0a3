# SPDX-License-Identifier: Apache-2.0
"""The gateway's part of a deployment as typed data: what it does where something that it needs is away."""

from typing import Literal

from pydantic import Field

from ensemble_configs.spec.base import Spec


class GatewaySpec(Spec):
    """Rules of the gateways before the deployment."""

    when_limits_are_away: Literal["refuse", "admit"] = Field(
        default="refuse",
        description="keys with limits, while the Redis of limits is away: refused, or counted by each gateway",
    )
