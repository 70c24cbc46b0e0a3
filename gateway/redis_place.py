# SPDX-License-Identifier: Apache-2.0
"""A Redis that an option names, for what several gateways share."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trireme.base.errors import RequestError, SpecError
from trireme.base.extras import how_to_install

if TYPE_CHECKING:
    from redis.asyncio import Redis  # needs an extra

PASSWORD = "REDISCLI_AUTH"  # as redis-cli has it
_SCHEMES = ("redis", "rediss")
_SILENCE_S = 1.0  # a request waits so long for a Redis that does not answer
_CONNECTIONS, _TURN_S = 32, 5.0  # requests take them in turns


class RedisPlace:
    """The address of a Redis, checked when it is made.

    Args:
        url: as redis://HOST:PORT/NUMBER, or rediss:// with TLS.
        option: that names it, such as `--limits`.

    Raises:
        RequestError: it is no such address, or has a password, which a list of processes would show.
        SpecError: a package is missing.
    """

    def __init__(self, url: str, *, option: str) -> None:
        parts, field = urlsplit(url), option.lstrip("-").replace("-", "_")
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise RequestError(
                f"{option} must be redis://HOST:PORT/NUMBER, or rediss:// with TLS, got an address that begins with "
                f"{url.partition('://')[0][:16]!r}",
                field=field,
            )
        if parts.password is not None:
            raise RequestError(
                f"{option} must not hold a password, for others see the arguments of a process; put it into the "
                f"environment as {PASSWORD}",
                field=field,
            )
        if find_spec("redis") is None:
            raise SpecError(
                f"{option} needs the Python package 'redis', which is not installed: {how_to_install('gateway')}",
                field=field,
            )
        self.url = url

    def __str__(self) -> str:
        return self.url


@asynccontextmanager
async def connected(url: str, *, silence_s: float = _SILENCE_S) -> "AsyncIterator[Redis]":
    """Yield the connections to a Redis, with the password of the environment; they are closed with the block.

    Args:
        silence_s: a Redis that says nothing for so long is away.
    """
    from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415 - needs an extra
    from redis.asyncio.retry import Retry  # noqa: PLC0415 - needs an extra
    from redis.backoff import NoBackoff  # noqa: PLC0415 - needs an extra

    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=_TURN_S,
        password=os.environ.get(PASSWORD) or None,
        socket_timeout=silence_s,
        socket_connect_timeout=silence_s,
        retry=Retry(NoBackoff(), 0),  # a reservation that is made again would be two
    )
    redis = Redis.from_pool(pool)
    try:
        yield redis
    finally:
        await redis.aclose()
