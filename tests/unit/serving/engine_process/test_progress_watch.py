# SPDX-License-Identifier: Apache-2.0
"""Work that gets no further is a hang; waiting for work, and one long iteration within the bound, are not."""

from typing import cast

import pytest

from serving.engine_process.progress_watch import ProgressWatch
from serving.engines.seam.base import Engine
from serving.engines.seam.clock import VirtualClock
from trireme.base.errors import ServerError


class Working:
    """An engine's progress, as a test sets it."""

    progress: int | None = None


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def look_for(seconds: float, clock: VirtualClock, watch: ProgressWatch, engine: Working, *, steps: bool) -> None:
    for _ in range(int(seconds)):
        clock.sleep_s(1.0)
        if steps:
            engine.progress = (engine.progress or 0) + 1
        watch.look(cast(Engine, engine))


def test_idle_engines_and_those_that_go_on_are_left_alone(clock: VirtualClock) -> None:
    watch, engine = ProgressWatch(clock, watchdog_s=10.0), Working()
    look_for(100, clock, watch, engine, steps=False)
    look_for(100, clock, watch, engine, steps=True)


def test_an_iteration_may_take_nearly_as_long_as_the_watchdog(clock: VirtualClock) -> None:
    watch, engine = ProgressWatch(clock, watchdog_s=10.0), Working()
    engine.progress = 5
    for _ in range(5):
        watch.look(cast(Engine, engine))
        look_for(9, clock, watch, engine, steps=False)
        engine.progress += 1


def test_work_that_stands_still_is_a_hang_that_says_so(clock: VirtualClock) -> None:
    watch, engine = ProgressWatch(clock, watchdog_s=10.0), Working()
    engine.progress = 5
    with pytest.raises(ServerError, match=r"no token and no iteration for 10 s \(engine.watchdog_s\)") as caught:
        look_for(12, clock, watch, engine, steps=False)
    assert caught.value.facts == {"reason": "engine_hung"}
    assert clock.now_s() == 11.0, "it began with the first look"


def test_time_without_work_does_not_count(clock: VirtualClock) -> None:
    watch, engine = ProgressWatch(clock, watchdog_s=10.0), Working()
    for _ in range(3):
        engine.progress = 5
        look_for(8, clock, watch, engine, steps=False)
        engine.progress = None
        watch.look(cast(Engine, engine))
