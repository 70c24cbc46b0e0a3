# SPDX-License-Identifier: Apache-2.0
"""The judge of a shadow: the gate, and how far the candidate's texts agree with the texts that users got."""

from collections.abc import Mapping, Sequence

import msgspec

from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from ensemble_configs.split.outcome import Outcome
from trireme.base.known_types import known


class Texts(msgspec.Struct, forbid_unknown_fields=True):
    """The agreement of the pairs with texts to compare.

    `same` counts pairs that agree to the end; `agreement` is the sum of all agreements.
    """

    num: int = 0
    same: int = 0
    agreement: float = 0.0


class ShadowJudge:
    """The judge of one rollout in the shadow.

    Texts are reported and not judged: two engines round differently, and both may be right.
    """

    def __init__(self, spec: GateSpec) -> None:
        self._gate = Gate(spec)

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        """Return the evidence with more outcomes counted, for the gate and for the texts."""
        gate, texts = _parts(evidence)
        for outcome in outcomes:
            if outcome.agreement is not None:
                texts.num += 1
                texts.same += outcome.agreement == 1
                texts.agreement += outcome.agreement
        return {"gate": self._gate.merge(gate, outcomes, at_s=at_s), "texts": msgspec.to_builtins(texts)}

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """Return the gate's judgement, with the texts' agreement in its report."""
        gate, texts = _parts(evidence)
        found = self._gate.judge(gate)
        compared = {
            "num": texts.num,
            "same": texts.same / texts.num if texts.num else None,
            "agreement": texts.agreement / texts.num if texts.num else None,
        }
        return msgspec.structs.replace(found, report={**found.report, "texts": compared})


def _parts(evidence: Mapping[str, object] | None) -> tuple[Mapping[str, object] | None, Texts]:
    if evidence is None:
        return None, Texts()
    return msgspec.convert(evidence["gate"], dict[str, object]), msgspec.convert(evidence["texts"], known(Texts))
