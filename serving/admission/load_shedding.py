# SPDX-License-Identifier: Apache-2.0
"""Load shedding by levels: what a deployment gives up first under load."""

import math

import msgspec

from ensemble_configs.spec.admission_spec import CapLevelSpec, LoadSheddingSpec, RefuseLevelSpec
from serving.admission.offered_load import OfferedLoad
from serving.engines.seam.base import GenerationRequest
from serving.engines.seam.scheduling import Priority
from trireme.base.errors import Unavailable

_BUSY_FROM = 0.75
_GOLDEN = 0.618034  # its multiples, without their whole part, are spread evenly however many there are


class LoadShedding:
    """The load-shedding levels in force: at most one is entered or left every `min_step_s`.

    A level is entered at its `enter`, and left below its `leave`: a load between the two changes nothing.

    Nobody is refused while the engine is less than three quarters full, whatever was asked lately: the load counts each
    client that was refused and came back, as told, once more each time, and an engine that stands idle helps nobody.
    And refused clients are told to come back at different times, from the level's end on, or they would all be there at
    once.
    """

    def __init__(self, spec: LoadSheddingSpec, load: OfferedLoad) -> None:
        self._spec = spec
        self._load = load
        self.step = 0  # number of levels in force, counted from the first
        self._changed_s = -math.inf
        self._spread = 0.0

    def update(self, now_s: float) -> None:
        """Enter or leave a level, if `min_step_s` has passed since the last change."""
        if now_s - self._changed_s < self._spec.min_step_s:
            return
        load, steps = self._load.at(now_s), self._spec.steps
        if self.step < len(steps) and load >= steps[self.step].enter:
            self._change(1, now_s)
        elif self.step and load < steps[self.step - 1].leave:
            self._change(-1, now_s)

    def applied(self, request: GenerationRequest, now_s: float, *, use: float) -> GenerationRequest:
        """Return an arriving request as it may run.

        Args:
            use: fraction of the budget that running and waiting requests take; 1: the whole budget.

        Raises:
            Unavailable: the request's class is not let in now.
        """
        found = request
        for number, level in enumerate(self._spec.steps[: self.step], start=1):
            changed = _applied(level, found)
            if changed is not None:
                found = changed
            elif use >= _BUSY_FROM:
                raise self._refusal(request, number, now_s)
        return found

    def _refusal(self, request: GenerationRequest, number: int, now_s: float) -> Unavailable:
        name, load = Priority(request.scheduling.priority).name.lower(), self._load.at(now_s)
        return Unavailable(
            f"{name} requests are not let in while {load:.1f} times as much is asked for as fits (step {self.step} of "
            f"{len(self._spec.steps)}); come back after retry_after_ms, or ask in a higher class",
            reason="shedding",
            retry_after_ms=max(1, math.ceil(1000 * (self._seconds_until_left(number, now_s) + self._next_spread_s()))),
        )

    def _next_spread_s(self) -> float:
        self._spread = (self._spread + _GOLDEN) % 1.0
        return self._spread * (self._spec.min_step_s + self._spec.window_s)

    def _seconds_until_left(self, number: int, now_s: float) -> float:
        """Return the seconds until a level is left at the earliest, if nothing else arrives."""
        dwell_s = max(0.0, self._changed_s + self._spec.min_step_s - now_s)
        dwell_s += (self.step - number) * self._spec.min_step_s
        return max(dwell_s, self._load.seconds_until(self._spec.steps[number - 1].leave, now_s))

    def _change(self, by: int, now_s: float) -> None:
        self.step += by
        self._changed_s = now_s


def _applied(level: CapLevelSpec | RefuseLevelSpec, request: GenerationRequest) -> GenerationRequest | None:
    """Return a request as it may run while a level lasts, with a shorter answer perhaps; None: it is refused."""
    if request.scheduling.priority != Priority[level.priority_class.upper()]:
        return request
    if isinstance(level, RefuseLevelSpec):
        return None
    sampling, most = request.sampling, level.max_tokens
    if sampling.max_tokens <= most:
        return request
    capped = msgspec.structs.replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))
    return msgspec.structs.replace(request, sampling=capped)
