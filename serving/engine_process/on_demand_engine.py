# SPDX-License-Identifier: Apache-2.0
"""An engine that is in memory when requests ask for it, by turns with the other engines of its pool.

A loaded engine stays for `min_resident_s`. After that it gives way to a wanted engine that does not fit beside it, as
soon as it is idle, or after `max_slice_s` if it is always busy: new requests wait then until it is back, and running
requests come to their end first. So a pool's engines change at most once in `min_resident_s`, and no engine waits for
ever.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ensemble_configs.spec.release_spec import OnDemandSpec
from serving.engine_process.engine_messages import ChannelClosed
from serving.engine_process.engine_sources import EngineSource
from serving.engine_process.inner_engine import Ending, InnerEngine, Loading, no_stats
from serving.engine_process.residency import Residency
from serving.engines.seam.base import Engine, EngineStats, GenerationRequest, ResidencyStats, TokenChunk
from serving.engines.seam.clock import Clock
from serving.engines.seam.request_limits import refuse_unservable
from trireme.base.errors import ServingError, Unavailable

_log = logging.getLogger("trireme.on_demand")

_ASK_S = 0.02  # between two questions for room in the pool, or for the loading engine
_LOOK_S = 0.2  # between two looks of a loaded engine for engines that wait for room
_RETRY_S = 5.0  # after an engine could not be loaded


class _Waiting(NamedTuple):
    request: GenerationRequest
    until_s: float


class OnDemandEngine(Engine):
    """An engine on demand behind the seam; requests wait here while the inner engine is not in memory.

    The constructor loads the engine once, to learn its description and that it can be loaded at all; the engine leaves
    as soon as another engine of the pool is wanted.

    Args:
        source: makes a source of the inner engine; called for each load.
        residency: the engine's part in the pool.
        spec: times of residency and waiting.
        clock: clock for these times.
        watchdog_s: seconds of silence after which the engine counts as dead.
    """

    def __init__(
        self,
        source: Callable[[], EngineSource],
        residency: Residency,
        spec: OnDemandSpec,
        clock: Clock,
        *,
        watchdog_s: float,
    ) -> None:
        """Load the engine.

        Raises:
            ServingError: the engine cannot be loaded.
        """
        self._source = source
        self._residency = residency
        self._spec = spec
        self._clock = clock
        self._watchdog_s = watchdog_s
        self._waiting: deque[_Waiting] = deque()
        self._engine: InnerEngine | None = None
        self._loading: Loading | None = None
        self._ending: Ending | None = None  # until its memory is free, nothing may come in its place
        self._was_asked = False  # since it was loaded
        self._is_leaving = False  # it takes no new requests, for another engine is to come
        self._since_s = self._heard_s = self._looked_s = clock.now_s()
        self._next_try_s = 0.0
        self._num_loads = 0
        self._load_s = 0.0
        self._chunks: list[TokenChunk] = []  # of requests that ended here
        while not residency.try_enter():
            clock.sleep_s(_ASK_S)
        self._load()
        assert self._loading is not None
        while not self._loading.is_done(timeout_s=1.0):
            pass
        self._take_loaded()
        assert self._engine is not None
        self.info = self._engine.info
        self._was_asked = False

    def add(self, request: GenerationRequest) -> None:
        """Queue a request until the engine is in memory, or hand it to the engine at once."""
        refuse_unservable(request, self.info)
        self._residency.note_use()
        self._was_asked = True
        self._waiting.append(_Waiting(request, self._clock.now_s() + self._spec.max_wait_s))

    def cancel(self, key: int) -> None:
        """Stop a request that waits or runs."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.request.key != key)
        if self._engine is not None:
            self._engine.cancel(key)

    def step(self) -> list[TokenChunk]:
        """Return the engine's new chunks, or take the next step of its loading or ending."""
        now_s = self._clock.now_s()
        self._refuse_late(now_s)
        if self._ending is not None:
            self._see_ending(self._ending)
        elif self._loading is not None:
            self._see_loading()
        elif self._engine is not None:
            self._serve(self._engine, now_s)
        elif self._waiting:
            self._try_to_come(now_s)
        else:
            self._residency.want_nothing()
        chunks, self._chunks = self._chunks, []
        return chunks

    @property
    def has_work(self) -> bool:
        """Return whether requests wait or run, or the engine is being loaded or ended."""
        is_busy = self._engine is not None and self._engine.is_busy
        is_changing = self._loading is not None or self._ending is not None
        return bool(self._waiting) or is_busy or is_changing or bool(self._chunks)

    @property
    def max_idle_s(self) -> float:
        """Return the longest seconds between two steps without work; a loaded engine watches for others in its pool."""
        return _LOOK_S if self._engine is not None else super().max_idle_s

    def stats(self) -> EngineStats:
        """Return the engine's stats, with the requests that wait for it."""
        stats = no_stats(self.info) if self._engine is None else self._engine.stats
        residency = ResidencyStats(
            is_resident=self._engine is not None, num_loads=self._num_loads, last_load_s=self._load_s
        )
        num_waiting = stats.num_waiting + len(self._waiting)
        return msgspec.structs.replace(stats, num_waiting=num_waiting, residency=residency)

    def close(self) -> None:
        """End the engine's process, also one that is being loaded or ended."""
        if self._loading is not None:
            self._loading.close()
        if self._ending is not None:
            self._ending.is_done(timeout_s=None)
        if self._engine is not None:
            self._engine.close()
        self._residency.close()

    # Coming

    def _try_to_come(self, now_s: float) -> None:
        if now_s >= self._next_try_s and self._residency.try_enter():
            self._load()
        else:
            self._clock.sleep_s(_ASK_S)

    def _load(self) -> None:
        self._since_s = self._clock.now_s()
        self._loading = Loading(self._source())

    def _see_loading(self) -> None:
        assert self._loading is not None
        if not self._loading.is_done(timeout_s=_ASK_S):
            return
        try:
            self._take_loaded()
        except ServingError as exc:
            _log.error("%s", exc.message)
            self._next_try_s = self._clock.now_s() + _RETRY_S
            self._end_waiting(Unavailable(f"the engine could not be loaded: {exc.message}", reason="engine_not_loaded"))

    def _take_loaded(self) -> None:
        """Take over the loaded engine.

        Raises:
            ServingError: the engine could not be loaded; its part of the pool is free again.
        """
        assert self._loading is not None
        loading, self._loading = self._loading, None
        try:
            self._engine = loading.result()
        except ServingError:
            self._residency.leave()
            raise
        now_s = self._clock.now_s()
        self._num_loads += 1
        self._load_s = now_s - self._since_s
        self._since_s = self._heard_s = now_s
        self._was_asked = bool(self._waiting)

    # Serving, and going

    def _serve(self, engine: InnerEngine, now_s: float) -> None:
        is_over = self._is_over(engine, now_s)
        try:
            if is_over and not engine.is_busy:
                self._give_way(engine)
                return
            while self._waiting and not is_over:
                engine.submit(self._waiting.popleft().request)
            chunks = engine.chunks(timeout_s=_ASK_S if engine.is_busy else 0.0)
        except ChannelClosed:
            self._lose(engine, "hung" if engine.reason == "engine_hung" else "died", reason=engine.reason)
            return
        if chunks or not engine.is_busy:
            self._heard_s = self._clock.now_s()
        elif self._clock.now_s() - self._heard_s > self._watchdog_s:
            self._lose(engine, f"was silent for {self._watchdog_s:g} s", reason="engine_died", ends_itself=False)
            return
        self._chunks += chunks

    def _is_over(self, engine: InnerEngine, now_s: float) -> bool:
        """Return whether the engine's time has passed and another engine is wanted."""
        is_idle = not engine.is_busy and not self._waiting
        stay_s = self._spec.min_resident_s if is_idle else self._spec.max_slice_s
        if self._was_asked and now_s - self._since_s < stay_s:
            return False
        if now_s - self._looked_s < (_ASK_S if self._is_leaving else _LOOK_S):
            return self._is_leaving
        self._looked_s = now_s
        self._is_leaving = self._residency.is_in_the_way(is_idle=is_idle)
        return self._is_leaving

    def _give_way(self, engine: InnerEngine) -> None:
        _log.info("the engine gives way to another one")
        self._end(engine, ends_itself=True)

    def _end(self, engine: InnerEngine, *, ends_itself: bool) -> None:
        self._engine, self._is_leaving = None, False
        self._ending = Ending(engine, ends_itself=ends_itself)
        self._see_ending(self._ending)

    def _see_ending(self, ending: Ending) -> None:
        if ending.is_done(timeout_s=_ASK_S):
            self._ending = None
            self._residency.leave()

    def _lose(self, engine: InnerEngine, how: str, *, reason: str, ends_itself: bool = True) -> None:
        """Fail the running requests of an engine that died or hung; it is loaded again for waiting requests."""
        _log.error("the engine %s", how)
        error = Unavailable(f"the engine {how}; it is loaded again when it is asked for", reason=reason)
        self._chunks += [TokenChunk(key, [], error=str(error)) for key in engine.lost()]
        self._end(engine, ends_itself=ends_itself)

    # Waiting

    def _refuse_late(self, now_s: float) -> None:
        if not self._waiting or self._waiting[0].until_s > now_s:
            return
        error = Unavailable(
            f"the engine has not come within {self._spec.max_wait_s:g} s (on_demand.max_wait_s), for others of pool "
            f"{self._spec.pool} are in use; come back after retry_after_ms",
            reason="engine_not_loaded",
            retry_after_ms=max(1, round(1000 * self._spec.min_resident_s)),
        )
        while self._waiting and self._waiting[0].until_s <= now_s:
            self._chunks.append(TokenChunk(self._waiting.popleft().request.key, [], error=str(error)))

    def _end_waiting(self, error: Unavailable) -> None:
        self._chunks += [TokenChunk(waiting.request.key, [], error=str(error)) for waiting in self._waiting]
        self._waiting.clear()
