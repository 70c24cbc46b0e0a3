# SPDX-License-Identifier: Apache-2.0
"""Tests of which batch prompts begin beside interactive requests, and what they cost these, in virtual time."""

import pytest
from admission_runs import AdmissionRun, request, small_engine

from benchmarks.overload import ENGINE
from benchmarks.studies.batch_share_in_virtual_time import Run, ratios
from ensemble_configs.spec.admission_spec import AdmissionSpec
from serving.admission.batch_prefill import BatchPrefill
from serving.engines.seam.scheduling import Priority

BATCH, STANDARD = Priority.BATCH, Priority.STANDARD


def beside_one() -> BatchPrefill:
    """Return a limit of a tenth of 1000 tokens, with a request that is decoding."""
    bound = BatchPrefill(step_tokens=1000, share=0.1)
    bound.begin(1, STANDARD, 500)
    bound.note_token(1)
    return bound


def test_short_prompts_begin_up_to_the_share_and_again_when_they_are_prefilled() -> None:
    bound = beside_one()
    assert bound.may_begin(BATCH, 60)
    bound.begin(2, BATCH, 60)
    assert bound.may_begin(BATCH, 40)
    assert not bound.may_begin(BATCH, 41)
    assert bound.may_begin(STANDARD, 5000), "only batch is held back"
    bound.note_token(2)
    assert bound.may_begin(BATCH, 41)


def test_a_long_prompt_is_paid_for_before_the_next_and_short_ones_need_not_wait() -> None:
    bound = beside_one()
    assert bound.may_begin(BATCH, 200)
    bound.begin(2, BATCH, 200)
    bound.note_token(2)
    num_steps = 0
    while not bound.may_begin(BATCH, 200):
        assert bound.may_begin(BATCH, 100)
        bound.note_step()
        num_steps += 1
    assert num_steps == 30  # 100 beyond the share, and 10 / 3 with each step


def test_a_long_prompt_waits_for_a_step_that_prefills_nothing_above_it_but_not_for_ever() -> None:
    bound = beside_one()
    bound.begin(3, STANDARD, 10)
    assert bound.may_begin(BATCH, 100)
    num_steps = 0
    while not bound.may_begin(BATCH, 200):
        bound.note_step()
        num_steps += 1
    assert num_steps == 8
    bound = beside_one()
    bound.begin(3, STANDARD, 10)
    assert not bound.may_begin(BATCH, 200)
    bound.end(3, STANDARD)
    assert bound.may_begin(BATCH, 200)


def test_alone_the_class_begins_what_fills_a_step_and_owes_nothing() -> None:
    bound = BatchPrefill(step_tokens=1000, share=0.1)
    for key in range(3):
        assert bound.may_begin(BATCH, 400)
        bound.begin(key, BATCH, 400)
    assert not bound.may_begin(BATCH, 1)
    for key in range(3):
        bound.note_token(key)
    bound.begin(9, STANDARD, 10)
    bound.note_token(9)
    assert bound.may_begin(BATCH, 400)


def test_a_share_of_one_holds_nothing_back() -> None:
    bound = BatchPrefill(step_tokens=1000, share=1.0)
    bound.begin(1, STANDARD, 10)
    bound.begin(2, BATCH, 5000)
    assert bound.may_begin(BATCH, 5000)


def test_the_steps_that_one_would_be_held_back_are_those_that_it_is() -> None:
    bound = beside_one()
    bound.begin(2, BATCH, 200)
    bound.note_token(2)
    assert bound.steps_until(100, num_ahead=0) == 0
    assert bound.steps_until(200, num_ahead=0) == 30
    bound.wait(200)  # takes two shares, and thirty steps are paid for it
    assert bound.begins_next(200) is False
    assert bound.steps_until(200, num_ahead=1) == 62
    bound.wait_no_longer(200)
    for _ in range(29):
        bound.note_step()
    bound.wait(200)
    assert bound.begins_next(200) is True


def started_batch(run: AdmissionRun, num_steps: int) -> int:
    """Return the batch requests of 40 tokens that have started after `num_steps` steps."""
    run.add(request(0, 8, 200))
    for key in range(1, 9):
        run.add(request(key, 40, 100, priority=3))
    for _ in range(num_steps):
        run.step()
    return len([key for key in run.started if key])


@pytest.mark.parametrize(
    ("parts", "least", "most"),
    [
        ({}, 1, 1),  # 12 tokens are allowed, and the other 28 are paid in 70 steps
        ({"budget": {"batch_prefill_share": 1}}, 8, 8),
        ({"budget": {"batch_prefill_share": 0.32}}, 7, 8),
        ({"queue": {"policy": "fifo"}}, 8, 8),
    ],
    ids=["default", "no bound", "a prompt with each step", "one line for all"],
)
def test_a_deployment_says_how_much_begins_beside_interactive_requests(
    parts: dict[str, object], least: int, most: int
) -> None:
    run = AdmissionRun(AdmissionSpec.model_validate(parts), small_engine(num_kv_blocks=512))
    assert least <= started_batch(run, 10) <= most
    run.drain()
    assert set(run.ends.values()) == {"length"}


def test_who_is_held_back_longer_than_he_may_wait_is_refused_at_once() -> None:
    run = AdmissionRun(engine_spec=small_engine(num_kv_blocks=512))
    run.add(request(100, 8, 8))
    run.drain()  # what a step takes is known
    started_batch(run, 10)
    assert "reason=overload" in str(run.add(request(50, 40, 8, priority=3, queue_timeout_ms=1000.0)))
    assert run.add(request(51, 40, 8, priority=3, queue_timeout_ms=60_000.0)) is None
    run.drain()
    assert run.ends[51] == "length"


def test_a_job_with_prompts_seven_times_as_long_moves_interactive_first_tokens_by_about_a_twentieth() -> None:
    share, per_s, seconds = AdmissionSpec().budget.shares.batch, 15.0, 200.0
    alone = Run(ENGINE, 1.0, 1).measure(per_s=per_s, num_batch=0, seconds=seconds)

    def p99_ratio(prompt_factor: int, prefill_share: float | None = None) -> float:
        run = Run(ENGINE, share, 1, prompt_factor=prompt_factor, prefill_share=prefill_share)
        beside = run.measure(per_s=per_s, num_batch=64, seconds=seconds)
        assert beside.batch_tokens_per_s > 10
        return ratios(alone, beside, 1400.0)["ttft_p99_ratio"]

    # Seeds 1 to 3 and 300 s say 1.04 to 1.06; a p99 of 3,000 arrivals moves by one or two hundredths.
    assert p99_ratio(1) < 1.08
    assert p99_ratio(7) < 1.08
    assert p99_ratio(7, 1.0) > 1.25, "or the test would show nothing"
