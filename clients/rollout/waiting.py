# SPDX-License-Identifier: Apache-2.0
"""Rollouts that one process writes down and another one waits for and drives, such as a pod of its own."""

import math
import time
from collections.abc import Callable
from typing import NoReturn

import typer

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from trireme.base.errors import ServingError
from trireme.base.store_place import StorePlace

_LOOK_S = 1.0


def leave(place: StorePlace, model: str, plan: Plan, why: str, *, tell: Callable[[str], None]) -> None:
    """Write a rollout down for another process, and tell whether one is there.

    Raises:
        RequestError: a rollout of the model goes on.
    """
    with Store(place, tell=tell) as kept:
        rollout = kept.begin(model, plan.text(), why=why)
        is_driven = kept.is_driven()
    tell(f"rollout {rollout.id} to release {plan.candidate} is written down; `trireme rollout status` shows it")
    if not is_driven:
        tell(f"nobody drives the rollouts of {place} now: start `trireme rollout run --wait` there")


def wait_for_rollouts(
    place: StorePlace, go_on: Callable[[Store, Rollout], None], *, tell: Callable[[str], None]
) -> NoReturn:
    """Drive the rollouts of a store one after the other, the oldest first, without an end.

    What stands in the way, such as another process that drives them, is told once, and tried again each second.

    Args:
        go_on: drives a rollout until it is over.
    """
    told = ""

    def tell_once(text: str) -> None:
        nonlocal told
        if text and text != told:
            tell(text)
        told = text

    while True:
        try:
            with Store(place, patience_s=math.inf, tell=tell) as kept, kept.driving():
                while True:
                    tell_once(_drive_oldest(kept, go_on, place))
                    time.sleep(_LOOK_S)
        except (ServingError, OSError) as exc:
            tell_once(f"standing by: {_text(exc)}")
        time.sleep(_LOOK_S)


def _drive_oldest(kept: Store, go_on: Callable[[Store, Rollout], None], place: StorePlace) -> str:
    """Return what to tell people; "": a rollout was driven, which has told of itself."""
    found = kept.open_rollouts()
    if not found:
        return f"waiting for a rollout in {place}"
    try:
        go_on(kept, found[0])
    except typer.Exit:  # it was rolled back
        return ""
    except (ServingError, OSError) as exc:
        return f"rollout {found[0].id} waits: {_text(exc)}"
    return ""


def _text(exc: ServingError | OSError) -> str:
    return exc.message if isinstance(exc, ServingError) else str(exc)
