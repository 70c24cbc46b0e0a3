# SPDX-License-Identifier: Apache-2.0
"""The judges of a rollout: their protocol, and the judge of each mode."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from clients.rollout.judging.arms import ArmsJudge
from clients.rollout.judging.shadow import ShadowJudge
from clients.rollout.records.rollout_plan import Mode, Plan, gate_spec_of
from clients.rollout_gate.gate import Gate, Judgement
from ensemble_configs.split.outcome import Outcome


class Judge(Protocol):
    """A maker of evidence from outcomes and of judgements from evidence; it keeps nothing itself."""

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        """Return new evidence, in JSON's types, and leave the old evidence as it was."""

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """Return the judgement of all outcomes that were counted so far."""


def judge_of(plan: Plan) -> Judge:
    """Return the judge of a plan's mode.

    Raises:
        SpecError: the plan's settings of the gate are not valid.
    """
    spec = gate_spec_of(plan)
    match plan.mode:
        case Mode.CANARY:
            return Gate(spec)
        case Mode.SHADOW:
            return ShadowJudge(spec)
        case Mode.AB:
            return ArmsJudge(plan, spec)
