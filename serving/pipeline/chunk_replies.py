# SPDX-License-Identifier: Apache-2.0
"""The replies that the engine's chunks make: a reply or the end of a request, an error where a reply cannot be sent.

A chunk is sent on the thread of the request's response worker, or on the engine's reader once the engine has died.
"""

import logging
from collections.abc import Callable

from serving.engines.seam.base import FinishReason, TokenChunk
from serving.pipeline.running_request import RunningRequest
from trireme.base.errors import ServerError, ServingError

_log = logging.getLogger("trireme.generation")


class EngineRefusal(ServerError):
    """An error that the engine's process wrote; its text already has its token."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.args = (text,)
        self.code = text[1:].partition(" ")[0].rstrip("]")


class ChunkReplies:
    """The replies of one generation service.

    Args:
        forget_text: makes postprocessing drop the text of a request that ends without its last token.
    """

    def __init__(self, forget_text: Callable[[RunningRequest], None]) -> None:
        self._forget_text = forget_text

    def send(self, chunk: TokenChunk, running: RunningRequest) -> None:
        """Send the reply, the error or the end that a chunk makes, if it makes any.

        Raises:
            Exception: any error of the request's sink.
        """
        if chunk.error is not None:
            self._fail(running, EngineRefusal(chunk.error))
        elif chunk.finish_reason is FinishReason.CANCELLED and running.cancel_error is not None:
            self._end_cancelled(chunk, running, running.cancel_error)
        else:
            self._reply(chunk, running)

    def give_up(self, running: RunningRequest) -> None:
        """End a request whose sink has raised."""
        if running.is_over:
            self._forget_text(running)
        else:
            self.fail_if_possible(running, ServerError("a reply could not be sent; the server's log has the reason"))

    def fail_if_possible(self, running: RunningRequest, error: ServingError) -> None:
        """End a request with an error; log the error where the sink does not take it."""
        try:
            self._fail(running, error)
        except Exception:  # the caller has other requests to end
            _log.exception("an error could not be sent; its request ends without one", extra=running.told)

    def _reply(self, chunk: TokenChunk, running: RunningRequest) -> None:
        reply = running.reply_to(chunk)
        if reply is None:
            return
        running.send(reply)
        if reply.is_final and running.num_replies > 1:
            self._forget_text(running)  # Triton throws away what nobody reads, the last chunk too

    def _end_cancelled(self, chunk: TokenChunk, running: RunningRequest, error: ServingError) -> None:
        if not running.is_unread:
            self._fail(running, error)
            return
        # An error in the middle of an ensemble's stream costs Triton 2.51 some 5 KiB for ever, and a good end nothing.
        running.observer.request.end(error)
        self._reply(chunk, running)

    def _fail(self, running: RunningRequest, error: ServingError) -> None:
        self._forget_text(running)
        running.fail(error)


def note(chunk: TokenChunk, running: RunningRequest) -> None:
    """Count a chunk in the metrics of its request; log a chunk that cannot be counted, and go on."""
    try:
        running.observer.note_chunk(chunk)
    except Exception:
        _log.exception("a request could not be counted", extra=running.told)
