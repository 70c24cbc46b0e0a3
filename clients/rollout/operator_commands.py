# SPDX-License-Identifier: Apache-2.0
"""The operator commands that each phase of a rollout allows, and the phase that each leads to."""

from collections.abc import Mapping

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import OperatorCommand, Phase
from trireme.base.errors import RequestError

_TRYING = (Phase.RUNNING, Phase.PAUSED, Phase.HELD)
_PHASES: Mapping[tuple[Phase, OperatorCommand], Phase] = {
    (Phase.RUNNING, OperatorCommand.PAUSE): Phase.PAUSED,
    (Phase.PAUSED, OperatorCommand.RESUME): Phase.RUNNING,
    (Phase.HELD, OperatorCommand.RESUME): Phase.RUNNING,
    **{(phase, OperatorCommand.PROMOTE): Phase.PROMOTING for phase in _TRYING},
    **{(phase, OperatorCommand.ABORT): Phase.ROLLING_BACK for phase in (Phase.STARTING, *_TRYING)},
}


def phase_after(phase: Phase, command: OperatorCommand, plan: Plan, release: int | None) -> Phase:
    """Return the phase that a command leads to.

    Args:
        release: release to be promoted; None: the only candidate.

    Raises:
        RequestError: the phase does not allow the command, or the release is not named or not on trial.
    """
    found = _PHASES.get((phase, command))
    if found is None:
        allowed = ", ".join(each for at, each in _PHASES if at is phase) or "nothing"
        raise RequestError(f"the rollout is {phase}, and can be asked for {allowed}", field="command", value=command)
    there = ", ".join(map(str, plan.candidates))
    if command is OperatorCommand.PROMOTE and release is None and len(plan.candidates) > 1:
        raise RequestError(f"of an A/B test name the release with --release: {there}", field="release")
    if command is OperatorCommand.PROMOTE and release not in (None, *plan.candidates):
        raise RequestError(f"release {release} is not on trial; there are: {there}", field="release", value=release)
    return found
