# SPDX-License-Identifier: Apache-2.0
"""The next phase or share of a rollout that takes requests, by its mode and its judgement; nothing is done here."""

from typing import NamedTuple

from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout_gate.gate import Judgement


class Move(NamedTuple):
    """The move to another phase or another share."""

    phase: Phase
    why: str
    step: int | None = None


def next_move(plan: Plan, rollout: Rollout, judgement: Judgement) -> Move | None:
    """Return the move of a rollout with a candidate that does not fail; None: the rollout stays as it is."""
    if rollout.phase is not Phase.RUNNING:
        return None
    is_last = rollout.step >= len(plan.shares) - (2 if plan.mode is Mode.CANARY else 1)  # a canary's last is all
    if is_last and judgement.verdict == "pass":
        return _passed(plan, judgement)
    if judgement.verdict != "pass" and judgement.is_final:
        what = "each arm is compared as far as it will be" if plan.mode is Mode.AB else "no verdict"
        return Move(Phase.HELD, f"{what} after {judgement.num_requests} requests of each arm: {judgement.reason}")
    if not is_last and judgement.num_requests >= plan.step_requests:
        return Move(Phase.RUNNING, share_text(plan, rollout.step + 1), step=rollout.step + 1)
    return None


def _passed(plan: Plan, judgement: Judgement) -> Move:
    match plan.mode:
        case Mode.CANARY:
            return Move(Phase.PROMOTING, judgement.reason)
        case Mode.SHADOW:
            return Move(Phase.ENDING, f"passed in the shadow: {judgement.reason}")
        case Mode.AB:
            return Move(Phase.HELD, judgement.reason)


def share_text(plan: Plan, step: int) -> str:
    """Return a sentence for the log about the share at a step."""
    if plan.mode is Mode.AB:
        numbers = (plan.stable, *plan.candidates)
        arms = zip(numbers, plan.arm_shares, strict=True)
        return "; ".join(f"{100 * share:g} % of the requests to release {number}" for number, share in arms)
    what = "copies of" if plan.mode is Mode.SHADOW else ""
    return " ".join(f"{what} {100 * plan.shares[step]:g} % of the requests to release {plan.candidate}".split())
