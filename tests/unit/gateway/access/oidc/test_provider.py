# SPDX-License-Identifier: Apache-2.0
"""The keys of a provider over HTTP: where they are found, and what is not taken for keys."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import HERE, Authority
from oidc_provider import AUDIENCE, DISCOVERY, OidcProvider, SigningKey

from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from gateway.access.oidc import provider as provider_module
from gateway.access.oidc.key_set import KeySet
from gateway.access.oidc.provider import Provider
from trireme.base.errors import SpecError, Unavailable

CONFIGURATION, CERTS = f"/realms/acme{DISCOVERY}", "/realms/acme/certs"


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with OidcProvider(SigningKey("one"), SigningKey("two", "RS256")) as running:
        yield running


def keys_of(provider: OidcProvider, **fields: Any) -> KeySet:
    async def ask() -> KeySet:
        async with Provider(OidcSpec(**{"issuer": provider.issuer, "audience": AUDIENCE, **fields})) as asked:
            return await asked.keys()

    return asyncio.run(ask())


def test_the_keys_are_found_by_discovery(provider: OidcProvider) -> None:
    keys = keys_of(provider)
    assert len(keys) == 2
    assert provider.paths == [CONFIGURATION, CERTS]


def test_an_address_of_the_keys_needs_no_discovery(provider: OidcProvider) -> None:
    assert len(keys_of(provider, jwks_url=provider.jwks_url, algorithms=("RS256",))) == 1
    assert provider.paths == [CERTS]


def test_a_redirection_is_followed_on_the_same_host(provider: OidcProvider) -> None:
    provider.answers[CONFIGURATION] = (302, {"Location": "/elsewhere"}, b"")
    provider.answers["/elsewhere"] = provider.answer(CONFIGURATION)
    assert len(keys_of(provider)) == 2


def configured(**fields: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(fields).encode()


WRONG: dict[str, tuple[str, tuple[int, dict[str, str], bytes], str]] = {
    "status": (CERTS, (500, {}, b"secret words"), "HTTP status 500"),
    "another host": (CERTS, (302, {"Location": "http://localhost:9/certs"}, b""), "redirects to another host"),
    "another scheme": (
        CERTS,
        (302, {"Location": "file:///etc/passwd"}, b""),
        "redirects to another host|cannot be read",
    ),
    "a circle": (CERTS, (302, {"Location": CERTS}, b""), "redirects without end"),
    "no JSON": (CERTS, (200, {}, b"<html>"), "cannot be read"),
    "deep JSON": (CERTS, (200, {}, b'{"keys":' + b"[" * 200_000), "cannot be read"),
    "too long": (CERTS, (200, {}, b'{"keys": [' + b" " * (1 << 20)), "more than 512 KiB"),
    "too short": (CERTS, (200, {"Content-Length": "9999"}, b"{}"), "cannot be read"),
    "no keys": (CERTS, (200, {}, b"{}"), "cannot be read"),
    "an empty set": (CERTS, (200, {}, b'{"keys": []}'), "publishes no key for RS256, ES256"),
    "too many keys": (CERTS, (200, {}, json.dumps({"keys": [{}] * 101}).encode()), "publishes 101 keys"),
    "another issuer": (
        CONFIGURATION,
        configured(issuer="http://127.0.0.1/other", jwks_uri="http://127.0.0.1:9/certs"),
        "another issuer",
    ),
}


@pytest.mark.parametrize(("path", "answer", "why"), WRONG.values(), ids=WRONG)
def test_what_are_no_keys_is_named_and_not_quoted(
    provider: OidcProvider, path: str, answer: tuple[int, dict[str, str], bytes], why: str
) -> None:
    provider.answers[path] = answer
    with pytest.raises(Unavailable, match=why) as refused:
        keys_of(provider)
    assert "secret words" not in refused.value.message


def test_keys_do_not_come_over_a_connection_that_anybody_could_change(provider: OidcProvider) -> None:
    provider.answers[CONFIGURATION] = configured(issuer=provider.issuer, jwks_uri="http://login.example.com/certs")
    with pytest.raises(Unavailable, match="no https URL"):
        keys_of(provider)


def test_a_provider_that_says_nothing_is_given_up(provider: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "TIMEOUT_S", 0.2)
    provider.gate.clear()
    with pytest.raises(Unavailable, match="TimeoutError"):
        keys_of(provider)


def test_a_provider_that_breaks_connections_is_away(provider: OidcProvider) -> None:
    provider.is_away = True
    with pytest.raises(Unavailable, match="cannot be read"):
        keys_of(provider)


def test_the_way_there_may_be_a_proxy(provider: OidcProvider) -> None:
    provider.answers["http://127.0.0.1:1/certs"] = provider.answer(CERTS)
    keys = keys_of(
        provider,
        issuer="http://127.0.0.1:1",
        jwks_url="http://127.0.0.1:1/certs",
        proxy=provider.issuer.removesuffix("/realms/acme"),
    )
    assert len(keys) == 2


def test_tls_is_checked_by_the_authority_that_is_named(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other", "others")
    pair = authority.issue("login", hosts=HERE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with OidcProvider(tls=context) as provider:
        assert provider.issuer.startswith("https:")
        assert len(keys_of(provider, ca_file=authority.ca)) == 1
        for wrong in ({}, {"ca_file": other.ca}):
            with pytest.raises(Unavailable, match="ClientConnectorCertificateError"):
                keys_of(provider, **wrong)
        provider.answers[CONFIGURATION] = configured(issuer=provider.issuer, jwks_uri="http://127.0.0.1:9/certs")
        with pytest.raises(Unavailable, match="no https URL"):  # not even here, where the issuer has TLS
            keys_of(provider, ca_file=authority.ca)
    with pytest.raises(SpecError, match="ca-file"):
        keys_of(provider, ca_file=tmp_path / "none.pem")
