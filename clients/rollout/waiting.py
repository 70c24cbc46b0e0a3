# SPDX-License-Identifier: Apache-2.0
"""The wait for rollouts that others write down, and the driving of each: what a pod of its own does."""

import math
import time
from collections.abc import Callable
from typing import NoReturn

import typer

from clients.rollout.records.state import Rollout
from clients.rollout.records.store import Store
from clients.rollout.records.store_place import StorePlace
from trireme.base.errors import ServingError

_LOOK_S = 1.0


def wait_for_rollouts(
    place: StorePlace, go_on: Callable[[Store, Rollout], None], *, tell: Callable[[str], None]
) -> NoReturn:
    """Drive the rollouts of a store one after the other, the oldest first, without an end.

    What stands in the way, such as another process that drives them, is told once, and tried again each second.

    Args:
        go_on: drives a rollout until it is over.
    """
    last = ""

    def tell_once(text: str) -> None:
        nonlocal last
        if text != last:
            tell(text)
        last = text

    while True:
        try:
            with Store(place, patience_s=math.inf, tell=tell) as kept, kept.driving():
                while True:
                    _drive_oldest(kept, go_on, place, tell_once)
                    time.sleep(_LOOK_S)
        except (ServingError, OSError) as exc:
            tell_once(f"standing by: {_text(exc)}")
        time.sleep(_LOOK_S)


def _drive_oldest(
    kept: Store, go_on: Callable[[Store, Rollout], None], place: StorePlace, tell_once: Callable[[str], None]
) -> None:
    found = kept.open_rollouts()
    if not found:
        tell_once(f"waiting for a rollout in {place}")
        return
    try:
        go_on(kept, found[0])
    except typer.Exit:  # it was rolled back, and has told so
        pass
    except (ServingError, OSError) as exc:
        tell_once(f"rollout {found[0].id} waits: {_text(exc)}")


def _text(exc: ServingError | OSError) -> str:
    return exc.message if isinstance(exc, ServingError) else str(exc)
