# SPDX-License-Identifier: Apache-2.0
"""The one rollout that may change what a server serves; another one is refused until the first has gone.

Locks of files keep two rollouts of one machine apart; this one, two of two machines. A rollout takes it, puts off its
end every few seconds (`clients.rollout.steering_lease`), and gives it back. It is in memory: after a restart of the
server it belongs to whoever asks first, which is the rollout that goes on.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from trireme.base.errors import RequestError, Unavailable
from trireme.base.known_types import known
from trireme.base.unix_rpc import Handler, Message, Say

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class SteeringRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The wish to steer a server.

    Attributes:
        rollout: what no other rollout has, however often its process is started anew.
        process: what no other process has; its calls hold it as `controller`.
        who: for people.
        lease_s: how long nobody else may steer, unless it is asked for again; 0: the process has ended.
        is_first: the process has just begun; it takes the place of an earlier one of the same rollout.
    """

    rollout: Name
    process: Name
    who: Name
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    is_first: bool = False


class Steering:
    """The holder of a server, if any.

    Args:
        now_s: the machine's monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._holder: SteeringRequest | None = None
        self._heard_s = 0.0
        self._num_running = 0  # operations of the holder; while one runs, its lease does not end

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by operation. ``steer`` takes a `SteeringRequest`."""
        return {"steer": self._steer}

    def guarded(self, handlers: Mapping[str, Handler], names: Iterable[str]) -> dict[str, Handler]:
        """Return handlers, of which those with these names refuse everybody but the holder while there is one."""
        return {**handlers, **{name: self._guarded(handlers[name]) for name in names}}

    def _guarded(self, handler: Handler) -> Handler:
        def handle(question: Message, say: Say) -> Message:
            holder = self._enter(question.get("controller"))
            try:
                return handler({name: value for name, value in question.items() if name != "controller"}, say)
            finally:
                self._leave(holder)

        return handle

    def _enter(self, process: object) -> SteeringRequest | None:
        with self._lock:
            holder = self._current()
            if holder is None:
                return None
            if process != holder.process:
                raise self._refusal(holder)
            self._heard_s = self._now_s()
            self._num_running += 1
            return holder

    def _leave(self, holder: SteeringRequest | None) -> None:
        if holder is None:
            return
        with self._lock:
            self._num_running -= 1
            self._heard_s = self._now_s()

    def _steer(self, question: Message, say: Say) -> Message:
        del say
        try:
            asked = msgspec.convert(
                {name: value for name, value in question.items() if name != "op"}, known(SteeringRequest)
            )
        except msgspec.ValidationError as exc:
            raise RequestError(f"the wish to steer cannot be read: {exc}", field="steer") from exc
        with self._lock:
            holder = self._current()
            if not asked.lease_s:
                if holder is not None and holder.process == asked.process:
                    self._holder = None
                return {}
            is_same = holder is None or (
                holder.rollout == asked.rollout and (asked.is_first or holder.process == asked.process)
            )
            if not is_same:
                assert holder is not None
                raise self._refusal(holder)
            self._holder, self._heard_s = asked, self._now_s()
        return {}

    def _current(self) -> SteeringRequest | None:
        holder = self._holder
        if holder is None or self._num_running or self._now_s() < self._heard_s + holder.lease_s:
            return holder
        return None

    def _refusal(self, holder: SteeringRequest) -> Unavailable:
        silent_s = self._now_s() - self._heard_s
        return Unavailable(
            f"this server is steered by {holder.who}, heard of {silent_s:.0f} s ago; end that rollout first "
            f"(`trireme rollout abort`), or wait {holder.lease_s:g} s after its process has ended",
            reason="steered",
        )
