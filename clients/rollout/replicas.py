# SPDX-License-Identifier: Apache-2.0
"""A server of several replicas, such as the pods of a Deployment: what is done to one is done to all.

Each splits its own requests and tells how they end; the evidence is that of all. A replica that comes, goes or loses
its candidate ends the rollout, as an engine that died does. One that came while the candidate was promoted, or went
unnoticed before, is brought to the release that the others serve, so that no end leaves two stable releases.
"""

import json
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from clients.rollout.judging.replay import PromptScores, Target
from clients.rollout.local_server import LocalServer
from clients.rollout.records.held_out import HeldOut
from clients.rollout.server_controls import ServerControls
from trireme.base.errors import RequestError, ServerError, ServingError, Unavailable

Found = TypeVar("Found")

_ALIKE = ("name", "prefix", "release", "canary", "on_trial", "releases")


class Replicas:
    """The replicas of one server; a `clients.rollout.controller.Server`, with what `LocalServer` has beside.

    Args:
        controls: of all replicas.
        model: by its name in the deployment; None: the only one.
    """

    def __init__(self, controls: ServerControls, model: str | None) -> None:
        self._controls = controls
        self._model = model
        self._first: set[str] = set()  # those that were there when this process began

    @property
    def parts(self) -> list[LocalServer]:
        """Return the replicas that are there now. Raises: Unavailable: nobody knows which are there."""
        return list(self._each().values())

    def status(self) -> dict[str, Any]:
        """Return what the replicas say of the model, the first one's addresses, `server_ids` and `num_replicas`.

        Raises:
            RequestError: they do not serve the same, or two addresses are of one server.
            Unavailable: one does not answer.
        """
        found = self._all(LocalServer.status)
        by_id: dict[object, str] = {}
        for name, each in found.items():
            if (same := by_id.setdefault(each["server_id"], name)) != name:
                raise RequestError(
                    f"{same} and {name} are one server; name each replica once", field="server", value=name
                )
        (first_name, first), *others = found.items()
        for name, other in others:
            for field in _ALIKE:
                if json.dumps(first[field], sort_keys=True) != json.dumps(other[field], sort_keys=True):
                    raise RequestError(
                        f"the replicas do not serve the same: {field} is {_short(first[field])} at {first_name} and "
                        f"{_short(other[field])} at {name}; deploy one release on all, and start again",
                        field="server",
                        value=name,
                    )
        return {**first, "server_ids": list(by_id), "num_replicas": len(found)}

    def why_no_room(self, release: Mapping[str, object]) -> str:
        """Return a sentence about the memory that a release lacks at a replica; "" where none lacks any."""
        found = self._all(lambda each: each.why_no_room(release))
        return next((f"{name}: {why_not}" for name, why_not in found.items() if why_not), "")

    def add(self, release: Mapping[str, object], *, is_canary: bool) -> None:
        """Load a release on trial, on all at once.

        Raises:
            ServerError: other replicas are there than when this process began: nobody splits their requests.
        """
        self._check_same()
        self._all(lambda each: each.add(release, is_canary=is_canary))

    def replace(self, release: Mapping[str, object], *, drain_timeout_s: float) -> None:
        """Serve a release in the place of the stable one, on all at once."""
        self._all(lambda each: each.replace(release, drain_timeout_s=drain_timeout_s))

    def promote(self, number: int) -> None:
        """Serve a release to requests that name no release, also at a replica that has come without it."""
        self._bring(number, lambda _: True)

    def settle(self) -> None:
        """End the trial of all releases; all of them stay loaded."""
        self._all(LocalServer.settle)

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """Unload a release once its streams have ended, or after `drain_timeout_s` seconds.

        Where it is the stable one at some replicas alone, those are brought to the release of the others first.
        """
        stable = {int(each["release"]) for each in self._all(LocalServer.status).values()}
        if number in stable and (others := stable - {number}):
            self._bring(max(others), lambda status: status["release"] == number)
        self._all(lambda each: each.remove(number, drain_timeout_s=drain_timeout_s))

    def lives(self) -> Mapping[str, object]:
        """Return the processes of each replica."""
        return self._all(LocalServer.lives)

    def stable_lives(self) -> Mapping[str, object]:
        """Return the process of each replica's stable release."""
        return self._all(LocalServer.stable_lives)

    def try_out(self, number: int) -> None:
        """Let each replica answer as many requests as it takes at a time."""
        self._check_same()
        self._all(lambda each: each.try_out(number))

    def target(self, number: int | None = None) -> Target:
        """Return the target at the first replica that answers for a release; None: for the stable one."""
        return self.parts[0].target(number)

    def replay(self, held_out: HeldOut, number: int) -> Generator[list[PromptScores], None, None]:
        """Ask the first replica the held-out prompts: the others have the same releases."""
        yield from self.parts[0].replay(held_out, number)

    def _bring(self, number: int, is_meant: Callable[[Mapping[str, Any]], bool]) -> None:
        """Make a release the stable one at some replicas; one that lacks it loads it as another one has it."""
        found = self._all(LocalServer.status)
        known = (each for status in found.values() for each in status["releases"])
        release = next((each for each in known if each["release"] == number), None)

        def bring(each: LocalServer) -> None:
            status = each.status()
            if not is_meant(status):
                return
            if release is not None and number not in [one["release"] for one in status["releases"]]:
                each.add(release, is_canary=status["canary"] is None)
                each.try_out(number)
            each.promote(number)

        self._all(bring)

    def _check_same(self) -> None:
        there = set(self._each())
        if there != self._first:
            raise ServerError(
                f"replicas came or went meanwhile: {', '.join(sorted(there))} are there, and there were "
                f"{', '.join(sorted(self._first))}"
            )

    def _each(self) -> dict[str, LocalServer]:
        found = {name: LocalServer(control, self._model) for name, control in self._controls.all().items()}
        self._first = self._first or set(found)
        return found

    def _all(self, do: Callable[[LocalServer], Found]) -> dict[str, Found]:
        """Do a thing at all replicas at once, and return what each answers.

        Raises:
            ServingError: a replica refuses, which comes before one that is away.
        """
        found: dict[str, Found] = {}
        errors: dict[str, Exception] = {}

        def work(name: str, server: LocalServer) -> None:
            try:
                found[name] = do(server)
            except Exception as exc:  # raised again, in the caller's thread
                errors[name] = exc

        # A process that is told to end does not wait for them.
        threads = [threading.Thread(target=work, args=each, daemon=True) for each in self._each().items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, exc in sorted(errors.items(), key=lambda each: isinstance(each[1], Unavailable)):
            if not isinstance(exc, ServingError):
                raise exc
            raise type(exc)(f"replica {name}: {exc.message}", **exc.facts) from exc
        return dict(sorted(found.items()))


AnyServer = LocalServer | Replicas


def server_of(controls: ServerControls, model: str | None) -> AnyServer:
    """Return the server that controls are of."""
    if controls.is_one:
        [control] = controls.all().values()
        return LocalServer(control, model)
    return Replicas(controls, model)


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else f"{text[:77]}..."
