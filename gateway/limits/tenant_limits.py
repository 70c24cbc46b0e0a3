# SPDX-License-Identifier: Apache-2.0
"""The limits of tenants that a deployment says."""

from ensemble_configs.spec.gateway_spec import GatewaySpec
from gateway.limits.key_limits import KeyLimits, nano_usd


def tenant_limits(spec: GatewaySpec) -> dict[str, KeyLimits]:
    """Return the limits of each tenant that has any, by its name."""
    return {
        tenant.name: KeyLimits(
            tenant.requests_per_minute,
            tenant.tokens_per_minute,
            tenant.streams,
            nano_usd(tenant.usd_per_day),
            nano_usd(tenant.usd_per_month),
        )
        for tenant in spec.tenants
    }
