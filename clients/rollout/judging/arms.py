# SPDX-License-Identifier: Apache-2.0
"""The judge of an A/B test: a gate for each candidate beside the stable release, and sums of each arm for its cost.

A candidate that is slower may be what is wanted, for it is cheaper; so only a guard ends the test, and a person
decides by the report.
"""

from collections.abc import Mapping, Sequence

import msgspec

from clients.rollout.records.rollout_plan import Plan, arm_of
from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.split.outcome import Outcome
from trireme.base.known_types import known


class ArmTotals(msgspec.Struct, forbid_unknown_fields=True):
    """The sums of one arm.

    `seat_s` are the seconds that the arm's answered requests took, `tokens` the tokens that they made.
    """

    requests: int = 0
    errors: int = 0
    tokens: int = 0
    seat_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count one more request."""
        self.requests += 1
        self.errors += bool(outcome.error)
        if not outcome.error and outcome.e2e_ms is not None:
            self.tokens += outcome.num_tokens
            self.seat_s += outcome.e2e_ms / 1000


class ArmsJudge:
    """The judge of one A/B test.

    Args:
        spec: settings of the gate, for each candidate.
    """

    def __init__(self, plan: Plan, spec: GateSpec) -> None:
        self._plan = plan
        self._stable = arm_of(plan.stable)
        self._gates = {
            arm_of(number): Gate(spec, candidate=arm_of(number), baseline=self._stable) for number in plan.candidates
        }

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        """Return the evidence with more outcomes counted, for `Gate.merge` of each candidate and for the sums."""
        gates, totals = _parts(evidence)
        for outcome in outcomes:
            if outcome.arm in (self._stable, *self._gates) and not outcome.is_feedback:
                totals.setdefault(outcome.arm, ArmTotals()).add(outcome)
        for arm, gate in self._gates.items():
            own = [outcome for outcome in outcomes if outcome.arm in (arm, self._stable)]
            gates[arm] = gate.merge(gates.get(arm), own, at_s=at_s)
        return {"gates": gates, "arms": msgspec.to_builtins(totals)}

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """Return a judgement that fails by a guard alone and never passes."""
        gates, totals = _parts(evidence)
        found = {arm: gate.judge(gates.get(arm)) for arm, gate in self._gates.items()}
        over = [
            f"{arm}: {guard['name']} over {guard['limit']:.0%}"
            for arm, judgement in found.items()
            for guard in msgspec.convert(judgement.report["guards"], list[dict[str, object]])
            if guard["is_over"]
        ]
        num_requests = min(judgement.num_requests for judgement in found.values())
        report = {
            "arms": {arm: self._row(arm, totals.get(arm, ArmTotals())) for arm in self._plan.arms},
            "against_stable": {arm: judgement.report for arm, judgement in found.items()},
        }
        if over:
            return Judgement("fail", "; ".join(over), num_requests, True, report)
        has_data = num_requests > 0
        reason = "a person decides: `trireme rollout report`" if has_data else "an arm has no request yet"
        is_final = all(judgement.is_final for judgement in found.values())
        return Judgement("undecided" if has_data else "no data", reason, num_requests, is_final, report)

    def _row(self, arm: str, totals: ArmTotals) -> dict[str, object]:
        """Return an arm's row: its sums, and GPU seconds for a million tokens if every seat were taken.

        A request holds a seat of its engine while it runs; the seats share the engine's GPUs equally.
        """
        gpus_per_seat = dict(zip(self._plan.arms, self._plan.gpus_per_seat, strict=True))[arm]
        per_token = totals.seat_s * gpus_per_seat / totals.tokens if totals.tokens else None
        return {
            "share": self._plan.arms[arm],
            **msgspec.to_builtins(totals),
            "gpu_s_per_million_tokens": None if per_token is None else per_token * 1e6,
        }


def _parts(evidence: Mapping[str, object] | None) -> tuple[dict[str, Mapping[str, object]], dict[str, ArmTotals]]:
    if evidence is None:
        return {}, {}
    return (
        msgspec.convert(evidence["gates"], dict[str, dict[str, object]]),
        msgspec.convert(evidence["arms"], known(dict[str, ArmTotals])),
    )
