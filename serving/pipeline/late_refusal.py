# SPDX-License-Identifier: Apache-2.0
"""The refusal of a request that waited before it was read: its caller has returned, so its sink gets the error."""

import logging

from serving.requests.tensor_sink import TensorSink
from serving.telemetry.request_observer import RequestObserver
from trireme.base.errors import ServerError, ServingError

_log = logging.getLogger("trireme.late_refusal")


def refuse_late(
    sink: TensorSink, exc: Exception, *, waited_for: str, request_id: str, observer: RequestObserver
) -> None:
    """Send a request's sink the reason why it is not served; log the reason, too, where it is unexpected.

    Args:
        sink: sink of the request.
        exc: error that ended the request.
        waited_for: name of the thing that the request had waited for, for the log.
        request_id: the request id that the client gave.
        observer: observer of the request.
    """
    of_request = {**observer.told, "request_id": request_id, "is_of_request": True}
    error = exc
    if not isinstance(error, ServingError):
        _log.error("unexpected error in a request that had waited for %s", waited_for, exc_info=exc, extra=of_request)
        error = ServerError("unexpected error; the server's log has the traceback")
    fail_quietly(sink, error)


def fail_quietly(sink: TensorSink, error: ServingError) -> None:
    """Send an error as the last response, or log that it cannot be sent."""
    try:
        sink.fail(error)
    except Exception:  # one client's broken pipe must not disturb other clients
        _log.exception("an error could not be sent; its request ends without one", extra={"is_of_request": True})
