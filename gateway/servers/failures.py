# SPDX-License-Identifier: Apache-2.0
"""The failures of servers: which are a server's fault, and which ones another server may not have."""

from clients.openai_api.api_error import NO_ROOM
from trireme.base.errors import AccessDenied, RequestCancelled, RequestTimeout, ServerError, ServingError, Unavailable

NO_SERVER = "no_server"  # the reason of a pool, before it has asked any server
# The server is there, and says that it has no room: no fault of its own, and another one may have room.
_NO_ROOM = NO_ROOM | {"kv_cache", "too_many_bytes"}


def has_no_room(exc: ServingError) -> bool:
    """Return whether a server has refused a request for want of room."""
    return isinstance(exc, Unavailable) and exc.facts.get("reason") in _NO_ROOM


def is_fault(exc: ServingError) -> bool:
    """Return whether a server, and not a request, is at fault."""
    if isinstance(exc, Unavailable):
        return not has_no_room(exc)
    return isinstance(exc, AccessDenied) or type(exc) is ServerError


def may_do_better(exc: ServingError) -> bool:
    """Return whether another server may answer what one did not."""
    if isinstance(exc, (RequestTimeout, RequestCancelled)):
        return False
    return isinstance(exc, (Unavailable, AccessDenied)) or type(exc) is ServerError
