# SPDX-License-Identifier: Apache-2.0
"""The trial of a candidate by held-out prompts: the gate's verdict, and the figures that the log keeps.

The gate's test may be looked at after every prompt, so a candidate that is plainly worse is known after some twenty.
"""

from collections.abc import Mapping, Sequence

import msgspec

from clients.rollout.judging.judges import Judge
from clients.rollout.judging.replay import PromptScores
from clients.rollout.records.held_out import HeldOut

_NUM_SHOWN = 5


class Trial:
    """The trial of one candidate by one replay.

    Nothing of it outlives the process, so a replay counts whole or not at all.

    Args:
        num_needed: prompts below which no verdict could fail a candidate.
    """

    def __init__(self, gate: Judge, held_out: HeldOut, *, num_needed: int) -> None:
        self._gate, self._held_out, self._num_needed = gate, held_out, num_needed
        self._evidence: Mapping[str, object] | None = None
        self._judgement = gate.judge(None)
        self._scored: list[PromptScores] = []

    def add(self, scores: Sequence[PromptScores]) -> None:
        """Count the scores that have come since the last call."""
        self._scored += scores
        outcomes = [outcome for each in scores for outcome in each.outcomes()]
        if outcomes:
            self._evidence = self._gate.merge(self._evidence, outcomes)
            self._judgement = self._gate.judge(self._evidence)

    @property
    def is_failed(self) -> bool:
        """Return whether the candidate is worse."""
        return self._judgement.verdict == "fail"

    @property
    def is_good_enough(self) -> bool:
        """Return whether, at the replay's end, nothing speaks against the candidate and something could have."""
        return not self.is_failed and len(self._compared()) >= self._num_needed

    @property
    def progress(self) -> str:
        """Return the part of the prompts that is scored, in tenths, as text."""
        tenths = 10 * len(self._scored) // self._held_out.num_prompts
        return f"held-out prompts: {10 * tenths} % of {self._held_out.num_prompts}"

    @property
    def reason(self) -> str:
        """Return one sentence for people, with mean scores and prompts by their names."""
        if self.is_failed:
            return f"{self._judgement.reason}; {self._figures()}"
        if self.is_good_enough:
            return f"not shown to be worse: {self._figures()}"
        missing = [f"{each.name!r} ({each.stable_error or 'no answer'})" for each in self._not_compared()[:_NUM_SHOWN]]
        return (
            f"only {len(self._compared())} of {self._held_out.num_prompts} held-out prompts could be compared, and a "
            f"verdict takes at least {self._num_needed}; the stable release did not answer {', '.join(missing)}; "
            f"correct {self._held_out.file}"
        )

    @property
    def evidence(self) -> dict[str, object]:
        """Return the gate's report and the prompts' figures, in JSON's types."""
        compared = self._compared()
        return {
            **self._judgement.report,
            "held_out": {
                **msgspec.to_builtins(self._held_out),
                "num_compared": len(compared),
                "mean_candidate": _mean([candidate for _, candidate, _ in compared]),
                "mean_stable": _mean([stable for _, _, stable in compared]),
                "lowest": [msgspec.to_builtins(each) for each, _, _ in self._lowest()],
                "not_compared": [msgspec.to_builtins(each) for each in self._not_compared()[:_NUM_SHOWN]],
            },
        }

    def _figures(self) -> str:
        compared = self._compared()
        text = (
            f"held-out prompts: {_mean([candidate for _, candidate, _ in compared]):.3f} on average, the stable "
            f"release {_mean([stable for _, _, stable in compared]):.3f}, {len(compared)} of "
            f"{self._held_out.num_prompts} compared"
        )
        shown = [
            f"{each.name!r} {candidate:.2f} against {stable:.2f}"
            + (f" ({each.candidate_error})" if each.candidate_error else "")
            for each, candidate, stable in self._lowest()
        ]
        return f"{text}; lowest: {', '.join(shown)}" if shown else text

    def _compared(self) -> list[tuple[PromptScores, float, float]]:
        return [
            (each, each.candidate, each.stable)
            for each in self._scored
            if each.candidate is not None and each.stable is not None
        ]

    def _not_compared(self) -> list[PromptScores]:
        return [each for each in self._scored if each.candidate is None]

    def _lowest(self) -> list[tuple[PromptScores, float, float]]:
        """Return the prompts with the candidate farthest below the stable release, the worst first."""
        worse = [one for one in self._compared() if one[1] < one[2]]
        return sorted(worse, key=lambda one: one[1] - one[2])[:_NUM_SHOWN]


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
