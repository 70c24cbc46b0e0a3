# SPDX-License-Identifier: Apache-2.0
"""The refusals of options of `trireme rollout start` that do not go together, each by the option's name."""

from clients.rollout.records.rollout_plan import Mode, Plan, SplitBy
from trireme.base.errors import RequestError

_MODES_OF = {
    "steps": (Mode.CANARY, Mode.SHADOW),
    "shares": (Mode.AB,),
    "step_requests": (Mode.CANARY, Mode.SHADOW),
    "max_copies": (Mode.SHADOW,),
    "keep_old": (Mode.CANARY, Mode.AB),
    "second_server": (Mode.CANARY, Mode.SHADOW),
    "weights": (Mode.CANARY,),
}


def refuse_other_modes(mode: Mode, **given: object) -> None:
    """Raise a RequestError where an option of another mode is given, which would have no effect."""
    for name, value in given.items():
        if value is not None and mode not in _MODES_OF[name]:
            option = f"--{name.replace('_', '-')}"
            raise RequestError(
                f"{option} is for --mode {' or '.join(_MODES_OF[name])}, and the mode is {mode}; leave it out",
                field=name,
            )


def usual_split(mode: Mode, *, has_second: bool, has_weights: bool) -> SplitBy:
    """Return who splits where no option says it."""
    if has_weights:
        return SplitBy.ROUTER
    return SplitBy.CLIENTS if mode is Mode.SHADOW or has_second else SplitBy.SERVER


def refuse_other_splits(plan: Plan) -> None:
    """Raise a RequestError where something shall split that cannot, or that is not there."""
    if bool(plan.weights) != (plan.split_by is SplitBy.ROUTER):
        raise RequestError(
            f"split router and --weights go together, got split {plan.split_by} "
            f"{'with' if plan.weights else 'without'} --weights; give both, or neither",
            field="split",
            value=str(plan.split_by),
        )
    if plan.split_by is SplitBy.SERVER and (plan.mode is Mode.SHADOW or plan.second_server):
        what = "with a second server" if plan.second_server else "in the shadow"
        raise RequestError(
            f"split must be clients {what}, got server: one server's models answer a request once; leave it out",
            field="split",
            value="server",
        )


def refuse_without(**given: tuple[object, str, object]) -> None:
    """Raise a RequestError where an option is given without the option that it belongs to."""
    for name, (value, of, other) in given.items():
        if value is not None and other is None:
            raise RequestError(
                f"--{name.replace('_', '-')} is for --{of.replace('_', '-')}; give that, or leave it out", field=name
            )
