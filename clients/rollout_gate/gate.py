# SPDX-License-Identifier: Apache-2.0
"""The gate, which makes a judgement of outcomes; the parts of the way are the modules beside this one.

gate = Gate(GateSpec())
evidence = gate.merge(evidence, outcomes, at_s=time.time())   # to be kept; JSON's types
judgement = gate.judge(evidence)                              # as often as one likes
"""

from collections.abc import Mapping, Sequence

import msgspec

from clients.rollout_gate.evidence import add, read, sample_of, written
from clients.rollout_gate.gate_report import reason_of, report_of
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.verdict import Verdict, is_at_end, look_at, verdict_of
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import RequestError


class Judgement(msgspec.Struct, frozen=True):
    """The judgement that a controller acts on.

    Attributes:
        verdict: only "pass" promotes; "no data" and "undecided" never do.
        reason: one sentence for people.
        num_requests: requests of the arm that has fewer.
        is_final: more requests will not be waited for.
        report: JSON's types; `clients.rollout_gate.report_text` makes a page of it.
    """

    verdict: Verdict
    reason: str
    num_requests: int
    is_final: bool
    report: Mapping[str, object]


class Gate:
    """The judge of one candidate beside one baseline.

    Args:
        spec: settings.
        candidate: name of the candidate's arm in outcomes.
        baseline: name of the baseline's arm in outcomes.
    """

    def __init__(self, spec: GateSpec, *, candidate: str = "candidate", baseline: str = "baseline") -> None:
        self._spec, self._candidate, self._baseline = spec, candidate, baseline
        self._evidence: Mapping[str, object] | None = None

    def add(self, *outcomes: Outcome, at_s: float | None = None) -> Judgement:
        """Keep the outcomes in the gate itself, and judge: for programs that need not outlive a restart."""
        self._evidence = self.merge(self._evidence, outcomes, at_s=at_s)
        return self.judge(self._evidence)

    def report(self) -> Mapping[str, object]:
        """Return the report on the outcomes that were added."""
        return self.judge(self._evidence).report

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        """Return new evidence with more outcomes, in JSON's types; the old evidence stays as it was.

        Args:
            evidence: result of the call before; None: nothing was seen.
            outcomes: outcomes of either arm, as they arrive.
            at_s: when they arrive, of a clock that goes on over restarts (seconds since 1970); None: an eighth of
                `GateSpec.fade_s` after those before.

        Raises:
            SpecError: the evidence cannot be read, or is of other settings.
            RequestError: an outcome is of an arm that is not one of the two.
        """
        arms = {self._candidate: True, self._baseline: False}
        for outcome in outcomes:
            if outcome.arm not in arms:
                raise RequestError(
                    f"arm {outcome.arm!r} is judged by no one: it must be {self._candidate!r} or {self._baseline!r}; "
                    "give the gate the arms' names",
                    field="arm",
                    value=outcome.arm,
                )
        found = read(evidence, self._spec)
        add(found, [(arms[outcome.arm], outcome) for outcome in outcomes], self._spec, at_s)
        return written(found, self._spec)

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """Return what can be said by now.

        The cost grows with the number of blocks of time (`clients.rollout_gate.sums.block_list.MAX_BLOCKS`).

        Args:
            evidence: result of `merge`; None: nothing was seen.

        Raises:
            SpecError: the evidence cannot be read, or is of other settings.
        """
        sample = sample_of(read(evidence, self._spec))
        look = look_at(sample, self._spec)
        verdict = verdict_of(look)
        num_requests = int(sample.num_requests.min())
        is_final = verdict in ("pass", "fail") or is_at_end(sample, self._spec)
        reason = reason_of(look, sample, self._spec, verdict)
        head = {"verdict": verdict, "reason": reason, "is_final": is_final}
        return Judgement(verdict, reason, num_requests, is_final, {**head, **report_of(look, sample, self._spec)})
