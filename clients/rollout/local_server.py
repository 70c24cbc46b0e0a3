# SPDX-License-Identifier: Apache-2.0
"""The releases of a server, through its control and its gRPC endpoint; the control may be another machine's."""

import asyncio
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from clients.access import Access
from clients.infer_messages import PINNING_MODEL
from clients.rollout.judging.replay import PromptScores, Target, replay
from clients.rollout.records.held_out import HeldOut, prompts_of
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Rollout
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.spec.model_names import CANARY
from ensemble_configs.split.outcome_journal import Journal
from ensemble_configs.split.release_split import ReleaseShare
from trireme.base.errors import ServerError, ServingError, Unavailable

_MAX_TRIED = 64
_OF_THE_SERVER = ("grpc", "grpc_access", "grpc_names", "deployment", "server_id", "metrics", "served_s")
_TRY_TOKENS = 8
_TRY_PROMPT = "Count from one to ten."


class Control(Protocol):
    """The control of a server, on this machine (`clients.server_control`) or another one (`clients.remote_control`).

    Attributes:
        controller: the process that asks; "": none that steers the server.
    """

    controller: str

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        """Do one thing, and wait until it is done."""

    def journal(self, name: str) -> Journal:
        """Return the journal of outcomes that the server calls by a name."""

    def journal_name(self, answer: Mapping[str, object]) -> str:
        """Return what `journal` takes, of the answer of `split`; no two servers have journals of one name."""

    def seen_from_here(self, status: Mapping[str, object]) -> Mapping[str, object]:
        """Return a server's status with the addresses by which this machine reaches it."""


class LocalServer:
    """The releases of one model of a server; a `clients.rollout.controller.Server`.

    Args:
        model: by its name in the deployment; None: the only one.
        try_timeout_s: how long the candidate may take for its first answers.
    """

    def __init__(self, control: Control, model: str | None, *, try_timeout_s: float = 120.0) -> None:
        self._control = control
        self._model = model
        self._try_timeout_s = try_timeout_s

    def status(self) -> dict[str, Any]:
        """Return the model's releases, its stable one and its candidate, and the server's `grpc` address.

        Raises:
            ServingError: the server has several models and none is named, or not this one.
            Unavailable: the server does not answer.
        """
        found = self._control.seen_from_here(self._control.ask("status"))
        models = [each for each in _models(found) if self._model in (None, each["name"])]
        if len(models) != 1:
            names = ", ".join(str(each["name"]) for each in _models(found))
            raise ServingError(f"name one of the server's models with --model: {names}", field="model")
        of_server = {name: found.get(name) for name in _OF_THE_SERVER}
        return {**models[0], **of_server, "server_ids": [found.get("server_id")]}

    @property
    def parts(self) -> "list[LocalServer]":
        """Return the server's replicas: itself."""
        return [self]

    def why_no_room(self, release: Mapping[str, object]) -> str:
        """Return a sentence about the memory that a release lacks beside what is served; "" where it lacks none."""
        return str(self._control.ask("room", model=self._model, release=dict(release))["why_not"])

    def add(self, release: Mapping[str, object], *, is_canary: bool) -> None:
        """Load a release on trial."""
        self._control.ask("add", model=self._model, release=dict(release), is_canary=is_canary)

    def replace(self, release: Mapping[str, object], *, drain_timeout_s: float) -> None:
        """Serve a release in the place of the stable one, which is unloaded first."""
        self._control.ask("replace", model=self._model, release=dict(release), drain_timeout_s=drain_timeout_s)

    def promote(self, number: int) -> None:
        """Serve a release to requests that name no release."""
        self._control.ask("promote", model=self._model, number=number)

    def settle(self) -> None:
        """End the trial of all releases; all of them stay loaded."""
        self._control.ask("settle", model=self._model)

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """Unload a release once its streams have ended, or after `drain_timeout_s` seconds."""
        self._control.ask("remove", model=self._model, number=number, drain_timeout_s=drain_timeout_s)

    def split(self, rollout: Rollout, plan: Plan, shares: Sequence[ReleaseShare]) -> str:
        """Split the requests that name no release, until the lease of the plan is over; return the journal's name.

        Raises:
            Unavailable: the server does not answer, or has no Triton now.
        """
        asked = {"rollout": rollout.id, "step": rollout.step, "hash_seed": plan.salt, "lease_s": plan.lease_s}
        found = self._control.ask("split", model=self._model, shares=msgspec.to_builtins(shares), **asked)
        return self._control.journal_name(found)

    def journal(self, name: str) -> Journal:
        """Return the journal of outcomes by its name."""
        return self._control.journal(name)

    def lives(self) -> Mapping[str, object]:
        """Return the process ids of the engines on trial, by release, and the server's own process."""
        status = self.status()
        on_trial = status["on_trial"] if status["canary"] is None else [status["canary"], *status["on_trial"]]
        return _lives(status, on_trial)

    def stable_lives(self) -> Mapping[str, object]:
        """Return the process id of the stable release's engine, by its release, and the server's own process."""
        status = self.status()
        return _lives(status, [status["release"]])

    def try_out(self, number: int) -> None:
        """Let a release on trial answer as many requests as it takes at a time, 64 at most.

        Raises:
            ServerError: the release does not answer, or without any text.
        """
        engine = next((each["engine"] for each in self.status()["releases"] if each["release"] == number), None)
        if engine is None:
            raise ServerError(f"release {number} is not loaded any more: one of its processes died")
        num_requests = min(int(engine.get("max_num_seqs", 1)), _MAX_TRIED)
        asyncio.run(self._try(self.target(number), num_requests))

    def target(self, number: int | None = None) -> Target:
        """Return the target that answers for a release; None: for the stable release."""
        status = self.status()
        url, prefix = str(status["grpc"]), status["prefix"]
        access = Access(**(status.get("grpc_access") or {}))
        if number in (None, status["release"]):
            return Target(url, f"{prefix}ensemble", access=access)
        if number == status["canary"]:
            return Target(url, prefix + CANARY, access=access)
        return Target(url, prefix + PINNING_MODEL, number, access)

    def replay(self, held_out: HeldOut, number: int) -> Generator[list[PromptScores], None, None]:
        """Ask a release on trial and the stable one the held-out prompts, and yield scores as they come."""
        yield from replay(
            prompts_of(held_out),
            stable=self.target(),
            candidate=self.target(number),
            num_at_a_time=held_out.num_at_a_time,
        )

    async def _try(self, target: Target, num_requests: int) -> None:
        async with AsyncTritonClient(target.url, access=target.access) as client:
            texts = await asyncio.gather(*(self._answer(client, target, n) for n in range(num_requests)))
        if not any(texts):
            raise ServerError(f"none of {num_requests} answers of {target.name} has any text")

    async def _answer(self, client: AsyncTritonClient, target: Target, number: int) -> str:
        request = GenerateRequest(
            text_input=f"{number}. {_TRY_PROMPT}",
            max_tokens=_TRY_TOKENS,
            min_tokens=1,
            exclude_input_in_output=True,
        )
        try:
            chunks = client.generate(request, model=target.model, release=target.release, timeout_s=self._try_timeout_s)
            return "".join([chunk.text async for chunk in chunks])
        except Unavailable as exc:
            # Where the server itself is gone the rollout waits for it; here it is there, and the candidate is not.
            if exc.facts.get("reason") == "unreachable":
                raise
            raise ServerError(f"{target.name} does not answer: {exc.message}") from exc


def _lives(status: Mapping[str, Any], numbers: Iterable[int]) -> Mapping[str, object]:
    # A container that is started anew gives its processes the same numbers again.
    pids = {str(number): status["engine_pids"].get(str(number)) for number in numbers}
    return {"server": status["server_id"], **pids}


def _models(status: Mapping[str, object]) -> list[dict[str, Any]]:
    found = status["models"]
    assert isinstance(found, list)
    return found
