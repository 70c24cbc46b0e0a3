# SPDX-License-Identifier: Apache-2.0
"""The refusal of a request that waited before it was read: its caller has returned, so its sink gets the error."""

import logging
from collections.abc import Mapping

from serving.pipeline.request_origin import RequestOrigin
from serving.requests.tensor_sink import TensorSink
from trireme.base.errors import ServerError, ServingError

_log = logging.getLogger("trireme.late_refusal")


def error_for_client(
    exc: Exception, message: str, *, log: logging.Logger, facts: Mapping[str, object] | None = None
) -> ServingError:
    """Return the error that a client gets for `exc`; log an unexpected one, with a message and facts of the record."""
    if isinstance(exc, ServingError):
        return exc
    log.error("%s", message, exc_info=exc, extra=facts)
    return ServerError("unexpected error; the server's log has the traceback")


def refuse_late(sink: TensorSink, exc: Exception, origin: RequestOrigin, *, waited_for: str) -> None:
    """Send a request's sink the reason why it is not served; log the reason, too, where it is unexpected.

    Args:
        sink: sink of the request.
        exc: error that ended the request.
        origin: origin of the request.
        waited_for: name of the thing that the request had waited for, for the log.
    """
    facts = {**origin.observer.told, "request_id": origin.request_id, "is_of_request": True}
    message = f"unexpected error in a request that had waited for {waited_for}"
    fail_quietly(sink, error_for_client(exc, message, log=_log, facts=facts))


def fail_quietly(sink: TensorSink, error: ServingError) -> None:
    """Send an error as the last response, or log that it cannot be sent."""
    try:
        sink.fail(error)
    except Exception:  # one client's broken pipe must not disturb other clients
        _log.exception("an error could not be sent; its request ends without one", extra={"is_of_request": True})
