# SPDX-License-Identifier: Apache-2.0
"""The access to a server: the certificates that a client trusts, and its own certificate or key.

`Access` holds names of files and of an environment variable, never a secret: it may be shown, written and sent to other
processes. A key is read for each request, so that one which is replaced while a client runs is used from then on. What
carries it out is in `clients.grpc_channel` and `clients.tls_context`; what a refusal means in `clients.access_errors`.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from trireme.base.errors import RequestError, SpecError

AUTHORIZATION = "authorization"
_GRPC_SCHEMES = {"grpc": False, "grpcs": True}
_HTTP_SCHEMES = {"http": False, "https": True}
_HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_TOKEN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_MAX_TOKEN_CHARS = 16_384
_MOST_KEPT = 16
_LEAST_HIDDEN = 8  # characters; what is shorter is a part of words, and a text without it could not be read
_HIDDEN = "..."

_tokens_read: dict[str, None] = {}  # by this process, the newest last; for `redacted`


class Access(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Means of access beside an address; the default is a connection without TLS and without a key.

    Attributes:
        is_tls: the connection is encrypted and the server's certificate checked; the other fields of TLS mean it too.
        ca_file: PEM file of the authorities that are trusted. None: gRPC's own list, or OpenSSL's for HTTP.
        cert_file, key_file: PEM files of the client's certificate, with its chain, and private key (mTLS).
        server_name: name that the server's certificate must have. None: the host of the address.
        token_file: file with a key or bearer token. token_env: environment variable that holds it.
        token_header: header that carries it. In `authorization` it is sent as ``Bearer TOKEN``, elsewhere as it is.
    """

    is_tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    token_header: str = AUTHORIZATION

    @property
    def uses_tls(self) -> bool:
        """Return whether connections are encrypted; a field that only TLS has asks for it."""
        return self.is_tls or any((self.ca_file, self.cert_file, self.key_file, self.server_name))

    @property
    def has_token(self) -> bool:
        """Return whether a key is sent."""
        return self.token_file is not None or self.token_env is not None

    def check(self) -> None:
        """Refuse what does not go together or cannot be read, before anything is sent.

        Raises:
            SpecError: it names the option, and what to change.
        """
        if (self.cert_file is None) != (self.key_file is None):
            given, missing = ("cert", "key") if self.key_file is None else ("key", "cert")
            raise SpecError(
                f"--{given}-file is given without --{missing}-file: a client certificate goes with its private key; "
                "name both or neither",
                field=f"{missing}_file",
            )
        if self.token_file is not None and self.token_env is not None:
            raise SpecError("--token-file and --token-env both name the key; leave one out", field="token_env")
        if self.token_header != AUTHORIZATION and not self.has_token:
            raise SpecError("--token-header names where a key goes; give --token-file or --token-env with it",
                            field="token_header")  # fmt: skip
        if not _HEADER_NAME.fullmatch(self.token_header) or self.token_header.endswith("-bin"):
            raise SpecError(
                f"--token-header must be a header's name in lower case, such as x-api-key, got {self.token_header!r}",
                field="token_header",
                value=self.token_header,
            )
        for name in ("ca_file", "cert_file", "key_file"):
            self.pem(name)
        self.headers()

    def pem(self, field: str) -> bytes | None:
        """Return the content of a file by its field; None: it is not named.

        Raises:
            SpecError: the file cannot be read, or is not PEM.
        """
        path = getattr(self, field)
        if path is None:
            return None
        option = f"--{field.replace('_', '-')}"
        content = _read(Path(path), option, field)
        if b"-----BEGIN " not in content:
            raise SpecError(
                f"{option} {path} is not PEM (it has no line -----BEGIN ...); convert it with openssl", field=field
            )
        return content

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the header with the key, as gRPC metadata or for HTTP; none where there is no key.

        Raises:
            SpecError: the key cannot be read, or no header may hold it.
        """
        token = self._token()
        if token is None:
            return ()
        return ((self.token_header, f"Bearer {token}" if self.token_header == AUTHORIZATION else token),)

    def _token(self) -> str | None:
        if self.token_file is not None:
            said, token = f"--token-file {self.token_file}", _read(
                Path(self.token_file), "--token-file", "token_file"
            ).decode("utf-8", "replace")  # fmt: skip
        elif self.token_env is not None:
            said, token = f"--token-env {self.token_env}", os.environ.get(self.token_env, "")
        else:
            return None
        token = token.strip()
        if not token:
            raise SpecError(f"{said}: it is not set or empty; it must hold the key", field="token")
        if len(token) > _MAX_TOKEN_CHARS or not _TOKEN.fullmatch(token):
            raise SpecError(
                f"{said} holds no key that a header may carry: one line of ASCII, of {_MAX_TOKEN_CHARS} characters at "
                "most",
                field="token",
            )
        _remember(token)
        return token


NO_ACCESS = Access()


class Endpoint(NamedTuple):
    """An address to connect to, and the access for it."""

    target: str  # host:port
    access: Access


def grpc_endpoint(url: str, access: Access = NO_ACCESS) -> Endpoint:
    """Return what the address of a gRPC endpoint means: ``host:port``, ``grpc://host:port`` or ``grpcs://host:port``.

    Raises:
        RequestError: it is no such address, or says another thing than `access`.
    """
    scheme, has_scheme, target = url.rpartition("://")
    is_known = not has_scheme or scheme in _GRPC_SCHEMES
    if not is_known or not target.rpartition(":")[2].isdecimal() or "@" in target or "/" in target:
        message = (
            "url must be host:port of the gRPC endpoint, such as localhost:8001, or grpcs://host:port for TLS, got "
            f"{_without_user(url)!r}"
        )
        raise RequestError(message, field="url", value=_without_user(url))
    return Endpoint(target, with_scheme(url, access) if has_scheme else access)


def with_scheme(url: str, access: Access) -> Access:
    """Return `access` with the TLS that the scheme of an address asks for.

    Raises:
        RequestError: the address is one without TLS, and `access` wants it.
    """
    scheme = url.partition("://")[0]
    if (_GRPC_SCHEMES | _HTTP_SCHEMES).get(scheme, False):
        return msgspec.structs.replace(access, is_tls=True)
    if access.uses_tls:
        secure = f"{scheme}s"
        raise RequestError(
            f"the address {url!r} is one without TLS, and options of TLS are given (--tls, --ca-file, --cert-file, "
            f"--tls-server-name); write {secure}://..., or leave them out",
            field="url",
            value=url,
        )
    return access


def is_grpc_url(url: str) -> bool:
    """Return whether an address is of a gRPC endpoint, and not of HTTP."""
    return "://" not in url or url.partition("://")[0] in _GRPC_SCHEMES


def host_of(url: str) -> str:
    """Return the host of an address, as it stands there."""
    return grpc_endpoint(url).target.rpartition(":")[0] if is_grpc_url(url) else urlsplit(url).hostname or ""


def with_port(url: str) -> str:
    """Return ``host:port`` of an address of HTTP."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def redacted(text: str) -> str:
    """Return a text without the keys that this process has read; a server may repeat what it was sent."""
    for token in reversed(_tokens_read):
        text = text.replace(token, _HIDDEN)
    return text


def _remember(token: str) -> None:
    if token in _tokens_read or len(token) < _LEAST_HIDDEN:
        return
    _tokens_read[token] = None
    while len(_tokens_read) > _MOST_KEPT:
        _tokens_read.pop(next(iter(_tokens_read)))


def _read(path: Path, option: str, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SpecError(
            f"{option} {path} cannot be read: {exc.strerror}; name a file that you may read", field=field, file=path
        ) from exc


def _without_user(url: str) -> str:
    """Return an address without user and password, which an error does not repeat."""
    return re.sub(r"[^/@]*@", "...@", url)
