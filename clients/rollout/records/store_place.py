# SPDX-License-Identifier: Apache-2.0
"""The place of a store of rollouts: a file, or a database of PostgreSQL; `clients.rollout.records.store` opens it."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from trireme.base.errors import RequestError

_SCHEMES = ("postgresql", "postgres")
_FORM = "postgresql://USER@HOST:PORT/DATABASE"


@dataclass(frozen=True)
class PostgresPlace:
    """A database of PostgreSQL by its URL, as libpq reads it; where it is shown, it is without its password.

    Attributes:
        url: with the password, where it has one.
    """

    url: str = field(repr=False)

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        user, at, hosts = parts.netloc.rpartition("@")
        options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SECRETS]
        return urlunsplit(
            (parts.scheme, user.partition(":")[0] + at + hosts, parts.path, urlencode(options, safe="/=,-"), "")
        )

    @property
    def passwords(self) -> tuple[str, ...]:
        """Return what must never be shown: the passwords of the URL, as they are and as they are written there."""
        parts = urlsplit(self.url)
        written = parts.netloc.rpartition("@")[0].partition(":")[2]
        found = [value for name, value in parse_qsl(parts.query) if name in _SECRETS]
        return tuple(sorted({*found, written, unquote(written)} - {""}, key=len, reverse=True))

    def without_passwords(self, text: str) -> str:
        """Return a text about the place in which no password is left."""
        for password in self.passwords:
            text = text.replace(password, "***")
        return text


_SECRETS = ("password", "sslpassword")

StorePlace = Path | PostgresPlace


def read_place(text: str) -> StorePlace:
    """Return the place that `--store` names.

    Raises:
        RequestError: it is the URL of something else than PostgreSQL, or of nothing.
    """
    scheme, is_url, _ = text.partition("://")
    if not is_url:
        return Path(text)
    if scheme not in _SCHEMES:
        raise RequestError(
            f"--store must be a file or {_FORM}, got an address that begins with {scheme}://", field="store"
        )
    try:
        place = PostgresPlace(text)
        str(place)
    except ValueError:  # what is wrong may stand beside a password: it is not shown
        raise RequestError(f"--store is no address of a database; it must look like {_FORM}", field="store") from None
    return place
