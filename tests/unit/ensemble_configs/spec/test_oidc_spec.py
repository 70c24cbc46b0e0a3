# SPDX-License-Identifier: Apache-2.0
"""The provider of tokens in a deployment: what is refused before anything is asked."""

from typing import Any

import pytest
from pydantic import ValidationError

from ensemble_configs.spec.gateway_spec import GatewaySpec

GOOD: dict[str, Any] = {"issuer": "https://login.example.com/realms/acme", "audience": "trireme"}


def clashes_of(**fields: Any) -> list[str]:
    return GatewaySpec.model_validate({"oidc": {**GOOD, **fields}}).find_clashes(["chat"])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"issuer": "http://localhost:8080/realms/acme"},
        {"issuer": "http://[::1]:8080"},
        {"jwks_url": "https://keys.example.com/certs", "ca_file": "ca.pem"},
        {"role_claim": "roles", "admin_values": ["admin"]},
    ],
)
def test_a_provider_is_named(fields: dict[str, Any]) -> None:
    assert clashes_of(**fields) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"issuer": "http://login.example.com"}, "gateway.oidc.issuer must be an https URL"),
        ({"issuer": "http://localhost.example.com"}, "gateway.oidc.issuer must be an https URL"),
        ({"jwks_url": "http://login.example.com/certs"}, "gateway.oidc.jwks_url must be an https URL"),
        ({"issuer": "http://127.0.0.1:80", "ca_file": "ca.pem"}, "ca_file needs an https URL"),
        ({"role_claim": "roles"}, "role_claim and admin_values go together"),
        ({"admin_values": ["admin"]}, "role_claim and admin_values go together"),
        ({"grace_s": 10.0}, "grace_s (10) must be at least refresh_s (300)"),
    ],
)
def test_what_does_not_go_together_is_told(fields: dict[str, Any], said: str) -> None:
    assert any(said in clash for clash in clashes_of(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"algorithms": ["RS256", "hs512"]},
        {"algorithms": []},
        {"audience": ""},
        {"issuer": "https://user@login.example.com"},
        {"issuer": "https://login.example.com?x"},
        {"issuer": "login.example.com"},
        {"tenant_claim": ""},
        {"leeway_s": 3600},
        {"proxy": "https://proxy.example.com"},
    ],
)
def test_what_would_let_others_in_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        clashes_of(**fields)
