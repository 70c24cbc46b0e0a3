# SPDX-License-Identifier: Apache-2.0
"""A candidate that is slow for one tenant, or for long prompts alone, is found and named."""

import json
from typing import Any

import numpy as np
import pytest

from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.statistics.groups import MAX_TENANTS, NUM_STRATA, group_name, group_of
from clients.rollout_gate.statistics.rows import NO_GROUP
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.places import stratum_of

pytestmark = pytest.mark.slow

TENANTS = ("large", "small", "acme")
SHARES = (0.8, 0.1, 0.1)
LOOK_EVERY = 5


def judged(*, tenant: str = "", tpot: float = 1.0, tokens_over: int = 1 << 30, ttft: float = 1.0) -> Judgement:
    """Judge a candidate that is slower for one tenant, or for prompts of more tokens."""
    rng, gate, evidence = np.random.default_rng(5), Gate(GateSpec()), None
    for block in range(60):
        portion = []
        for arm in ("candidate", "baseline"):
            for _ in range(20):
                of, tokens = str(rng.choice(TENANTS, p=SHARES)), int(rng.lognormal(6, 1))
                is_slow = arm == "candidate" and of == tenant
                is_long = arm == "candidate" and tokens > tokens_over
                portion.append(
                    Outcome(
                        arm=arm,
                        tenant=of,
                        stratum=stratum_of(4 * tokens),
                        num_prompt_tokens=tokens,
                        ttft_ms=float((3 + tokens / 20) * rng.lognormal(0, 0.25)) * (ttft if is_long else 1.0),
                        tpot_ms=float(10 * rng.lognormal(0, 0.12)) * (tpot if is_slow else 1.0),
                        num_tokens=50,
                        finish_reason="stop",
                    )
                )
        evidence = gate.merge(evidence, portion, at_s=20.0 * block)
        if (block + 1) % LOOK_EVERY == 0 and (found := gate.judge(evidence)).is_final:
            break
    return found


def groups_in(found: Judgement, name: str) -> dict[str, float]:
    rows: Any = found.report["metrics"]
    return dict(next(row["groups"] for row in rows if row["name"] == name))


def test_a_release_that_is_slow_for_nobody_passes_and_names_nobody() -> None:
    found = judged()
    assert (found.verdict, groups_in(found, "ttft_of_some"), groups_in(found, "tpot_of_some")) == ("pass", {}, {})


def test_a_tenant_that_waits_twice_as_long_is_named() -> None:
    found = judged(tenant="acme", tpot=2.0)
    assert found.verdict == "fail"
    assert list(groups_in(found, "tpot_of_some")) == ["tenant 'acme'"]
    assert groups_in(found, "tpot_of_some")["tenant 'acme'"] == pytest.approx(1.0, abs=0.1)
    assert "TPOT of tenant 'acme' +" in found.reason


def test_long_prompts_that_take_half_as_long_again_are_named() -> None:
    found = judged(tokens_over=1000, ttft=1.5)
    assert found.verdict == "fail"
    named = groups_in(found, "ttft_of_some")
    assert named
    assert set(named) <= {"prompts of 4,096 to 8,191 characters", "prompts of 8,192 to 16,383 characters"}
    assert "TTFT of prompts of " in found.reason


def test_groups_are_named_by_characters_and_by_tenant() -> None:
    names = [group_name(group, ["acme"]) for group in range(NUM_STRATA + 1)]
    assert names[0] == "prompts of fewer than 64 characters"
    assert names[1] == "prompts of 64 to 127 characters"
    assert names[NUM_STRATA - 1] == "prompts of 32,768 characters and more"
    assert names[-1] == "tenant 'acme'"
    for chars in (0, 63, 64, 127, 128, 32_767, 32_768, 10**6):
        first = [int(word.replace(",", "")) for word in names[stratum_of(chars)].split() if word[0].isdigit()]
        assert chars < 64 or first[0] <= chars <= (first[1] if len(first) > 1 else 10**9)


def test_of_more_tenants_than_are_looked_at_the_later_ones_have_no_group() -> None:
    known: list[str] = []
    found = [group_of(0, f"tenant {number}", known)[1] for number in range(MAX_TENANTS + 2)]
    assert found == [*range(NUM_STRATA, NUM_STRATA + MAX_TENANTS), NO_GROUP, NO_GROUP]
    assert group_of(3, "", known) == (3, NO_GROUP)


def test_tenants_keep_their_names_over_a_restart() -> None:
    gate = Gate(GateSpec())
    evidence = gate.merge(None, [Outcome(arm="candidate", tenant="acme")])
    assert gate.merge(json.loads(json.dumps(evidence)), [])["tenants"] == ["acme"]
