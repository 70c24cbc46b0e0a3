# SPDX-License-Identifier: Apache-2.0
"""The certificate that an HTTP server shows to its callers, and the keys without which it believes nobody."""

import hmac
import ipaddress
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trireme.base.errors import SpecError

_LEAST_CHARS = 16
_BEARER = "bearer "
_CLOCK_S = 2.0  # the times of files go in steps, of two seconds at most


class HttpAccess(NamedTuple):
    """The names of files, never a secret, so that a plan may hold them.

    Attributes:
        cert_file, key_file: PEM files of the certificate, with its chain, and its private key. None: no TLS.
        token_file: file of the keys that callers bring as ``Authorization: Bearer KEY``, one a line. None: no key.
        options: what the command's options for these files begin with, such as `--remote-`.
    """

    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    options: str = "--"

    def over(self, other: "HttpAccess") -> "HttpAccess":
        """Return this access, with `other`'s certificate or keys where this one names none."""
        ours = self if self.cert_file or self.key_file else other
        return self._replace(
            cert_file=ours.cert_file, key_file=ours.key_file, token_file=self.token_file or other.token_file
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of connections; None: they have no TLS.

        Raises:
            SpecError: the certificate and the private key cannot be used; it names the option.
        """
        if self.cert_file is None and self.key_file is None:
            return None
        if self.cert_file is None or self.key_file is None:
            given, missing = ("cert", "key") if self.key_file is None else ("key", "cert")
            raise SpecError(
                f"{self.options}{given}-file is given without {self.options}{missing}-file: a certificate goes "
                "with its private key; name both or neither",
                field=f"{missing}_file",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")  # else the terminal is asked
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            why = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
            raise SpecError(
                f"{self.options}cert-file {self.cert_file} and {self.options}key-file {self.key_file} cannot be used: "
                f"{why}; name a certificate and its own private key, without a password, in PEM",
                field="cert_file",
            ) from exc
        return context

    def keys(self) -> frozenset[bytes] | None:
        """Return the keys that are accepted now, so that one can be replaced by another; None: none is asked for.

        Raises:
            SpecError: the file cannot be read, or a line of it is no key; the text holds no key.
        """
        if self.token_file is None:
            return None
        where = f"{self.options}token-file {self.token_file}"
        try:
            lines = [line.strip() for line in self.token_file.read_text("utf-8").splitlines()]
        except (OSError, UnicodeError) as exc:
            why = getattr(exc, "strerror", None) or "it is not UTF-8"
            raise SpecError(
                f"{where} cannot be read: {why}; name a file of keys, one a line", field="token_file"
            ) from exc
        found = [line for line in lines if line]
        wrong = [str(number) for number, line in enumerate(lines, 1) if line and not _is_key(line)]
        if wrong or not found:
            said = f"line {', '.join(wrong)} is no key" if wrong else "it is empty"
            raise SpecError(
                f"{where}: {said}; a key is at least {_LEAST_CHARS} visible characters of ASCII, one key a line, such "
                "as `openssl rand -hex 32` prints",
                field="token_file",
            )
        return frozenset(line.encode() for line in found)


class AcceptedKeys:
    """The keys that are accepted now: their file is read again when it has changed.

    Args:
        access: names the file.
        now_s: seconds since 1970, as times of files are.
    """

    def __init__(self, access: HttpAccess, now_s: Callable[[], float] = time.time) -> None:
        self._access, self._now_s = access, now_s
        self._read: tuple[object, frozenset[bytes] | None] | None = None

    def accepts(self, authorization: str) -> bool:
        """Return whether a caller's `Authorization` holds a key that is accepted now, in a time that tells nothing.

        Raises:
            SpecError: as `HttpAccess.keys`.
        """
        keys = self._keys()
        if keys is None:
            return True
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        brought = authorization[len(_BEARER) :].strip().encode("utf-8", "surrogateescape") if is_bearer else b""
        return any([hmac.compare_digest(brought, key) for key in keys])  # noqa: C419  # all of them, whichever fits

    def _keys(self) -> frozenset[bytes] | None:
        if self._access.token_file is None:
            return None
        state = file_state(self._access.token_file, self._now_s())
        if state is not None and self._read is not None and self._read[0] == state:
            return self._read[1]
        self._read = None
        keys = self._access.keys()
        if state is not None:
            self._read = (state, keys)
        return keys


def file_state(file: Path, now_s: float) -> tuple[int, ...] | None:
    """Return what changes with a file; None: it is gone, or so new that another change might not show."""
    try:
        found = file.stat()
    except OSError:
        return None
    if abs(now_s - found.st_ctime) < _CLOCK_S:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _is_key(line: str) -> bool:
    return len(line) >= _LEAST_CHARS and all("!" <= char <= "~" for char in line)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
