# SPDX-License-Identifier: Apache-2.0
"""A simulated engine that dies or hangs, as real ones do, without a word, with all that it holds; or fails requests."""

import math
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
        if self._spec is not None and self._spec.after_requests is None and self._spec.kind != "error":
            self._happen(self._spec)

    def fails(self) -> bool:
        """Note that a request is taken, and return whether this one is to fail; the failing ones are evenly spaced."""
        self._num_requests += 1
        spec = self._spec
        num_late = self._num_requests - (spec.after_requests or 0) if spec is not None else 0
        if spec is None or num_late <= 0:
            return False
        if spec.kind == "error":
            return math.floor(num_late * spec.share) > math.floor((num_late - 1) * spec.share)
        if spec.after_requests is not None:
            self._happen(spec)
        return False

    def _happen(self, spec: SimulatedFaultSpec) -> None:
        if spec.kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_FOR_EVER_S)
