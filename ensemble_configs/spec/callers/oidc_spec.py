# SPDX-License-Identifier: Apache-2.0
"""The OpenID Connect provider of a gateway as typed data: whose tokens callers may bring, and what claims mean."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from ensemble_configs.spec.base import Boolean, Number, PositiveSize, Spec
from ensemble_configs.spec.price_spec import Dollars
from trireme.base.http_servers.http_access import is_loopback

_URL = r"^https?://[^\s?#@]+$"
Claim = Annotated[str, Field(pattern=r"^[!-~]{1,256}$")]
# Signatures by a private key alone: with a shared secret, or none, whoever knows the public key could sign.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class CallerLimitsSpec(Spec):
    """The limits of each caller who brings a token."""

    requests_per_minute: PositiveSize | None = Field(default=None, description="that may begin; none: any number")
    tokens_per_minute: PositiveSize | None = Field(default=None, description="of prompts and answers; none: any")
    streams: PositiveSize | None = Field(default=None, description="requests that may run at a time; none: any")
    usd_per_day: Dollars | None = Field(default=None, description="in a day of UTC, by the ledger; none: any")
    usd_per_month: Dollars | None = Field(default=None, description="in a month of UTC, by the ledger; none: any")


class OidcSpec(Spec):
    """The provider whose tokens callers may bring in place of a key, and what the claims of a token mean."""

    issuer: str = Field(
        pattern=_URL,
        description="claim `iss` of its tokens, to the letter, such as https://login.example.com/realms/acme",
    )
    audience: str = Field(
        min_length=1, max_length=256, description="that `aud` of a token must name: that of this API, not of a client"
    )
    jwks_url: str | None = Field(
        default=None, pattern=_URL, description="of its keys; none: as ISSUER/.well-known/openid-configuration says"
    )
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = Field(
        default=("RS256", "ES256"), description="of signatures that are accepted"
    )
    takes_access_tokens_alone: Boolean = Field(
        default=False, description="accept the type `at+jwt` (RFC 9068) alone; false: `JWT` and none at all, too"
    )
    tenant_claim: Claim | None = Field(
        default=None, description="on whose behalf the caller asks; every token must have it. None: nobody's"
    )
    models_claim: Claim | None = Field(
        default=None, description="names of the models that the caller may use, others are left out; none: all models"
    )
    role_claim: Claim | None = Field(
        default=None, description="roles of the caller; none: nobody with a token is an admin"
    )
    admin_values: tuple[Claim, ...] = Field(default=(), description="of role_claim, each of which makes an admin")
    caller_limits: CallerLimitsSpec = Field(
        default=CallerLimitsSpec(), description="of each caller by its `sub`, beside those of its tenant"
    )
    leeway_s: Annotated[Number, Field(ge=0, le=300)] = Field(
        default=30.0, description="that the clocks of the provider and a gateway may differ"
    )
    refresh_s: Annotated[Number, Field(ge=5, le=86_400)] = Field(
        default=300.0, description="between two looks at its keys: one that is gone from them is refused from then on"
    )
    grace_s: Annotated[Number, Field(ge=5, le=604_800)] = Field(
        default=3600.0, description="how long known keys are used while the provider is away"
    )
    ca_file: Path | None = Field(
        default=None, description="PEM file of the authorities that are trusted; none: those of the machine"
    )
    proxy: str | None = Field(
        default=None, pattern=r"^http://[^\s?#@]+$", description="HTTP proxy on the way there; none: there is none"
    )

    def find_clashes(self) -> Iterator[str]:
        """Yield what is wrong with these rules."""
        for name, url in (("issuer", self.issuer), ("jwks_url", self.jwks_url)):
            if url is not None and not is_safe_url(url):
                yield f"gateway.oidc.{name} must be an https URL, but on the loopback interface; got {url!r}"
        if self.ca_file is not None and not (self.jwks_url or self.issuer).startswith("https:"):
            yield "gateway.oidc.ca_file needs an https URL; leave it out"
        if bool(self.admin_values) != (self.role_claim is not None):
            yield "gateway.oidc.role_claim and admin_values go together; say both, or neither"
        if self.grace_s < self.refresh_s:
            yield (
                f"gateway.oidc.grace_s ({self.grace_s:g}) must be at least refresh_s ({self.refresh_s:g}), or no key "
                "would be known between two looks"
            )


def is_safe_url(url: str) -> bool:
    """Return whether nobody on the way to a URL can put other keys into what comes back."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
