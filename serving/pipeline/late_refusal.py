# SPDX-License-Identifier: Apache-2.0
"""The refusal of a request that had to wait before anybody looked at it: its caller has returned, its sink is told."""

import logging

from serving.requests.tensor_sink import TensorSink
from serving.telemetry.request_observer import RequestObserver
from trireme.base.errors import ServerError, ServingError

_log = logging.getLogger("trireme.late_refusal")


def refuse_late(
    sink: TensorSink, exc: Exception, *, waited_for: str, request_id: str, observer: RequestObserver
) -> None:
    """Tell a request's sink why it is not served; the log, too, where nobody expected it.

    Args:
        sink: of the request.
        exc: what ended it.
        waited_for: what the request had waited for, for the log.
        request_id: the client's.
        observer: the request's.
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
    except Exception:  # one client's broken pipe is no matter of the others
        _log.exception("an error could not be sent; its request ends without one", extra={"is_of_request": True})
