# SPDX-License-Identifier: Apache-2.0
"""The claims of a token as a caller: whose account it is, on whose behalf it asks, and for what."""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from gateway.access.caller import Caller, Role
from gateway.access.oidc.refusals import refused_claim
from gateway.limits.key_limits import KeyLimits, nano_usd

PREFIX = "oidc:"
_ID_DIGITS = 24  # 96 bits: nobody finds two callers with one account
_TENANT = re.compile(r"[A-Za-z0-9._:@/-]{1,128}")  # as deployments have it


def caller_of(claims: Mapping[str, Any], spec: OidcSpec, *, models: Collection[str]) -> Caller:
    """Return the caller that a token's claims describe.

    Args:
        models: all that are served; others are not kept of what a token names.

    Raises:
        ApiError: 403: a claim that the deployment wants is missing, or of another form.
    """
    return Caller(
        account_of(claims["iss"], claims["sub"]),
        "" if spec.tenant_claim is None else _tenant(claims, spec.tenant_claim),
        Role.ADMIN if spec.role_claim and _is_admin(claims, spec.role_claim, spec.admin_values) else Role.USER,
        None if spec.models_claim is None else frozenset(models) & _names(claims, spec.models_claim),
        _limits(spec),
    )


def account_of(issuer: str, subject: str) -> str:
    """Return the id of a caller, in lists and in the ledger: no name of a person, and nothing that a log misreads."""
    return PREFIX + hashlib.sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:_ID_DIGITS]


def _tenant(claims: Mapping[str, Any], name: str) -> str:
    found = _claim(claims, name)
    if not isinstance(found, str) or _TENANT.fullmatch(found) is None:
        raise refused_claim(name, "the name of a tenant: 1 to 128 letters, digits and . _ : @ / -")
    return found


def _names(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the names that a claim holds: a list of them, or a text with spaces between."""
    found = _claim(claims, name)
    names = found.split() if isinstance(found, str) else found
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise refused_claim(name, "a list of names, or names with spaces between")
    return frozenset(names)


def _is_admin(claims: Mapping[str, Any], name: str, admin_values: Collection[str]) -> bool:
    return _claim(claims, name) is not None and not _names(claims, name).isdisjoint(admin_values)


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name, or by the names on the way to it (`realm_access.roles`); None: there is none."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _limits(spec: OidcSpec) -> KeyLimits:
    limits = spec.caller_limits
    return KeyLimits(
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.streams,
        nano_usd(limits.usd_per_day),
        nano_usd(limits.usd_per_month),
    )
