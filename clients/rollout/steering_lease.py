# SPDX-License-Identifier: Apache-2.0
"""The lease with which one rollout steers a server, from whatever machine (`serving.live_releases.steering`)."""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from clients.rollout.local_server import Control
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.server_controls import ServerControls
from trireme.base.errors import RequestError, ServingError, Unavailable

LEASE_S = 30.0
_RENEW_S = 5.0
_LOOK_S = 0.5


@contextlib.contextmanager
def steering_all(controls: Sequence[ServerControls], plan: Plan, *, tell: Callable[[str], None]) -> Iterator[None]:
    """Steer the server of a rollout, or the first and the second one, with all their replicas.

    Raises:
        RequestError, ServingError: as `steering`; then none is steered.
    """
    with contextlib.ExitStack() as held:
        for replicas, name in zip(controls, ("server", "second server"), strict=False):
            for where, control in _all(replicas, name, tell).items():
                held.enter_context(steering(control, plan, tell=tell, name=f"{name} {where}".strip()))
        yield


@contextlib.contextmanager
def steering(
    control: Control, plan: Plan, *, tell: Callable[[str], None], renew_s: float = _RENEW_S, name: str = "server"
) -> Iterator[None]:
    """Steer a server for a rollout; one that is away now is told when it is back.

    Args:
        name: of the server, for people: `server` or `second server`, and the replica.

    Raises:
        RequestError: another rollout steers the server, or another process this one; it names the other.
        ServingError: the server refuses the caller.
    """
    lease = _Lease(control, plan, tell, name)
    try:
        lease.take()
    except Unavailable as exc:
        if exc.facts.get("reason") == "steered":
            raise RequestError(
                f"the {name}: {exc.message}", field="second_server" if name.startswith("second") else "server"
            ) from exc
        tell(f"waiting for the {name}: {exc.message}")
    closing = threading.Event()

    def renew() -> None:
        while not closing.wait(renew_s):
            lease.renew()

    thread = threading.Thread(target=renew, name="steering", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(2 * renew_s)  # it may wait for a server that is silent
        lease.give_back()


def _all(replicas: ServerControls, name: str, tell: Callable[[str], None]) -> Mapping[str, Control]:
    """Return the controls of all replicas; wait while nobody knows them."""
    message = ""
    while True:
        try:
            return replicas.all()
        except Unavailable as exc:
            if exc.message != message:
                tell(f"waiting for the {name}: {exc.message}")
            message = exc.message
            time.sleep(_LOOK_S)


class _Lease:
    def __init__(self, control: Control, plan: Plan, tell: Callable[[str], None], name: str) -> None:
        self._control, self._tell, self._name = control, tell, name
        self._rollout = plan.salt[:200]  # no two rollouts have one hash seed
        self._process = secrets.token_hex(8)
        self._who = f"a rollout of release {plan.candidate} (process {os.getpid()} on {socket.gethostname()})"[:200]
        self._was_taken = False
        self._last_message = ""
        control.controller = self._process

    def take(self) -> None:
        self._steer(LEASE_S)
        self._was_taken = True

    def renew(self) -> None:
        try:
            self.take()
            self._last_message = ""
        except (ServingError, OSError) as exc:
            if str(exc) != self._last_message:
                self._tell(f"the {self._name} is not steered: {exc}")
            self._last_message = str(exc)

    def give_back(self) -> None:
        with contextlib.suppress(ServingError, OSError):  # it ends by itself
            self._steer(0.0)

    def _steer(self, lease_s: float) -> None:
        self._control.ask(
            "steer",
            rollout=self._rollout,
            process=self._process,
            who=self._who,
            lease_s=lease_s,
            is_first=not self._was_taken,
        )
