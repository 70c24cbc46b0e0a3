# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, as the server starts it, behind the seam: for engines of other environments."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from simulated_release import write_release

from ensemble_configs.render.release_file import load_release
from serving.engine_process.engine_sources import OwnedEngine
from serving.engine_process.inner_engine import InnerEngine
from serving.engines.seam.base import Engine, EngineStats, GenerationRequest, TokenChunk
from serving.engines.seam.request_limits import refuse_unservable

_WAIT_S = 0.05


class EngineElsewhere(Engine):
    """An engine that loads when this is made; what its facts refuse is refused here, all else by its chunks."""

    def __init__(self, engine: Mapping[str, object], *, write_adapters: Callable[[Path], object] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        if write_adapters is not None:
            write_adapters(root / "lora")
            engine = {**engine, "lora": {"dir": str(root / "lora")}}
        release = write_release(root / "models", engine)
        self._source = OwnedEngine.of_release(load_release(release), release)
        channel, info = self._source.connect()
        self._inner = InnerEngine(self._source, channel, info)
        # As the process says: what the loop around the engine adds is no part of it.
        self.info = msgspec.structs.replace(info, is_admitting=False)

    def add(self, request: GenerationRequest) -> None:
        refuse_unservable(request, self.info)
        self._inner.submit(request)

    def cancel(self, key: int) -> None:
        self._inner.cancel(key)

    def step(self) -> list[TokenChunk]:
        return self._inner.chunks(timeout_s=_WAIT_S)

    @property
    def has_work(self) -> bool:
        return self._inner.is_busy

    def stats(self) -> EngineStats:
        return self._inner.stats

    def close(self) -> None:
        self._source.close()
        self._inner.close()
        self._folder.cleanup()
