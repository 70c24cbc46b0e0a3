# SPDX-License-Identifier: Apache-2.0
"""Certificates of Triton's gRPC endpoint: what a deployment names, and what is wrong with the files.

Triton reads them when it starts, and its HTTP endpoint has no TLS at all.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Spec
from ensemble_configs.spec.finding import Finding

if TYPE_CHECKING:
    from cryptography import x509

_SOON_DAYS = 30


class GrpcTlsSpec(Spec):
    """Certificates of the gRPC endpoint; without them it is reached without TLS."""

    cert_file: Path = Field(description="PEM file of the server's certificate, with its chain")
    key_file: Path = Field(description="PEM file of that certificate's private key, without a password")
    client_ca_file: Path | None = Field(
        default=None,
        description="PEM file of authorities: clients have to show a certificate of theirs (mTLS)",
    )
    own_cert_file: Path | None = Field(
        default=None,
        description="with client_ca_file: what commands on this machine, such as `trireme rollout`, show; none: the "
        "server's own certificate",
    )
    own_key_file: Path | None = Field(default=None, description="that certificate's private key")

    @model_validator(mode="after")
    def _own_pair_is_whole(self) -> "GrpcTlsSpec":
        if (self.own_cert_file is None) != (self.own_key_file is None):
            raise ValueError("own_cert_file and own_key_file go together; name both or neither")
        if self.own_cert_file is not None and self.client_ca_file is None:
            raise ValueError("own_cert_file is shown only where client_ca_file asks for certificates; name that, too")
        return self

    @property
    def own_pair(self) -> tuple[Path, Path]:
        """Return the certificate and key that commands on this machine show to the server."""
        if self.own_cert_file is None or self.own_key_file is None:
            return self.cert_file, self.key_file
        return self.own_cert_file, self.own_key_file

    @property
    def files(self) -> dict[str, Path]:
        """Return the files that are named, by field."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: path for name, path in named.items() if path is not None}


class Certificate(NamedTuple):
    """Names and expiry of the server's certificate, as people read them."""

    names: tuple[str, ...]
    valid_until: datetime.datetime

    @property
    def days_left(self) -> float:
        """Return the days until the certificate expires; below 0: it has expired."""
        return (self.valid_until - _now()) / datetime.timedelta(days=1)

    @property
    def facts(self) -> dict[str, object]:
        """Return the certificate's facts for a program, as JSON data."""
        return {"names": list(self.names), "valid_until": self.valid_until.isoformat()}

    @property
    def summary(self) -> str:
        """Return the certificate's facts in some words, with a warning where it expires soon."""
        soon = ": RENEW IT, and start the server again" if self.days_left < _SOON_DAYS else ""
        return f"{', '.join(self.names)}; valid for {self.days_left:.0f} days, until {self.valid_until:%Y-%m-%d}{soon}"


def certificate_of(tls: GrpcTlsSpec) -> Certificate:
    """Return what the server's certificate says.

    Raises:
        OSError, ValueError: the certificate cannot be read.
    """
    first = _certificates(tls.cert_file)[0]
    return Certificate(_names(first), first.not_valid_after_utc)


def own_access(tls: GrpcTlsSpec) -> dict[str, str]:
    """Return how a command on this machine connects to the server, as fields of `clients.access.Access`.

    The server's certificate itself is what is trusted, whatever signed it, by the first of its names: the address is
    one of this machine, which a certificate mostly does not name.

    Raises:
        OSError, ValueError: the certificate cannot be read.
    """
    name = certificate_of(tls).names[0].replace("*", "any")
    found = {"ca_file": str(tls.cert_file), "server_name": name}
    if tls.client_ca_file is None:
        return found
    cert_file, key_file = tls.own_pair
    return {**found, "cert_file": str(cert_file), "key_file": str(key_file)}


def grpc_tls_findings(tls: GrpcTlsSpec) -> list[Finding]:
    """Return what stands in the way of serving with these files, by field."""
    unread = [finding for name, path in tls.files.items() if (finding := _unread(name, path)) is not None]
    return unread or [*_wrong_pairs(tls), *_wrong_dates(tls)]


def _unread(name: str, path: Path) -> Finding | None:
    try:
        _private_key(path) if name.endswith("key_file") else _certificates(path)
    except OSError as exc:
        return _finding(name, f"{path}: {exc.strerror}", "a file that can be read", "name another, or change its mode")
    except (TypeError, ValueError) as exc:  # the first: the key has a password
        kind = "private key without a password" if name.endswith("key_file") else "certificate"
        return _finding(name, f"{path}: {' '.join(str(exc).split())[:120]}", f"a {kind} in PEM", "name another file")
    return None


def _wrong_pairs(tls: GrpcTlsSpec) -> Iterator[Finding]:
    for name, (cert, key) in {"key_file": (tls.cert_file, tls.key_file), "own_key_file": tls.own_pair}.items():
        if getattr(tls, name) is not None and _certificates(cert)[0].public_key() != _private_key(key).public_key():
            yield _finding(name, f"{key}, of another certificate", f"the private key of {cert}", "name that one")


def _wrong_dates(tls: GrpcTlsSpec) -> Iterator[Finding]:
    for name in ("cert_file", "own_cert_file"):
        if (path := getattr(tls, name)) is None:
            continue
        first = _certificates(path)[0]
        since, until = first.not_valid_before_utc, first.not_valid_after_utc
        if not since <= _now() <= until:
            found = f"{path}, valid from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
            yield _finding(name, found, "a certificate that is valid now", "have it renewed, and look at the clock")


def _finding(name: str, found: str, wanted: str, next_step: str) -> Finding:
    return Finding(check=f"triton.grpc_tls.{name}", found=found, wanted=wanted, next_step=next_step)


def _certificates(path: Path) -> "list[x509.Certificate]":
    from cryptography import x509  # noqa: PLC0415  only where a deployment has certificates

    return x509.load_pem_x509_certificates(path.read_bytes())


def _private_key(path: Path):  # type: ignore[no-untyped-def]
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415  as above

    return load_pem_private_key(path.read_bytes(), password=None)


def _names(certificate: "x509.Certificate") -> tuple[str, ...]:
    from cryptography import x509  # noqa: PLC0415  as above

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(
            str(each.value) for each in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        ) or ("(no name)",)
    return (
        *found.get_values_for_type(x509.DNSName),
        *(str(address) for address in found.get_values_for_type(x509.IPAddress)),
    ) or ("(no name)",)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
