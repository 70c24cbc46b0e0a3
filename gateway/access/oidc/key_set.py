# SPDX-License-Identifier: Apache-2.0
"""The public keys of a provider (JWKS, RFC 7517), each with the algorithms whose signatures it may check."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWK
from jwt.exceptions import PyJWTError

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

MAX_KEYS = 100
MAX_ID_CHARS = 256
_LEAST_RSA_BITS, _MOST_RSA_BITS = 2048, 8192  # less is broken, and more takes milliseconds
_OF_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_OF_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_OF_EDWARDS = frozenset({"Ed25519", "Ed448"})


class VerificationKey(NamedTuple):
    """A public key.

    Attributes:
        id: `kid` of the key; "": it has none.
        algorithms: whose signatures it checks; no other one is tried with it.
        data: the key's bytes, by which a key is the same one.
    """

    id: str
    algorithms: frozenset[str]
    key: PublicKey
    data: bytes


class KeySet:
    """The keys of a provider. Args: `keys`: objects of its set; what is not for signatures here is left out."""

    def __init__(self, keys: Iterable[Mapping[str, Any]], *, algorithms: Iterable[str]) -> None:
        wanted = frozenset(algorithms)
        self._keys = [key for found in keys for key in _read(found, wanted)]
        self._data = frozenset(key.data for key in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: VerificationKey) -> bool:
        return key.data in self._data

    def find(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        """Return the key for a token; None: there is none.

        Args:
            key_id: `kid` of the token; None: it has none, and is of the only key for its algorithm.
        """
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.id == key_id), None)


def _read(found: Mapping[str, Any], wanted: frozenset[str]) -> Iterator[VerificationKey]:
    """Yield the key that an object is, if it is one for signatures by the wanted algorithms."""
    key_id, operations = found.get("kid", ""), found.get("key_ops", ["verify"])
    if not isinstance(key_id, str) or len(key_id) > MAX_ID_CHARS:
        return
    if found.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return
    algorithms = wanted & _algorithms(found)
    if "alg" in found:
        algorithms &= {found["alg"]} if isinstance(found["alg"], str) else frozenset()
    if not algorithms:
        return
    try:
        key = PyJWK(dict(found), algorithm=min(algorithms)).key
    except (PyJWTError, ValueError, TypeError, OverflowError):
        return
    if not isinstance(key, PublicKey):  # a private key that is published is nobody's any more
        return
    if isinstance(key, RSAPublicKey) and not _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS:
        return
    yield VerificationKey(key_id, algorithms, key, key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _algorithms(found: Mapping[str, Any]) -> frozenset[str]:
    """Return the algorithms that a kind of key is for; none for what is no public key, such as a shared secret."""
    kind, curve = found.get("kty"), str(found.get("crv"))
    if kind == "RSA":
        return _OF_RSA
    if kind == "EC" and curve in _OF_CURVES:
        return frozenset({_OF_CURVES[curve]})
    if kind == "OKP" and curve in _OF_EDWARDS:
        return frozenset({"EdDSA"})
    return frozenset()
