# SPDX-License-Identifier: Apache-2.0
"""Callers by a file of keys that are all alike, or without any key."""

from gateway.access.caller import ANYBODY, Caller, not_accepted
from trireme.base.http_servers.http_access import AcceptedKeys, HttpAccess


class TokenFile:
    """The keys of `--token-file`; without a file everybody may call.

    Args:
        access: names the file.
    """

    def __init__(self, access: HttpAccess) -> None:
        self._keys = AcceptedKeys(access)

    async def find(self, authorization: str) -> Caller:
        """Return the caller of a request by its header `Authorization`.

        Raises:
            ApiError: 401: no key, or none of the file.
            SpecError: the file cannot be read, or holds something else than keys.
        """
        if not self._keys.accepts(authorization):
            raise not_accepted()
        return ANYBODY
