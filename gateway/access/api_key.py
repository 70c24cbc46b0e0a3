# SPDX-License-Identifier: Apache-2.0
"""API keys: ``tri-<id>-<secret>``, made of random bits, and kept as the id and a hash of the secret."""

import hashlib
import hmac
import re
import secrets
import string
from typing import NamedTuple

PREFIX = "tri-"
# The first character is a digit, with which no name of a key begins: a word names a key by its id or its name.
KEY_ID = re.compile(r"[0-9][0-9a-z]{11}")
_KEY = re.compile(rf"{PREFIX}(?P<id>{KEY_ID.pattern})-(?P<secret>[A-Za-z0-9_-]{{43}})")
_BEGINNING = re.compile(PREFIX + KEY_ID.pattern)
_SECRET_BYTES = 32
_BEARER = "bearer "
NO_HASH = bytes(hashlib.sha256().digest_size)  # of no secret that anybody knows


class ApiKey(NamedTuple):
    """A whole key, which nothing keeps: it is shown to whoever made it, and brought by callers.

    Attributes:
        id: public, for lists and logs.
        secret: 43 characters of base64url, 256 random bits.
    """

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey({self.id})"

    @property
    def text(self) -> str:
        """Return the key as callers bring it."""
        return f"{PREFIX}{self.id}-{self.secret}"

    @property
    def secret_sha256(self) -> bytes:
        """Return what is kept of the secret.

        A slow hash protects words that people choose. Nobody can try 2**256 secrets, however fast the hash is, and each
        request computes it once.
        """
        return hashlib.sha256(self.secret.encode()).digest()

    def is_of(self, secret_sha256: bytes) -> bool:
        """Return whether a hash is that of the key's secret, in a time that does not depend on either."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)


def new_key() -> ApiKey:
    """Return a new key."""
    id_rest = "".join(secrets.choice(string.digits + string.ascii_lowercase) for _ in range(11))
    return ApiKey(secrets.choice(string.digits) + id_rest, secrets.token_urlsafe(_SECRET_BYTES))


def read_key(text: str) -> ApiKey | None:
    """Return the key that a text is; None: it is none."""
    found = _KEY.fullmatch(text)
    return None if found is None else ApiKey(found["id"], found["secret"])


def holds_a_key(text: str) -> bool:
    """Return whether a text holds the beginning of a key, so that nothing may show it."""
    return _BEGINNING.search(text) is not None


def bearer_of(authorization: str) -> str | None:
    """Return what a header `Authorization` brings, a key or a token; None: nothing."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()


def bearer_key(authorization: str) -> ApiKey | None:
    """Return the key of a header `Authorization`; None: it holds none."""
    brought = bearer_of(authorization)
    return None if brought is None else read_key(brought)
