# SPDX-License-Identifier: Apache-2.0
"""The caller of a request: what the key that came with it allows."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from clients.openai_api.api_error import ApiError
from gateway.limits.key_limits import NO_LIMITS, KeyLimits


class Role(StrEnum):
    """The roles of keys: users ask models; admins see what all callers do too."""

    USER = "user"
    ADMIN = "admin"


class Caller(NamedTuple):
    """A caller as the routes know it.

    Attributes:
        key_id: public part of the key, or the account of whoever brings a token; "": the gateway asks for neither.
        tenant: on whose behalf the key calls; "": nobody's in particular.
        models: that the key may use; None: all.
        limits: of the key.
    """

    key_id: str
    tenant: str
    role: Role
    models: frozenset[str] | None
    limits: KeyLimits = NO_LIMITS

    def may_use(self, model: str) -> bool:
        """Return whether the key is for a model."""
        return self.models is None or model in self.models

    def check_may_use(self, model: str) -> None:
        """Refuse a model that the key is not for.

        Raises:
            ApiError: 403; it names the models of the key.
        """
        if self.models is not None and model not in self.models:
            raise ApiError(
                f"model {model[:64]!r} is not among those of this key; it may use {', '.join(sorted(self.models))}",
                code="model_not_allowed",
                param="model",
                status=403,
            )

    def check_is_admin(self) -> None:
        """Refuse who is no admin.

        Raises:
            ApiError: 403.
        """
        if self.role is not Role.ADMIN:
            raise ApiError("this path takes keys of the role admin alone", code="admin_only", status=403)


NOBODY = Caller("", "", Role.USER, frozenset())  # on paths that take no key
ANYBODY = Caller("", "", Role.ADMIN, None)  # where there are no keys, or all keys of a file are alike


class Callers(Protocol):
    """A check of what callers bring: `KeyBook`, `TokenFile`, or tokens of a provider (`oidc`)."""

    async def find(self, authorization: str) -> Caller:
        """Return the caller of a request by its header `Authorization`; "": it has none.

        Raises:
            ApiError: 401: no key, or none that is accepted; 503: nobody can tell now. Neither holds the key.
        """


def not_accepted() -> ApiError:
    """Return the error of a caller without a key that is accepted; it tells nothing about the key."""
    return ApiError(
        "the key is missing or not accepted; send one as `Authorization: Bearer KEY`",
        code="invalid_api_key",
        status=401,
    )
