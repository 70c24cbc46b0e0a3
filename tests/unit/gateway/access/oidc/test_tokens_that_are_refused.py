# SPDX-License-Identifier: Apache-2.0
"""Attacks on the check of tokens, each at a gateway that runs: none is accepted, none shows in an answer or a log."""

import hashlib
import hmac
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from kserve_server import KServeServer, story
from oidc_provider import AUDIENCE, OidcProvider, SigningKey, part
from running_gateway import RunningGateway

from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from ensemble_configs.spec.gateway_spec import GatewaySpec

Make = Callable[[OidcProvider], str]
RSA, CURVE = SigningKey("rsa", "RS256"), SigningKey("curve", "ES256")
STRANGER, STRANGE_CURVE = SigningKey("rsa", "RS256"), SigningKey("curve", "ES256")


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    with OidcProvider(RSA, CURVE) as running:
        # Published, and for no signature here: a shared secret, a key to encrypt with, one of another algorithm.
        running.jwks = [
            {"kty": "oct", "kid": "secret", "k": part(b"0" * 64), "alg": "HS256"},
            {**STRANGER.jwk, "kid": "encrypts", "use": "enc"},
            {**STRANGE_CURVE.jwk, "kid": "signs", "key_ops": ["sign"]},
        ]
        yield running


@pytest.fixture(scope="module")
def gateway(provider: OidcProvider) -> Iterator[RunningGateway]:
    rules = GatewaySpec(oidc=OidcSpec(issuer=provider.issuer, audience=AUDIENCE))
    with KServeServer(*story()) as server, RunningGateway(server.url, rules=rules) as running:
        yield running


def signed_with_a_secret(head: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    text = f"{part({'alg': 'HS256', 'typ': 'JWT', **head})}.{part(claims)}"
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def with_public_pem(provider: OidcProvider) -> str:
    """Sign with the public key's own text as a secret, which everybody has."""
    pem = RSA.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return signed_with_a_secret({"kid": "rsa"}, provider.claims(), pem)


def altered(provider: OidcProvider) -> str:
    head, _, signature = RSA.sign(provider.claims()).split(".")
    return f"{head}.{part(provider.claims(sub='root'))}.{signature}"


def with_head(provider: OidcProvider, **head: Any) -> str:
    """Put another head before what the provider has signed."""
    _, claims, signature = RSA.sign(provider.claims()).split(".")
    return f"{part({'alg': 'RS256', 'kid': 'rsa', 'typ': 'JWT', **head})}.{claims}.{signature}"


def with_data(data: bytes) -> str:
    """Sign what need not be claims."""
    return jwt.PyJWS().encode(data, RSA.key, "RS256", {"kid": "rsa"})


def with_claims(_: OidcProvider, claims: Any) -> str:
    """Sign claims that no library would."""
    return with_data(json.dumps(claims).encode())


TWO_ALGORITHMS = b'{"alg":"none","kid":"rsa","alg":"RS256"}'
NOW_S = int(time.time())
ATTACKS: dict[str, tuple[Make, str]] = {
    "no algorithm": (lambda p: f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(p.claims())}.", "three parts"),
    "no algorithm, with a signature": (lambda p: with_head(p, alg="none"), "algorithm"),
    "no algorithm in other letters": (lambda p: with_head(p, alg="NoNe"), "algorithm"),
    "the public key as a secret": (with_public_pem, "algorithm"),
    "a shared secret that is published": (
        lambda p: signed_with_a_secret({"kid": "secret"}, p.claims(), b"0" * 64),
        "algorithm",
    ),
    "an algorithm that the deployment leaves out": (lambda p: RSA.sign(p.claims(), alg="RS512"), "algorithm"),
    "a key of another kind": (lambda p: CURVE.sign(p.claims(), kid="rsa"), "no key"),
    "the other key's id": (lambda p: RSA.sign(p.claims(), kid="curve"), "no key"),
    "a key that encrypts": (lambda p: STRANGER.sign(p.claims(), kid="encrypts"), "no key"),
    "a key that only signs": (lambda p: STRANGE_CURVE.sign(p.claims(), kid="signs"), "no key"),
    "a stranger's key under a known id": (lambda p: STRANGER.sign(p.claims()), "signature"),
    "a stranger's curve under a known id": (lambda p: STRANGE_CURVE.sign(p.claims()), "signature"),
    "a stranger's key in the head": (lambda p: STRANGER.sign(p.claims(), jwk=STRANGER.jwk), "signature"),
    "a stranger's key elsewhere": (
        lambda p: STRANGER.sign(p.claims(), jku=f"{p.issuer}/evil", x5u=f"{p.issuer}/evil"),
        "signature",
    ),
    "an unknown key": (lambda p: RSA.sign(p.claims(), kid="../../etc/passwd"), "no key"),
    "no key's id, and more than one key's algorithm": (lambda p: STRANGER.sign(p.claims(), kid=None), "signature"),
    "an endless id of a key": (lambda p: RSA.sign(p.claims(), kid="x" * 300), "kid is longer"),
    "claims that were changed": (altered, "signature"),
    "a signature that is cut": (lambda p: RSA.sign(p.claims())[:-4], "signature"),
    "a signature of zeros": (lambda p: CURVE.sign(p.claims()).rpartition(".")[0] + "." + part(bytes(64)), "signature"),
    "extensions that are critical": (lambda p: RSA.sign(p.claims(), crit=["exp"]), "crit"),
    "extensions, and a head that was changed": (lambda p: with_head(p, crit=[]), "crit"),
    "claims that are not encoded": (lambda p: with_head(p, b64=False), "crit"),
    "an ID token by its type": (lambda p: RSA.sign(p.claims(), typ="id_token+jwt"), "type"),
    "a logout token": (lambda p: RSA.sign(p.claims(), typ="logout+jwt"), "type"),
    "an ID token by its hash": (lambda p: RSA.sign(p.claims(at_hash="x"), typ="JWT"), "for the client"),
    "an ID token of Keycloak": (lambda p: RSA.sign(p.claims(typ="ID"), typ="JWT"), "for the client"),
    "an event": (lambda p: RSA.sign(p.claims(events={})), "event"),
    "a token that is bound to a key": (lambda p: RSA.sign(p.claims(cnf={"jkt": "x"})), "bound"),
    "another issuer": (lambda p: RSA.sign(p.claims(iss="https://evil.example.com")), "issuer"),
    "an issuer that begins alike": (lambda p: RSA.sign(p.claims(iss=p.issuer + "x")), "issuer"),
    "issuers": (lambda p: with_claims(p, {**p.claims(), "iss": [p.issuer]}), "issuer"),
    "another audience": (lambda p: RSA.sign(p.claims(aud="other")), "audience"),
    "an audience that begins alike": (lambda p: RSA.sign(p.claims(aud=["trireme2", "Trireme"])), "audience"),
    "no audience": (lambda p: RSA.sign(p.claims(aud=None)), "lacks"),
    "no issuer": (lambda p: RSA.sign(p.claims(iss=None)), "lacks"),
    "no end": (lambda p: RSA.sign(p.claims(exp=None)), "lacks"),
    "no subject": (lambda p: RSA.sign(p.claims(sub=None)), "lacks"),
    "a subject that is a number": (lambda p: with_claims(p, {**p.claims(), "sub": 7}), "claims"),
    "an end that is endless": (lambda p: with_claims(p, {**p.claims(), "exp": math.inf}), "claims"),
    "an end that is no number": (lambda p: with_claims(p, {**p.claims(), "exp": math.nan}), "claims"),
    "an end that is a word": (lambda p: with_claims(p, {**p.claims(), "exp": "soon"}), "claims"),
    "a begin in an hour": (lambda p: RSA.sign(p.claims(nbf=NOW_S + 3600)), "time"),
    "made in an hour": (lambda p: RSA.sign(p.claims(iat=NOW_S + 3600)), "time"),
    "claims that are a list": (lambda _: with_data(b"[]"), "claims"),
    "claims that are deep": (lambda _: with_data(b"[" * 3000), "claims"),
    "a head that is deep": (lambda _: part(b"[" * 3000) + ".e30.e30", "head"),
    "a head that is no object": (lambda _: f"{part([])}.e30.e30", "head"),
    "a head without an algorithm": (lambda _: f"{part({})}.e30.e30", "head"),
    "a head with two algorithms": (lambda p: f"{part(TWO_ALGORITHMS)}.{part(p.claims())}.e30", "signature"),
    "no base64": (lambda _: "a.!.b", "three parts"),
    "two parts": (lambda _: "eyJhbGciOiJub25lIn0.e30", "three parts"),
    "an encrypted token": (lambda _: "e30.e30.e30.e30.e30", "three parts"),
    "a dot": (lambda _: ".", "three parts"),
    "other letters": (lambda _: "e30.é.e30", "three parts"),
    "a token that is too long": (lambda p: RSA.sign(p.claims(more="x" * 12_000)), "longer than 16000"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "why"), ATTACKS.values(), ids=ATTACKS)
def test_it_is_refused_by_name_and_never_shown(
    gateway: RunningGateway, provider: OidcProvider, caplog: pytest.LogCaptureFixture, make: Make, why: str
) -> None:
    caplog.set_level(logging.DEBUG)
    token = make(provider)
    answer = gateway.call("GET", "/v1/models", Authorization=f"Bearer {token}".encode().decode("latin-1"))
    assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_token")
    assert why in answer.json["error"]["message"]
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    for said in (answer.data.decode(), caplog.text):
        assert token not in said
        assert not any(len(each) > 20 and each in said for each in token.split("."))
    assert not any("evil" in path for path in provider.paths)


def test_what_the_attacks_change_is_accepted_without_the_change(
    gateway: RunningGateway, provider: OidcProvider
) -> None:
    good = [
        RSA.sign(provider.claims()),
        CURVE.sign(provider.claims()),
        RSA.sign(provider.claims(), typ="JWT"),
        RSA.sign(provider.claims(), typ="application/at+JWT"),
        RSA.sign(provider.claims(), kid=None),  # the only key of its algorithm
        RSA.sign(provider.claims(aud=["account", AUDIENCE])),
        RSA.sign(provider.claims(more="x" * 11_000)),
        RSA.sign(provider.claims(iat=NOW_S + 10, nbf=NOW_S + 10)),  # within the leeway
        RSA.sign(provider.claims(iat=None)),
        with_claims(provider, provider.claims()),
        RSA.sign(provider.claims(), jwk=STRANGER.jwk, jku="http://127.0.0.1:9/keys"),  # ignored
    ]
    for token in good:
        assert gateway.call("GET", "/v1/models", Authorization=f"Bearer {token}").status == 200


def test_a_token_that_has_expired_is_told_so(gateway: RunningGateway, provider: OidcProvider) -> None:
    expired = RSA.sign(provider.claims(exp=NOW_S - 60))
    for _ in range(2):
        answer = gateway.call("GET", "/v1/models", Authorization=f"Bearer {expired}")
        assert (answer.status, answer.json["error"]["code"]) == (401, "token_expired")
        assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    just = RSA.sign(provider.claims(exp=int(time.time()) - 5))  # within the leeway
    assert gateway.call("GET", "/v1/models", Authorization=f"Bearer {just}").status == 200


def test_a_token_stays_good_for_its_leeway_and_not_for_longer(provider: OidcProvider) -> None:
    rules = GatewaySpec(oidc=OidcSpec(issuer=provider.issuer, audience=AUDIENCE, leeway_s=0.0))
    with KServeServer(*story()) as server, RunningGateway(server.url, rules=rules) as gateway:
        short = RSA.sign(provider.claims(exp=int(time.time()) + 3))
        answer = gateway.call("GET", "/v1/models", Authorization=f"Bearer {short}")
        assert answer.status == 200
        deadline_s = time.monotonic() + 20
        while answer.status == 200:  # it was checked, and is known
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
            answer = gateway.call("GET", "/v1/models", Authorization=f"Bearer {short}")
    assert answer.json["error"]["code"] == "token_expired"


def test_nothing_at_all_is_asked_for_a_key(gateway: RunningGateway) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic YTpi.x.y"},
        {"Authorization": "Bearer x"},
    ):
        answer = gateway.call("GET", "/v1/models", **headers)
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
