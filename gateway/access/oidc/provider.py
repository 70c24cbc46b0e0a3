# SPDX-License-Identifier: Apache-2.0
"""The provider of tokens over HTTP: where its keys are, and what they are now. Nothing that comes back is trusted."""

from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from yarl import URL

from clients.access import Access
from clients.tls_context import check_access, tls_context
from ensemble_configs.spec.callers.oidc_spec import OidcSpec, is_safe_url
from gateway.access.oidc.key_set import MAX_KEYS, KeySet
from trireme.base.errors import Unavailable
from trireme.base.known_types import known

TIMEOUT_S = 10.0  # of one answer
_MAX_BYTES = 512 << 10  # of one answer
_MAX_HOPS = 3
_OK, _MOVED = 200, (301, 302, 303, 307, 308)
_DISCOVERY = "/.well-known/openid-configuration"


class _Configuration(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


class Provider:
    """The provider of a deployment; entered, it has connections.

    Raises:
        SpecError: `ca_file` cannot be used.
    """

    def __init__(self, spec: OidcSpec) -> None:
        self._spec = spec
        is_tls = (spec.jwks_url or spec.issuer).startswith("https:")
        self._access = Access(is_tls=is_tls, ca_file=None if spec.ca_file is None else str(spec.ca_file))
        check_access(self._access)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context = tls_context(self._access) if self._access.uses_tls else True
        # Not by the environment: a proxy is named in the deployment.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context), cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _where: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def keys(self) -> KeySet:
        """Return the keys that the provider publishes now.

        Raises:
            Unavailable: there are none that can be used; the message says why.
        """
        try:
            url = self._spec.jwks_url or await self._discovered()
            found = msgspec.json.decode(await self._get(url), type=known(_Keys)).keys
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError) as exc:
            raise _away(f"it cannot be read ({type(exc).__name__})") from exc
        if len(found) > MAX_KEYS:
            raise _away(f"it publishes {len(found)} keys, and {MAX_KEYS} are the most")
        keys = KeySet(found, algorithms=self._spec.algorithms)
        if not keys:
            raise _away(f"it publishes no key for {', '.join(self._spec.algorithms)}")
        return keys

    async def _discovered(self) -> str:
        """Return the address of the keys."""
        data = await self._get(self._spec.issuer.rstrip("/") + _DISCOVERY)
        found = msgspec.json.decode(data, type=known(_Configuration))
        if found.issuer != self._spec.issuer:
            raise _away("its configuration is that of another issuer than gateway.oidc.issuer, to the letter")
        is_as_safe = found.jwks_uri.startswith("https:") or not self._spec.issuer.startswith("https:")
        if not is_safe_url(found.jwks_uri) or not is_as_safe:
            raise _away("its jwks_uri is no https URL")
        return found.jwks_uri

    async def _get(self, url: str) -> bytes:
        """Return what an address answers; a redirection is followed on the same host alone."""
        assert self._session is not None, "it was entered"
        address, timeout = URL(url), aiohttp.ClientTimeout(total=TIMEOUT_S)
        for _ in range(_MAX_HOPS):
            async with self._session.get(
                address,
                allow_redirects=False,
                proxy=self._spec.proxy,
                timeout=timeout,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as response:
                if response.status == _OK:
                    return await _read(response)
                if response.status not in _MOVED:
                    raise _away(f"it answers with HTTP status {response.status}")
                target = address.join(URL(response.headers.get("Location", "")))
            if target.origin() != address.origin():
                raise _away("it redirects to another host; name the address itself")
            address = target
        raise _away("it redirects without end")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > _MAX_BYTES:
            raise _away(f"it answers with more than {_MAX_BYTES >> 10} KiB")
    return bytes(data)


def _away(why: str) -> Unavailable:
    return Unavailable(f"the keys of gateway.oidc.issuer are not known: {why}", reason="oidc_provider")
