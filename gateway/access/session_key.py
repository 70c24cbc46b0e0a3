# SPDX-License-Identifier: Apache-2.0
"""A key for one run of a gateway, so that whoever starts one can ask it at once."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.access.caller import Role
from gateway.access.key_wishes import new_key_of
from trireme.base.errors import ServingError

if TYPE_CHECKING:
    from gateway.access.key_store import KeyStore  # needs an extra

_LONGEST = "7d"  # of a run that was killed, and could not revoke its key


@contextlib.contextmanager
def session_key(store: "KeyStore") -> Iterator[str]:
    """Yield a new key of the role admin, which is revoked at the end of the block.

    Raises:
        Unavailable: the database is away.
    """
    name = f"session-{secrets.token_hex(4)}"
    wish = new_key_of(name, tenant="", role=Role.ADMIN, models=None, expires=_LONGEST, now_s=time.time())
    key = store.create(wish)
    try:
        yield key.text
    finally:
        with contextlib.suppress(ServingError):  # it expires
            store.revoke(key.id)
