# SPDX-License-Identifier: Apache-2.0
"""Reasons for which a connection or a key was refused, as `AccessDenied` that says what to change.

gRPC tells a handshake that failed as UNAVAILABLE, as it tells a server that is down; some servers close the connection
without a word where a client certificate is missing. So where its text does not say why, one handshake is tried by
Python's own TLS, which does.
"""

import re
import socket
import ssl
from http import HTTPStatus

from clients.access import Access, redacted
from clients.tls_context import bare_context, tls_context
from trireme.base.errors import AccessDenied, SpecError

_PATIENCE_S = 3.0  # of the handshake that is tried
KEY_STATUSES = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_KEY_CODES = re.compile(r"\[StatusCode\.(?:UNAUTHENTICATED|PERMISSION_DENIED)\]")
# The second is grpc.aio's word for a request that could not be written any more.
_LOST = re.compile(r"\[StatusCode\.(?:UNAVAILABLE\]|INTERNAL\] Internal error from Core)")
# gRPC's words for a connection that nobody took; any other that failed may have been refused for its certificates.
_NOBODY = re.compile(r"Connection refused|[Nn]o route|unreachable|DNS|resolving|[Tt]imed? ?out")

# By words that OpenSSL and BoringSSL have in common; the first that is found counts. An alert is the server's.
_SIGNS = tuple(
    (reason, re.compile(pattern))
    for reason, pattern in (
        ("expired", r"certificate (?:has expired|is not yet valid)"),
        ("wrong_name", r"hostname verification|hostname mismatch|ip address mismatch|not valid for '|peer name"),
        ("unknown_authority", r"certificate verify failed"),
        (
            "client_certificate",
            r"certificate required|alert (?:bad certificate|unknown ca|certificate|unsupported certificate|handshake)",
        ),
        ("no_tls", r"wrong version number|http request|record layer failure|packet length too long"),
    )
)


def refused_connection(text: str, target: str, access: Access) -> AccessDenied | None:
    """Return what an error text of gRPC or of Python's TLS says of certificates; None: nothing."""
    words = text.lower().replace("_", " ")
    reason = next((reason for reason, pattern in _SIGNS if pattern.search(words)), None)
    return None if reason is None else denied(reason, target, access)


def refused_call(text: str, target: str, access: Access) -> AccessDenied | None:
    """Return why a gRPC call was refused, by its ``[StatusCode.X] details``; None: for another reason.

    It may connect to the server, for some seconds at most: not for an event loop's own thread.
    """
    if _KEY_CODES.match(text):
        return refused_key(text.partition("] ")[2], target, access)
    if not _LOST.match(text):
        return None
    found = refused_connection(text, target, access)
    return found or (None if _NOBODY.search(text) else tried_handshake(target, access))


def refused_status(status: int, message: str, access: Access) -> AccessDenied | None:
    """Return what the status of an HTTP answer says of the key; None: nothing."""
    return refused_key(message, "", access) if status in KEY_STATUSES else None


def refused_key(said: str, target: str, access: Access) -> AccessDenied:
    """Return the error of a server that wants another key; `said`: in its own words."""
    where = f"the server at {target}" if target else "the server"
    said = redacted(said.strip()) or "it gave no reason"
    if not access.has_token:
        cure = "it got no key: give --token-file or --token-env, with --token-header where it is not `authorization`"
        return AccessDenied(f"{where} refuses the request: {said}; {cure}", reason="no_key")
    source = f"--token-file {access.token_file}" if access.token_file else f"--token-env {access.token_env}"
    cure = f"it got the key of {source} in the header {access.token_header}: is it the right one, and still valid?"
    return AccessDenied(f"{where} refuses the request: {said}; {cure}", reason="key")


def tried_handshake(target: str, access: Access) -> AccessDenied | None:
    """Return why a server refuses a connection, by trying one; None: it does not, or nobody is there."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    try:
        context = tls_context(access, protocols=("h2",)) if access.uses_tls else bare_context()
        with (
            socket.create_connection((host, int(port)), _PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return _after_handshake(secure, target, access)
    except ssl.SSLError as exc:
        found = refused_connection(str(exc), target, access)
        if access.uses_tls:
            return found
        is_tls = found is not None and found.facts["reason"] == "no_client_certificate"
        return denied("tls_required", target, access) if is_tls else None
    except (OSError, SpecError):
        return None


def _after_handshake(secure: ssl.SSLSocket, target: str, access: Access) -> AccessDenied | None:
    """Wait for the first bytes of a server: HTTP/2's speaks first, one that wants a certificate ends the connection."""
    if not access.uses_tls:
        return denied("tls_required", target, access)
    try:
        is_ended = not secure.recv(1)
    except TimeoutError:
        return None
    except ConnectionError:
        is_ended = True
    return denied("client_certificate", target, access) if is_ended else None


def denied(reason: str, target: str, access: Access) -> AccessDenied:
    """Return the error of a connection that is refused, by the reason's name."""
    if reason == "client_certificate" and access.cert_file is None:
        reason = "no_client_certificate"
    told = _MESSAGES[reason].format(
        target=target,
        trusted=access.ca_file or "none is named, so only public ones are",
        name=access.server_name or target.rpartition(":")[0],
        cert_file=access.cert_file,
    )
    return AccessDenied(told, reason=reason)


_MESSAGES = {
    "expired": "the certificate of {target} has expired, or is not valid yet; have it renewed, and look at this "
    "machine's clock",
    "wrong_name": "the certificate of {target} is not for the name {name!r}; use an address that is in it, or name one "
    "of its names with --tls-server-name",
    "unknown_authority": "the certificate of {target} is not of an authority that is trusted ({trusted}); name the "
    "right authority's certificate with --ca-file",
    "client_certificate": "{target} does not accept the client certificate {cert_file}: it has expired, or is of an "
    "authority that the server does not trust; name another with --cert-file and --key-file",
    "no_client_certificate": "{target} wants a client certificate (mTLS); give --cert-file and --key-file",
    "no_tls": "{target} does not speak TLS, or not at this port; leave out the options of TLS, or correct --url",
    "tls_required": "{target} speaks TLS; give --tls, with --ca-file where its authority is not a public one, or write "
    "the address with grpcs:// or https://",
}
