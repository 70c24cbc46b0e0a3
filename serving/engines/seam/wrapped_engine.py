# SPDX-License-Identifier: Apache-2.0
"""The base of every engine around an engine: each member of the seam, delegated to the engine inside."""

from serving.engines.seam.base import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.kv_events import KvEvent


class WrappedEngine(Engine):
    """An engine that passes everything through; a wrapper overrides what it changes.

    Args:
        engine: the wrapped engine, closed with the wrapper.
        info: facts of the wrapper, where they differ from those of `engine`.
    """

    def __init__(self, engine: Engine, info: EngineInfo | None = None) -> None:
        self._engine = engine
        self.info = engine.info if info is None else info

    @property
    def plain_sampling(self) -> SamplingParams:
        """Delegate to the engine."""
        return self._engine.plain_sampling

    def add(self, request: GenerationRequest) -> None:
        """Delegate to the engine."""
        self._engine.add(request)

    def cancel(self, key: int) -> None:
        """Delegate to the engine."""
        self._engine.cancel(key)

    def is_ending(self, key: int) -> bool:
        """Delegate to the engine."""
        return self._engine.is_ending(key)

    def perf_of(self, key: int) -> PerfMetrics | None:
        """Delegate to the engine."""
        return self._engine.perf_of(key)

    def step(self) -> list[TokenChunk]:
        """Delegate to the engine."""
        return self._engine.step()

    def take_kv_events(self) -> list[KvEvent]:
        """Delegate to the engine."""
        return self._engine.take_kv_events()

    @property
    def has_work(self) -> bool:
        """Delegate to the engine."""
        return self._engine.has_work

    def stats(self) -> EngineStats:
        """Delegate to the engine."""
        return self._engine.stats()

    @property
    def progress(self) -> int | None:
        """Delegate to the engine."""
        return self._engine.progress

    @property
    def max_idle_s(self) -> float:
        """Delegate to the engine."""
        return self._engine.max_idle_s

    def close(self) -> None:
        """Delegate to the engine."""
        self._engine.close()
