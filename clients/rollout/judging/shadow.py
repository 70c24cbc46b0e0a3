# SPDX-License-Identifier: Apache-2.0
"""The judge of a shadow: the gate, and how far the copies' texts agree with what users got."""

from collections.abc import Mapping, Sequence

import msgspec

from clients.rollout_gate.gate import Gate, Judgement
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.outcome import Outcome


class Texts(msgspec.Struct, forbid_unknown_fields=True):
    """Of the pairs whose texts could be compared: how many were alike to the end, and the sum of their agreements."""

    num: int = 0
    same: int = 0
    agreement: float = 0.0


class ShadowJudge:
    """Of one rollout. Texts are told of and not judged: two engines round differently, and both may be right."""

    def __init__(self, spec: GateSpec) -> None:
        self._gate = Gate(spec)

    def merge(
        self, evidence: Mapping[str, object] | None, outcomes: Sequence[Outcome], *, at_s: float | None = None
    ) -> Mapping[str, object]:
        """As `Gate.merge`."""
        gate, texts = _parts(evidence)
        for outcome in outcomes:
            if outcome.agreement is not None:
                texts.num += 1
                texts.same += outcome.agreement == 1
                texts.agreement += outcome.agreement
        return {"gate": self._gate.merge(gate, outcomes, at_s=at_s), "texts": msgspec.to_builtins(texts)}

    def judge(self, evidence: Mapping[str, object] | None) -> Judgement:
        """As `Gate.judge`, with the texts beside it."""
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
    return msgspec.convert(evidence["gate"], dict[str, object]), msgspec.convert(evidence["texts"], Texts)
