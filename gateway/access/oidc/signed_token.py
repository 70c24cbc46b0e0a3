# SPDX-License-Identifier: Apache-2.0
"""A signed token (JWT, RFC 7519): what its head says, before anything is believed; and its claims, once it is checked.

The head chooses among the keys of the provider, and brings none: `jwk`, `jku`, `x5c` and `x5u` are not read.
"""

import base64
import re
from collections.abc import Collection
from typing import Any, NamedTuple

import jwt
import msgspec

from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from gateway.access.oidc.key_set import MAX_ID_CHARS, VerificationKey
from gateway.access.oidc.refusals import expired_token, invalid_token
from trireme.base.known_types import known

MAX_CHARS = 16_000  # of those with many groups; the server takes longer headers, so that who sends more is told
_PART = r"[A-Za-z0-9_-]+"
_SIGNED = re.compile(rf"({_PART})\.{_PART}\.{_PART}")
_ACCESS_TOKEN = "at+jwt"
_REQUIRED = ("exp", "iss", "aud", "sub")
# What a token for the client, not for this API, has; and one that is no good without the key that it is bound to.
_OF_OTHERS = {
    "at_hash": "it is an ID token, which is for the client",
    "c_hash": "it is an ID token, which is for the client",
    "events": "it tells of an event, such as a logout",
    "cnf": "it is bound to a key, whose proof is not checked here",
}
_KINDS_OF_OTHERS = frozenset({"ID", "Refresh", "Offline", "Logout"})  # Keycloak's, in the claim `typ`


class _Head(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: Any = msgspec.UNSET
    b64: Any = msgspec.UNSET


class Head(NamedTuple):
    """The head of a token. Attributes: `key_id`: None: it names no key."""

    algorithm: str
    key_id: str | None


def looks_signed(token: str) -> bool:
    """Return whether a text may be a token; a key has no dot."""
    return "." in token


def read_head(token: str, *, algorithms: Collection[str], takes_access_tokens_alone: bool) -> Head:
    """Return the head of a token, which nobody has checked.

    Raises:
        ApiError: 401: nothing that is accepted has such a head.
    """
    if len(token) > MAX_CHARS:
        raise invalid_token(f"it is longer than {MAX_CHARS} characters")
    parts = _SIGNED.fullmatch(token)
    if parts is None:
        raise invalid_token("it is no signed JWT of three parts")
    try:
        head = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=known(_Head))
    except (ValueError, RecursionError) as exc:
        raise invalid_token("its head cannot be read") from exc
    if head.crit is not msgspec.UNSET or head.b64 is not msgspec.UNSET:
        raise invalid_token("its head wants extensions (crit), and none is known here")
    if head.alg not in algorithms:
        raise invalid_token(f"its algorithm is not one of {', '.join(algorithms)}")
    if head.kid is not None and len(head.kid) > MAX_ID_CHARS:
        raise invalid_token(f"its kid is longer than {MAX_ID_CHARS} characters")
    kind = (head.typ or "JWT").lower().removeprefix("application/")
    accepted = (_ACCESS_TOKEN,) if takes_access_tokens_alone else (_ACCESS_TOKEN, "jwt")
    if kind not in accepted:
        raise invalid_token(f"its type (typ) is not {' or '.join(accepted)}")
    return Head(head.alg, head.kid)


def checked_claims(token: str, head: Head, key: VerificationKey, spec: OidcSpec) -> dict[str, Any]:
    """Return the claims of a token whose signature, issuer, audience and times are right.

    Takes some tenths of a millisecond, for a thread of its own.

    Raises:
        ApiError: 401: one of them is wrong, or the token is for something else.
    """
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[head.algorithm],
            issuer=spec.issuer,
            audience=spec.audience,
            leeway=spec.leeway_s,
            options={"require": list(_REQUIRED)},
        )
    except jwt.InvalidSignatureError as exc:
        raise invalid_token("its signature is not that of the provider's key") from exc
    except jwt.ExpiredSignatureError as exc:
        raise expired_token() from exc
    except jwt.ImmatureSignatureError as exc:
        raise invalid_token("its time (nbf, iat) has not come yet") from exc
    except jwt.MissingRequiredClaimError as exc:
        raise invalid_token(f"it lacks one of {', '.join(_REQUIRED)}") from exc
    except jwt.InvalidIssuerError as exc:
        raise invalid_token("it is of another issuer") from exc
    except jwt.InvalidAudienceError as exc:
        raise invalid_token("it is for another audience") from exc
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise invalid_token("its claims or its signature cannot be read") from exc
    for name, why in _OF_OTHERS.items():
        if name in claims:
            raise invalid_token(why)
    if claims.get("typ") in _KINDS_OF_OTHERS:
        raise invalid_token("it is an ID token or another one that is for the client")
    return claims
