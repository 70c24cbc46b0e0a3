# SPDX-License-Identifier: Apache-2.0
"""A small OpenID Connect provider on this machine: discovery, keys that rotate, and tokens that it signs."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "trireme"
DISCOVERY = "/.well-known/openid-configuration"
_CURVES: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


class SigningKey:
    """A private key of a provider, for one algorithm."""

    def __init__(self, key_id: str, algorithm: str = "ES256", *, rsa_bits: int = 2048) -> None:
        self.id, self.algorithm = key_id, algorithm
        self.key: Any
        if algorithm in _CURVES:
            self.key = ec.generate_private_key(_CURVES[algorithm])
            public = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        elif algorithm == "EdDSA":
            self.key = ed25519.Ed25519PrivateKey.generate()
            public = OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        else:
            self.key = rsa.generate_private_key(65537, rsa_bits)
            public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        public.pop("key_ops", None)
        self.jwk: dict[str, Any] = {**public, "kid": key_id, "alg": algorithm, "use": "sig"}

    def sign(self, claims: Mapping[str, Any], **head: Any) -> str:
        """Return a token; a field of its head that is None is left out."""
        named = {"kid": self.id, "typ": "at+jwt", **head}
        algorithm = named.pop("alg", self.algorithm)
        return jwt.encode(dict(claims), self.key, algorithm, {name: each for name, each in named.items() if each})


def part(value: object) -> str:
    """Return a part of a token: an object as JSON, or bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients who hang up."""


class OidcProvider:
    """A provider that runs inside a `with`.

    Args:
        keys: that it has; none: one of its own.
        tls: None: it speaks plain HTTP.

    Attributes:
        keys: that sign; the first one does, and all are published.
        jwks: what is published beside them.
        paths: of the requests that it had.
        answers: in the place of what it would say, by path: status, headers, body.
        is_away: it breaks every connection.
        gate: where it is not set, answers wait for it.
    """

    def __init__(self, *keys: SigningKey, tls: ssl.SSLContext | None = None) -> None:
        self.keys = list(keys) or [SigningKey("first")]
        self.jwks: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.is_away = False
        self.gate = threading.Event()
        self.gate.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                provider.paths.append(self.path)
                provider.gate.wait(20)
                if provider.is_away:
                    self.close_connection = True
                    return
                status, headers, body = provider.answers.get(self.path) or provider.answer(self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = len(body) != int(headers.get("Content-Length", len(body)))

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.issuer = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}/realms/acme"
        self.jwks_url = f"{self.issuer}/certs"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return what the provider says by itself."""
        if path == f"/realms/acme{DISCOVERY}":
            return 200, {}, json.dumps({"issuer": self.issuer, "jwks_uri": self.jwks_url}).encode()
        if path == "/realms/acme/certs":
            return 200, {}, json.dumps({"keys": [*(key.jwk for key in self.keys), *self.jwks]}).encode()
        return 404, {}, b""

    def num_key_requests(self) -> int:
        """Return how often the keys were asked for."""
        return self.paths.count("/realms/acme/certs")

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a token that is good for five minutes; what is None is left out."""
        now_s = int(time.time())
        found = {"iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "iat": now_s, "exp": now_s + 300, **changes}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, **changes: Any) -> str:
        """Return a token by the first key, with changes of its claims."""
        return self.keys[0].sign(self.claims(**changes))
