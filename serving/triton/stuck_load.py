# SPDX-License-Identifier: Apache-2.0
"""Starts of a server that never end: Triton waits for a model's process that has long been ready.

While a model loads, Triton asks whether the model's process lives: a thread of that process has to set a flag within a
second (2.51) or 5 s (2.71). On a busy machine the thread may come too late. Triton then takes the process for dead and
waits for the end of the process without ending it (python_backend, stub_launcher.cc: `ReceiveMessageFromStub`, then
`WaitForStubProcess`), while the process finishes loading. Seen in 1 of 96 starts on two cores at a load of 9.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ensemble_configs.render.embedding_config import EMBEDDING_VERSION
from ensemble_configs.render.model_configs import adapter_counts
from ensemble_configs.spec.deployment import DeploymentSpec

STUCK_S = 15.0  # between the last adapter and a server that answers lie milliseconds, on a busy machine a second or two


class StuckLoad:
    """The watch over one start. Each adapter opens its control channel as the last act of its loading.

    Models of the user have no control channel and may load for minutes, so a server that has some is never called
    stuck.
    """

    def __init__(self, spec: DeploymentSpec, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        embeddings = Counter(f"{model.name}-{EMBEDDING_VERSION}" for model in spec.embedding_models)
        self._awaited = sum(map(adapter_counts, spec.models), embeddings)
        self._is_told = not spec.extra_models
        self._run_dir = run_dir
        self._clock = clock
        self._complete_since_s: float | None = None

    def is_stuck(self) -> bool:
        """Return whether all adapters have been ready for `STUCK_S`; ask it of a server that is not loaded."""
        if not (self._is_told and self._is_complete()):
            return False
        if self._complete_since_s is None:
            self._complete_since_s = self._clock()
        return self._clock() - self._complete_since_s > STUCK_S

    def _is_complete(self) -> bool:
        there = Counter(path.name.rsplit("-", 1)[0] for path in self._run_dir.glob("*.sock"))
        return self._awaited <= there
