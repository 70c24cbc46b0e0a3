# SPDX-License-Identifier: Apache-2.0
"""Load shedding by levels: what a deployment gives up first under load, one small class for each kind of measure."""

import math
from abc import ABC, abstractmethod

import msgspec

from ensemble_configs.spec.admission_spec import CapLevelSpec, LoadSheddingSpec, RefuseLevelSpec
from serving.admission.offered_load import OfferedLoad
from serving.engines.seam.base import GenerationRequest
from serving.engines.seam.scheduling import Priority
from trireme.base.errors import Unavailable

_BUSY_FROM = 0.75
_GOLDEN = 0.618034  # its multiples, without their whole part, are spread evenly however many there are


class Measure(ABC):
    """The effect of one load-shedding level on requests that arrive while it lasts, on top of the levels below it."""

    @abstractmethod
    def applied(self, request: GenerationRequest) -> GenerationRequest | None:
        """Return the request as it may run; None: the request is refused."""


class CapTokens(Measure):
    """Shorter answers of a class, which end with finish_reason `length`."""

    def __init__(self, spec: CapLevelSpec) -> None:
        self._priority = Priority[spec.priority_class.upper()]
        self._most = spec.max_tokens

    def applied(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with at most the level's `max_tokens`."""
        sampling = request.sampling
        if request.scheduling.priority != self._priority or sampling.max_tokens <= self._most:
            return request
        min_tokens = min(sampling.min_tokens, self._most)
        capped = msgspec.structs.replace(sampling, max_tokens=self._most, min_tokens=min_tokens)
        return msgspec.structs.replace(request, sampling=capped)


class RefuseClass(Measure):
    """Refusal of a class."""

    def __init__(self, spec: RefuseLevelSpec) -> None:
        self._priority = Priority[spec.priority_class.upper()]

    def applied(self, request: GenerationRequest) -> GenerationRequest | None:
        """Return the request unless it is of the refused class."""
        return None if request.scheduling.priority == self._priority else request


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
        self._measures = [CapTokens(one) if isinstance(one, CapLevelSpec) else RefuseClass(one) for one in spec.steps]
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
        for number, measure in enumerate(self._measures[: self.step], start=1):
            changed = measure.applied(found)
            if changed is not None:
                found = changed
            elif use >= _BUSY_FROM:
                raise self._refusal(request, number, now_s)
        return found

    def _refusal(self, request: GenerationRequest, number: int, now_s: float) -> Unavailable:
        name, load = Priority(request.scheduling.priority).name.lower(), self._load.at(now_s)
        return Unavailable(
            f"{name} requests are not let in while {load:.1f} times as much is asked for as fits (step {self.step} of "
            f"{len(self._measures)}); come back after retry_after_ms, or ask in a higher class",
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
