# SPDX-License-Identifier: Apache-2.0
"""Who judges a rollout, by its mode."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from clients.rollout.judging.arms import ArmsJudge
from clients.rollout.judging.shadow import ShadowJudge
from clients.rollout.records.rollout_plan import Mode, Plan, gate_spec_of
from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.outcome import Outcome


class Judge(Protocol):
    """Makes evidence of outcomes, and a judgement of evidence; keeps nothing itself."""

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        """New evidence, JSON's types."""

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """Of all that was counted so far."""


def judge_of(plan: Plan) -> Judge:
    """Raises: SpecError: the plan's settings of the gate are none."""
    spec = gate_spec_of(plan)
    match plan.mode:
        case Mode.CANARY:
            return Gate(spec)
        case Mode.SHADOW:
            return ShadowJudge(spec)
        case Mode.AB:
            return ArmsJudge(plan, spec)
