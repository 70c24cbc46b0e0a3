# SPDX-License-Identifier: Apache-2.0
"""What people can ask of a rollout in which phase, and what becomes of it."""

from collections.abc import Mapping

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase, Wish
from trireme.base.errors import RequestError

_TRYING = (Phase.RUNNING, Phase.PAUSED, Phase.HELD)
_PHASES: Mapping[tuple[Phase, Wish], Phase] = {
    (Phase.RUNNING, Wish.PAUSE): Phase.PAUSED,
    (Phase.PAUSED, Wish.RESUME): Phase.RUNNING,
    (Phase.HELD, Wish.RESUME): Phase.RUNNING,
    **{(phase, Wish.PROMOTE): Phase.PROMOTING for phase in _TRYING},
    **{(phase, Wish.ABORT): Phase.ROLLING_BACK for phase in (Phase.STARTING, *_TRYING)},
}


def phase_after(phase: Phase, wish: Wish, plan: Plan, release: int | None) -> Phase:
    """Where a rollout goes by a wish.

    Args:
        release: to be promoted; None: the only candidate.

    Raises:
        RequestError: it cannot be done now.
    """
    found = _PHASES.get((phase, wish))
    if found is None:
        allowed = ", ".join(each for at, each in _PHASES if at is phase) or "nothing"
        raise RequestError(f"the rollout is {phase}, and can be asked for {allowed}", field="wish", value=wish)
    there = ", ".join(map(str, plan.candidates))
    if wish is Wish.PROMOTE and release is None and len(plan.candidates) > 1:
        raise RequestError(f"of an A/B test name the release with --release: {there}", field="release")
    if wish is Wish.PROMOTE and release not in (None, *plan.candidates):
        raise RequestError(f"release {release} is not on trial; there are: {there}", field="release", value=release)
    return found
