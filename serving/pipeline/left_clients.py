# SPDX-License-Identifier: Apache-2.0
"""The watch over clients that leave: it finds and ends the requests whose client has gone.

The server's frontends report clients that leave (`serving.process.left_streams`). Where there are no frontends, or the
report is late, a sink knows its own client. In Triton's ensemble a sink does not: only the step behind the engine sees
that a chunk's client has gone, so the abandoned-stream check asks that step.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from serving.pipeline.running_request import RunningRequest
from serving.process.left_streams import LEFT_STREAMS
from serving.requests.stream_state import StreamCheck
from trireme.base.errors import RequestCancelled

_log = logging.getLogger("trireme.left_clients")

STREAM_CHECK_S = 0.08
# Of a stream that a frontend has named only a frontend's death is seen late: its sink is asked at one check of so many.
_CHECKS_OF_NAMED = 8

_CLIENT_GONE = RequestCancelled("the client went away or cancelled the request")

Running = tuple[int, RunningRequest]


class LeftClients:
    """The watches over the clients of one service's requests; each runs on a thread of its own.

    Args:
        running_now: returns the running requests with their keys.
        cancel: ends some running requests with an error.
        drop: stops the engine's work for a key that belongs to no running request any more.
        find_abandoned: asks postprocessing which streams with a context nobody reads. None: there is no step behind the
            engine step, and each sink knows about its own client.
    """

    def __init__(
        self,
        running_now: Callable[[], list[Running]],
        cancel: Callable[[Iterable[Running], RequestCancelled], None],
        *,
        drop: Callable[[int], None],
        find_abandoned: Callable[[StreamCheck], Iterable[int]] | None,
    ) -> None:
        self._running_now = running_now
        self._cancel = cancel
        self._drop = drop
        self._find_abandoned = find_abandoned
        self._lost_streams: list[int] = []  # of which postprocessing may still hold the text
        self._num_checks = 0
        self._orphans: list[int] = []  # in the engine, with nobody here to reply to

    def watches(self, client_check_s: float) -> Mapping[Callable[[], None], float]:
        """Return the functions to call periodically, with the period of each in seconds.

        Args:
            client_check_s: seconds between two checks of each sink; a check costs a message to the server and back.
        """
        watches = {self._cancel_abandoned: client_check_s}
        return watches if self._find_abandoned is None else watches | {self._cancel_unread: STREAM_CHECK_S}

    def cancel_departed(self) -> None:
        """End the requests of streams whose clients the server's frontends have seen leave."""
        left = [(key, it) for key, it in self._running_now() if it.stream_name in LEFT_STREAMS and not it.is_ending]
        for _, running in left:
            running.is_unread = True
        self._cancel(left, _CLIENT_GONE)

    def orphan(self, keys: Iterable[int]) -> None:
        """Note keys that belong to no running request; the next watch makes the engine stop its work for them."""
        self._orphans.extend(keys)

    def forget_text(self, running: RunningRequest) -> None:
        """Note a stream that has ended; the next abandoned-stream check makes postprocessing drop its text."""
        if running.context is not None and self._find_abandoned is not None:
            self._lost_streams.append(running.context.key)

    def _cancel_abandoned(self) -> None:
        self._num_checks += 1
        are_all_asked = self._num_checks % _CHECKS_OF_NAMED == 0
        for key, running in self._running_now():
            if running.stream_name and not are_all_asked:
                continue
            knows_its_client = running.context is None or self._find_abandoned is None
            if knows_its_client and not running.is_ending and _is_abandoned(running):
                self._cancel([(key, running)], _CLIENT_GONE)
        while self._orphans:
            self._drop(self._orphans.pop())

    def _cancel_unread(self) -> None:
        assert self._find_abandoned is not None
        streams = {
            running.context.key: (key, running)
            for key, running in self._running_now()
            if running.context is not None and running.num_replies and not running.is_ending
        }
        lost_keys = tuple(self._lost_streams)
        if streams or lost_keys:
            num_chunks = {key: running.num_replies for key, (_, running) in streams.items()}
            unread = self._find_abandoned(StreamCheck(num_chunks, lost_keys))
            del self._lost_streams[: len(lost_keys)]
            self._cancel([streams[key] for key in unread], _CLIENT_GONE)


def _is_abandoned(running: RunningRequest) -> bool:
    try:
        return running.is_cancelled()
    except Exception:  # of one sink; every other sink is still asked
        _log.exception("a sink cannot say whether its client is there")
        return True
