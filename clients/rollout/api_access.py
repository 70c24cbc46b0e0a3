# SPDX-License-Identifier: Apache-2.0
"""The certificate that a rollout shows to its clients, and the keys without which it believes nobody."""

import hmac
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from clients.rollout.records.rollout_plan import Plan, SplitBy
from trireme.base.errors import RequestError, SpecError

_LEAST_CHARS = 16
_BEARER = "bearer "


class ApiAccess(NamedTuple):
    """The names of files, never a secret: a plan holds them.

    Attributes:
        cert_file, key_file: PEM files of the certificate, with its chain, and its private key. None: no TLS.
        token_file: file of the keys that callers bring as ``Authorization: Bearer KEY``, one a line. None: no key.
    """

    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None

    @classmethod
    def of(cls, plan: Plan) -> "ApiAccess":
        """Return the access that a plan names."""
        return cls(*(Path(name) if name else None for name in (plan.cert_file, plan.key_file, plan.token_file)))

    def over(self, other: "ApiAccess") -> "ApiAccess":
        """Return this access, with `other`'s certificate or keys where this one names none."""
        ours = self if self.cert_file or self.key_file else other
        return ApiAccess(ours.cert_file, ours.key_file, self.token_file or other.token_file)

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
                f"--{given}-file is given without --{missing}-file: a certificate goes with its private key; name both "
                "or neither",
                field=f"{missing}_file",
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")  # else the terminal is asked
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            why = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
            raise SpecError(
                f"--cert-file {self.cert_file} and --key-file {self.key_file} cannot be used: {why}; name a "
                "certificate and its own private key, without a password, in PEM",
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
        where = f"--token-file {self.token_file}"
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

    def accepts(self, authorization: str) -> bool:
        """Return whether a caller's `Authorization` holds a key that is accepted now, in a time that tells nothing.

        Raises:
            SpecError: as `keys`.
        """
        keys = self.keys()
        if keys is None:
            return True
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        brought = authorization[len(_BEARER) :].strip().encode("utf-8", "surrogateescape") if is_bearer else b""
        return any([hmac.compare_digest(brought, key) for key in keys])  # noqa: C419  # all of them, whichever fits

    def check(self, host: str, plan: Plan) -> None:
        """Refuse what cannot be used, and a host on which strangers could decide a rollout.

        Raises:
            SpecError: a file cannot be used.
            RequestError: other machines can report outcomes that decide, without a key or without TLS for it.
        """
        is_safe = self.tls() is not None
        has_key = self.keys() is not None
        if _is_loopback(host) or (plan.split_by is not SplitBy.CLIENTS and not has_key):
            return
        if not has_key:
            raise RequestError(
                f"host {host} lets other machines report the outcomes that decide this rollout; give --token-file with "
                "--cert-file and --key-file, or listen on 127.0.0.1",
                field="host",
                value=host,
            )
        if not is_safe:
            raise RequestError(
                f"host {host} with --token-file has no TLS, and a key could be read on its way; give --cert-file and "
                "--key-file, or listen on 127.0.0.1 behind a proxy that ends TLS",
                field="host",
                value=host,
            )


NO_ACCESS = ApiAccess()


def _is_key(line: str) -> bool:
    return len(line) >= _LEAST_CHARS and all("!" <= char <= "~" for char in line)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
