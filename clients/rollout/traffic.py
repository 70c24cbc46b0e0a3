# SPDX-License-Identifier: Apache-2.0
"""The traffic of each phase of a rollout: the slices that clients go by, and the shadow requests that they send.

The candidate of a canary takes the places below its share; so as the share grows, keys only ever move into the
candidate, and each at most once. The baseline, an equal part of the stable release's requests that the candidate is
compared with, takes as many places at the other end. What lies between is stable too, and is not compared.
"""

from collections.abc import Iterator
from itertools import accumulate

from clients.infer_messages import PINNING_MODEL
from clients.rollout.records.rollout_plan import Mode, Plan, SplitBy, arm_of
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.routing.schema import Mirror
from clients.rollout.routing.split import BASELINE, CANDIDATE, STABLE, Slice
from ensemble_configs.spec.model_names import CANARY
from ensemble_configs.split.release_split import ReleaseShare

_TRYING = (Phase.RUNNING, Phase.PAUSED, Phase.HELD)


def share_now(rollout: Rollout, plan: Plan) -> float:
    """Return the candidate's share of the requests; in the shadow, the share of requests that are copied to it."""
    if rollout.phase in _TRYING:
        return plan.shares[rollout.step]
    is_all = plan.mode is Mode.CANARY or plan.second_url  # nobody may be sent to a first server that is loaded anew
    return 1.0 if rollout.phase is Phase.PROMOTING and is_all else 0.0


def slices_now(rollout: Rollout, plan: Plan, prefix: str) -> tuple[Slice, ...]:
    """Return the slices that clients go by; the last ends at 1. Where others split, all are the stable model's."""
    if plan.split_by is not SplitBy.CLIENTS:
        return (Slice(upto=1.0, arm=STABLE, model=f"{prefix}ensemble"),)
    return tuple(_slices(rollout, plan, prefix))


def release_shares_now(rollout: Rollout, plan: Plan) -> tuple[ReleaseShare, ...]:
    """Return the shares of releases that one server goes by, with the arms that are compared; the last ends at 1."""
    releases = {BASELINE: plan.stable, STABLE: plan.stable, CANDIDATE: plan.candidate}
    releases |= {arm_of(number): number for number in plan.candidates} | {arm_of(plan.stable): plan.stable}
    return tuple(
        ReleaseShare(upto=each.upto, release=releases[each.arm], arm=each.arm if each.is_compared else "")
        for each in _slices(rollout, plan, "")
    )


def _slices(rollout: Rollout, plan: Plan, prefix: str) -> Iterator[Slice]:
    stable = f"{prefix}ensemble"
    share = share_now(rollout, plan)
    if plan.mode is Mode.AB and rollout.phase in (*_TRYING, Phase.PROMOTING):
        numbers = (plan.stable, *plan.candidates)
        for number, upto in zip(numbers, accumulate(plan.arm_shares), strict=True):
            yield Slice(
                upto=1.0 if number == numbers[-1] else upto,
                arm=arm_of(number),
                model=prefix + PINNING_MODEL,
                release=number,
                is_compared=True,
                has_fallback=number != plan.stable,
            )
        return
    if plan.mode is Mode.SHADOW and rollout.phase in _TRYING:
        yield Slice(upto=share, arm=BASELINE, model=stable, is_compared=True)
        if share < 1:
            yield Slice(upto=1.0, arm=STABLE, model=stable)
        return
    yield from canary_slices(share, stable_model=stable, candidate_model=_candidate(plan, prefix), url=plan.second_url)


def canary_slices(share: float, *, stable_model: str, candidate_model: str, url: str = "") -> Iterator[Slice]:
    """Yield the slices of a canary; equal shares of both arms are compared, also beyond one half."""
    compared = min(share, 1 - share)
    for upto, is_compared in ((compared, True), (share, False)):
        if (upto if is_compared else share - compared) > 0:
            yield Slice(
                upto=upto,
                arm=CANDIDATE,
                model=candidate_model,
                url=url,
                is_compared=is_compared,
                has_fallback=True,
            )
    if 1 - compared > share:
        yield Slice(upto=1 - compared if compared > 0 else 1.0, arm=STABLE, model=stable_model)
    if compared > 0:
        yield Slice(upto=1.0, arm=BASELINE, model=stable_model, is_compared=True)


def mirror_now(rollout: Rollout, plan: Plan, prefix: str) -> Mirror | None:
    """Return which requests are copied to the candidate, and how many at a time in all; None: none are."""
    share = share_now(rollout, plan)
    if plan.mode is not Mode.SHADOW or rollout.phase not in _TRYING:
        return None
    return Mirror(share=share, model=_candidate(plan, prefix), url=plan.second_url, max_in_flight=plan.max_copies)


def _candidate(plan: Plan, prefix: str) -> str:
    return f"{prefix}ensemble" if plan.second_url else prefix + CANARY
