# SPDX-License-Identifier: Apache-2.0
"""The refusals of tokens. None of them, and no line of a log, holds a token or anything that a token says."""

from clients.openai_api.api_error import ApiError

_CHALLENGE = {"WWW-Authenticate": 'Bearer error="invalid_token"'}  # RFC 6750


def invalid_token(why: str) -> ApiError:
    """Return the error of a token that is not accepted. Args: `why`: what is wrong with it, as a sentence goes on."""
    return ApiError(
        f"the token is not accepted: {why}; bring one of this gateway's provider",
        code="invalid_token",
        status=401,
        headers=_CHALLENGE,
    )


def expired_token() -> ApiError:
    """Return the error of a token whose time is over."""
    return ApiError(
        "the token has expired; ask the provider for another one",
        code="token_expired",
        status=401,
        headers=_CHALLENGE,
    )


def refused_claim(name: str, wanted: str) -> ApiError:
    """Return the error of a token that is valid, and lacks what the deployment wants. Args: `name` of the claim."""
    return ApiError(
        f"the token's claim {name!r} must be {wanted}; ask whoever runs the provider for it",
        code="claim_not_accepted",
        status=403,
    )


def nobody_knows(why: str) -> ApiError:
    """Return the error of a token that cannot be checked now."""
    return ApiError(
        f"tokens cannot be checked now: {why}; try again",
        code="unavailable",
        status=503,
        retry_after_s=1,
    )
