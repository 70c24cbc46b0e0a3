# SPDX-License-Identifier: Apache-2.0
"""Tests that the reservation of a stopped request is released when the engine says that the request is over."""

from admission_runs import AdmissionRun, request


def test_a_promise_is_kept_for_as_long_as_the_engine_may_hold_blocks() -> None:
    run = AdmissionRun()
    engine, held = run.engine, {1}
    run.inner.is_ending = lambda key: key in held  # type: ignore[method-assign]
    engine.add(request(1, num_prompt=8, max_tokens=50))
    engine.add(request(2, num_prompt=8, max_tokens=200))
    engine.step()
    assert len(engine.budget) == 2
    engine.cancel(1)
    for _ in range(6):
        engine.step()
    assert len(engine.budget) == 2, "it is not over"
    held.clear()
    engine.step()
    assert len(engine.budget) == 1
