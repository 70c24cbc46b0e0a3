# SPDX-License-Identifier: Apache-2.0
"""The place of a store, such as that of rollouts: a file of SQLite, or a database of PostgreSQL."""

import dataclasses
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from trireme.base.errors import RequestError

_SCHEMES = ("postgresql", "postgres")
_FORM = "postgresql://USER@HOST:PORT/DATABASE"


@dataclasses.dataclass(frozen=True)
class PostgresPlace:
    """A database of PostgreSQL by its URL, as libpq reads it; where it is shown, it is without its password.

    Attributes:
        url: with the password, where it has one.
        option: of the command, which named the place; messages name it.
    """

    url: str = dataclasses.field(repr=False)
    option: str = dataclasses.field(default="--store", compare=False)

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        user, at, hosts = parts.netloc.rpartition("@")
        options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SECRETS]
        query = f"?{urlencode(options, safe='/=,-')}" if options else ""
        return f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}{query}"

    @property
    def field(self) -> str:
        """Return the name of the option as errors have it."""
        return self.option.lstrip("-").replace("-", "_")

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
_HOST = r"(?:\[[^\]]*\]|[^:,\[\]]*)(?::[0-9]*)?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")

StorePlace = Path | PostgresPlace


def read_place(text: str, *, option: str = "--store") -> StorePlace:
    """Return the place that an option of a command names.

    Raises:
        RequestError: it is the URL of something else than PostgreSQL, or of nothing.
    """
    scheme, is_url, _ = text.partition("://")
    name = option.lstrip("-").replace("-", "_")
    if not is_url:
        return Path(text)
    if scheme not in _SCHEMES:
        raise RequestError(
            f"{option} must be a file or {_FORM}, got an address that begins with {scheme}://", field=name
        )
    if not _is_plain(text):  # what is wrong may be in a password: it is not shown
        raise RequestError(
            f"{option} is no address of a database; it must look like {_FORM}, with %XX for what is special in a name "
            "or a password, as %2F for /",
            field=name,
        )
    return PostgresPlace(text, option)


def _is_plain(url: str) -> bool:
    """Return whether a password can be nowhere but where a password is looked for."""
    try:
        parts = urlsplit(url)
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        return False
    user, _, hosts = parts.netloc.rpartition("@")
    return "@" not in user + parts.path + parts.query and "#" not in url and _HOSTS.fullmatch(hosts) is not None
