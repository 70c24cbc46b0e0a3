# SPDX-License-Identifier: Apache-2.0
"""A seeded sample of the study of the gate on hard traffic; the full counts in `make soak`."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.rollout_gate.conditions import CONDITIONS, FAULTS, POWER_CONDITIONS, UNPROVABLE, Conditions, Fault
from benchmarks.rollout_gate.hard_traffic import HardTraffic
from benchmarks.rollout_gate.hard_trials import SPEC, Trial, figures_of, run, study, trials
from benchmarks.rollout_gate.simulated_rollouts import PER_LOOK
from benchmarks.soak import Evidence
from clients.rollout_gate.statistics.work import decode_work, prefill_work, prompt_work
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.places import stratum_of

pytestmark = pytest.mark.slow

FEW = 40


@pytest.mark.parametrize(
    "name",
    [
        "60 users, strong differences",
        "1000 users, mild differences",
        "errors in bursts of 30 s",
        "own queues, prefix hits and misses",
        "5 % of requests 100 times as long",
    ],
)
def test_equal_releases_are_not_rolled_back(name: str) -> None:
    found = figures_of(trial := Trial(name, rollouts=FEW, looks=100), run(trial, seed=1))
    assert found["rolled_back"]["count"] <= binom.ppf(0.999, FEW, SPEC.alpha)


# Of bursts some sixteen come in a rollout, each of which counts once. The others are to be found in 95 %.
FOUND = {"errors in bursts, the baseline has none": 0.6}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_beside_own_queues_and_prefix_hits(fault: str) -> None:
    name = "own queues, prefix hits and misses"
    found = figures_of(trial := Trial(name, fault, FEW, 100), run(trial, seed=1))
    assert found["rolled_back"]["count"] >= binom.ppf(0.001, FEW, FOUND.get(fault, 0.95))


def test_few_users_who_differ_end_in_hold() -> None:
    trial = Trial("60 users, strong differences", rollouts=10, looks=200)
    assert figures_of(trial, run(trial, seed=1))["passed"]["count"] == 0


def test_a_portion_is_what_the_engine_s_account_of_such_requests_would_make() -> None:
    is_given = Conditions(hits=0.5, own_batch_sd=0.5)
    rng = np.random.default_rng(1)
    traffic = HardTraffic(is_given, Fault(), rollouts=1, rng=rng)
    portion = next(iter(traffic.portions(1)))
    of_prefill, of_decode, of_length = (portion.work[name][0] for name in ("ttft", "tpot", "output_tokens"))
    for request in range(2 * PER_LOOK):
        computed, is_hit = 2 ** of_prefill[request, 0] - 1, of_prefill[request, -2]
        tokens = 2 ** of_length[request, 0] - 1
        seqs = 2 ** of_prefill[request, -1]
        outcome = Outcome(
            arm="candidate",
            num_prompt_tokens=round(tokens * 1000),  # in thousandths, as tokens here are no whole numbers
            num_cached_tokens=round((tokens - computed) * 1000),
            prefill_seqs=seqs,
            step_seqs=seqs,
            step_prompt_tokens=0,
            step_kv_tokens=seqs * 500,
        )
        assert is_hit == (computed < 0.99 * tokens)
        assert decode_work(outcome) == pytest.approx(tuple(of_decode[request]), abs=1e-6)
        assert prompt_work(outcome)[0] == pytest.approx(np.log2(1 + tokens * 1000), abs=1e-3)
        assert prefill_work(outcome)[-2:] == pytest.approx((is_hit, np.log2(seqs)), abs=1e-6)
        assert prefill_work(outcome)[0] == pytest.approx(np.log2(1 + computed * 1000), abs=1e-2)
        assert portion.groups[0, request, 0] == stratum_of(int(tokens * 4))


def test_the_study_has_every_condition_and_every_fault() -> None:
    planned = trials(1.0)
    assert {trial.conditions for trial in planned if not trial.fault} == set(CONDITIONS)
    assert {(trial.fault, trial.conditions) for trial in planned if trial.fault} == {
        (fault, name) for fault in FAULTS for name in POWER_CONDITIONS
    }
    assert all(trial.rollouts == (2_000 if trial.fault else 10_000) for trial in planned)
    assert set(UNPROVABLE) < set(CONDITIONS)


@pytest.mark.soak
@pytest.mark.timeout(20_000)
def test_the_full_study(evidence: Evidence) -> None:
    result = json.loads(Path(study() or "").read_text(encoding="utf-8"))
    for one in result["trials"]:
        where = f"{one['conditions']}, {one['fault'] or 'equal releases'}"
        if one["fault"]:
            if "bursts" not in one["fault"]:
                evidence.hold(f"not found: {where}", 1 - one["rolled_back"]["lower"], at_most=0.05)
            continue
        evidence.hold(f"rolled back: {where}", one["rolled_back"]["upper"], at_most=0.01)
        if one["conditions"] not in UNPROVABLE:
            evidence.hold(f"not passed: {where}", 1 - one["passed"]["share"], at_most=0.1)
    evidence.end()
