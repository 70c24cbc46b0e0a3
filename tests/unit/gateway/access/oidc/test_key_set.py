# SPDX-License-Identifier: Apache-2.0
"""The keys of a set: for which signatures each is, and which are left out."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed448, rsa
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm
from oidc_provider import SigningKey

from gateway.access.oidc.key_set import KeySet

ALL = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
RSA, P256, P384, P521, ED25519 = (SigningKey(name, name) for name in ("RS256", "ES256", "ES384", "ES512", "EdDSA"))


def without(key: SigningKey, *names: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**key.jwk, **changes}.items() if name not in names}


def algorithms_of(jwk: dict[str, Any], wanted: tuple[str, ...] = ALL) -> set[str]:
    keys = KeySet([jwk], algorithms=wanted)
    found = {algorithm for algorithm in ALL if keys.find(jwk.get("kid") or None, algorithm) is not None}
    assert bool(keys) == bool(found)
    return found


def test_a_key_is_for_the_signatures_of_its_kind() -> None:
    assert algorithms_of(without(RSA, "alg")) == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    for key in (P256, P384, P521, ED25519):
        assert algorithms_of(without(key, "alg")) == {key.algorithm}
    ed = OKPAlgorithm.to_jwk(ed448.Ed448PrivateKey.generate().public_key(), as_dict=True)
    assert algorithms_of({**ed, "key_ops": ["verify"]}) == {"EdDSA"}


def test_a_key_is_for_no_more_than_it_says_and_the_deployment_wants() -> None:
    assert algorithms_of(without(RSA, alg="PS384")) == {"PS384"}
    assert algorithms_of(without(RSA, "alg"), ("RS256", "ES256")) == {"RS256"}


LEFT_OUT: dict[str, dict[str, Any]] = {
    "a shared secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
    "an unknown kind": {"kty": "XYZ", "kid": "x"},
    "nothing": {},
    "of another algorithm": without(RSA, alg="ES256"),
    "of no known algorithm": without(RSA, alg="HS256"),
    "an algorithm that is a list": without(RSA, alg=["RS256"]),
    "to encrypt": without(RSA, use="enc"),
    "to sign": without(RSA, "use", key_ops=["sign"]),
    "operations that are a word": without(RSA, key_ops="verify"),
    "an id that is a number": without(RSA, kid=7),
    "an endless id": without(RSA, kid="x" * 257),
    "a broken number": without(RSA, n="!!!"),
    "no number": without(RSA, "n"),
    "a point that is not on the curve": without(P256, x=P256.jwk["y"]),
    "another curve's point": without(P256, "alg", crv="P-384"),
    "a curve for money": without(P256, "alg", crv="secp256k1"),
    "a short key": {
        **RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True),
        "kid": "x",
    },
    "a private key": {**RSAAlgorithm.to_jwk(RSA.key, as_dict=True), "kid": "x", "key_ops": ["sign", "verify"]},
}


@pytest.mark.parametrize("jwk", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_no_key_for_signatures_is_left_out_alone(jwk: dict[str, Any]) -> None:
    keys = KeySet([jwk, ED25519.jwk], algorithms=ALL)
    assert len(keys) == 1
    assert keys.find("EdDSA", "EdDSA") is not None


def test_a_token_without_an_id_is_of_the_only_key_that_fits() -> None:
    keys = KeySet([RSA.jwk, P256.jwk], algorithms=ALL)
    found = keys.find(None, "RS256")
    assert found is not None
    assert found.id == "RS256"
    assert KeySet([RSA.jwk, SigningKey("other", "RS256").jwk], algorithms=ALL).find(None, "RS256") is None


def test_a_key_is_the_same_whatever_it_is_called() -> None:
    key = KeySet([RSA.jwk], algorithms=ALL).find("RS256", "RS256")
    assert key is not None
    assert key in KeySet([without(RSA, kid="renamed")], algorithms=ALL)
    assert key not in KeySet([without(SigningKey("RS256", "RS256"))], algorithms=ALL)
