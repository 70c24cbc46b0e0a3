# SPDX-License-Identifier: Apache-2.0
"""A simulated engine that dies or hangs, as real ones do: without a word, with all that it holds."""

import os
import signal
import time

from ensemble_configs.spec.engine.simulated_spec import SimulatedFaultSpec

_FOR_EVER_S = 1e6


class SimulatedFault:
    """A fault that happens in the engine's process when its moment has come; without a spec never."""

    def __init__(self, spec: SimulatedFaultSpec | None) -> None:
        self._spec = spec
        self._num_requests = 0

    def note_load(self) -> None:
        """Note that the engine is being loaded."""
        if self._spec is not None and self._spec.after_requests is None:
            self._happen(self._spec)

    def note_request(self) -> None:
        """Note that a request is taken."""
        self._num_requests += 1
        limit = self._spec.after_requests if self._spec is not None else None
        if self._spec is not None and limit is not None and self._num_requests > limit:
            self._happen(self._spec)

    def _happen(self, spec: SimulatedFaultSpec) -> None:
        if spec.kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_FOR_EVER_S)
