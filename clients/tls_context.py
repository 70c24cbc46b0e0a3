# SPDX-License-Identifier: Apache-2.0
"""The TLS of Python's own library, for what is asked over HTTP; gRPC has another one (`clients.grpc_channel`)."""

import ssl
import urllib.request
from collections.abc import Sequence
from typing import Any, NamedTuple

from clients.access import Access
from trireme.base.errors import SpecError


class NamedContext(ssl.SSLContext):
    """A context that expects one name in a server's certificate, whatever the address; None: the address's host."""

    server_name: str | None = None

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Return the socket with TLS on it, as `ssl.SSLContext` does."""
        return super().wrap_socket(*args, **self._named(kwargs))

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Return TLS between two buffers, as `ssl.SSLContext` does; asyncio uses it."""
        return super().wrap_bio(*args, **self._named(kwargs))

    def _named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs if self.server_name is None else {**kwargs, "server_hostname": self.server_name}


def tls_context(access: Access, *, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the context for connections to a server; `protocols`: of the handshake (ALPN), such as ``h2``.

    Raises:
        SpecError: a file is not what it should be.
    """
    context = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = access.server_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: a certificate that is named is trusted
    if protocols:
        context.set_alpn_protocols(list(protocols))
    authorities = access.pem("ca_file")
    if authorities is None:
        context.load_default_certs()
        return _with_certificate(context, access)
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
    except ssl.SSLError as exc:
        raise SpecError(
            f"--ca-file {access.ca_file} holds no certificate that can be read ({exc.reason or exc}); name a PEM file "
            "of certificates",
            field="ca_file",
        ) from exc
    return _with_certificate(context, access)


def _with_certificate(context: ssl.SSLContext, access: Access) -> ssl.SSLContext:
    if access.cert_file is None:
        return context
    certificate = access.pem("cert_file") or b""
    access.pem("key_file")
    try:
        context.load_cert_chain(access.cert_file, access.key_file, password=_no_password)
    except (ssl.SSLError, ValueError) as exc:
        why = "they do not belong together" if "MISMATCH" in str(exc) else str(getattr(exc, "reason", None) or exc)
        if b"-----BEGIN CERTIFICATE" not in certificate:
            why = "the first holds no certificate, as if the two were swapped"
        raise SpecError(
            f"--cert-file {access.cert_file} and --key-file {access.key_file} cannot be used: {why}; name a "
            "certificate and its own private key, without a password, in PEM",
            field="key_file",
        ) from exc
    return context


def _no_password() -> str:
    """Refuse to ask for the password of a key; OpenSSL would ask the terminal."""
    raise ValueError("the private key has a password")


def check_access(access: Access) -> None:
    """Refuse what does not go together or cannot be read, before anything is sent.

    Raises:
        SpecError: it names the option, and what to change.
    """
    access.check()
    if access.uses_tls:
        tls_context(access)


def bare_context() -> ssl.SSLContext:
    """Return a context that asks a server for nothing: only to see that it speaks TLS. Nothing is sent on it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


class HttpCall(NamedTuple):
    """Arguments of `urllib.request.urlopen`; `context` is None for an address without TLS."""

    request: urllib.request.Request
    context: ssl.SSLContext | None


def http_call(url: str, access: Access, *, data: bytes | None = None) -> HttpCall:
    """Return a request with the key, and the TLS for it.

    Without TLS no key is sent: what is asked so, a page of metrics or a split, is another place than the server that
    the key is for, and anybody on the way could read it.

    Raises:
        SpecError: the key or a file cannot be read.
    """
    request = urllib.request.Request(url, data=data)
    if not url.lower().startswith("https://"):
        return HttpCall(request, None)
    for name, value in access.headers():
        request.add_header(name, value)
    return HttpCall(request, tls_context(access))
