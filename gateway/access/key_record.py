# SPDX-License-Identifier: Apache-2.0
"""Records of keys: what is kept of each, without the key itself."""

from typing import NamedTuple

from gateway.access.caller import Caller, Role
from gateway.limits.key_limits import NO_LIMITS, KeyLimits


class NewKey(NamedTuple):
    """The wish for a key.

    Attributes:
        name: for people; no two keys that are not revoked have the same one.
        expires_at_s: seconds since 1970; None: never.
    """

    name: str
    tenant: str = ""
    role: Role = Role.USER
    models: frozenset[str] | None = None
    expires_at_s: int | None = None
    limits: KeyLimits = NO_LIMITS


class KeyRecord(NamedTuple):
    """A key as the store has it; times are seconds since 1970.

    Attributes:
        last_used_at_s: up to a minute before the last request.
    """

    id: str
    secret_sha256: bytes
    name: str
    tenant: str
    role: Role
    models: frozenset[str] | None
    created_at_s: int
    expires_at_s: int | None = None
    revoked_at_s: int | None = None
    last_used_at_s: int | None = None
    limits: KeyLimits = NO_LIMITS

    @property
    def caller(self) -> Caller:
        """Return the caller that brings the key."""
        return Caller(self.id, self.tenant, self.role, self.models, self.limits)

    def has_expired(self, now_s: float) -> bool:
        """Return whether the key's time is over."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s

    def state(self, now_s: float) -> str:
        """Return "valid", "expired" or "revoked"."""
        if self.revoked_at_s is not None:
            return "revoked"
        return "expired" if self.has_expired(now_s) else "valid"


class KeyChanges(NamedTuple):
    """The keys that have changed.

    Attributes:
        number: of the last change that is among them; the next question is about what came after.
    """

    number: int
    records: list[KeyRecord]
