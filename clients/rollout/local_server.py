# SPDX-License-Identifier: Apache-2.0
"""The releases of a server on this machine, through its control socket and its gRPC endpoint."""

import asyncio
from collections.abc import Mapping
from typing import Any

from clients.rollout.server_control import ServerControl
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.errors import ServerError, ServingError, Unavailable
from ensemble_configs.model_names import CANARY

_MAX_TRIED = 64
_TRY_TOKENS = 8
_TRY_PROMPT = "Count from one to ten."


class LocalServer:
    """One model of a server, as `clients.rollout.controller.Server` has it.

    Args:
        model: by its name in the deployment; None: the only one.
        try_timeout_s: how long the candidate may take for its first answers.
    """

    def __init__(self, control: ServerControl, model: str | None, *, try_timeout_s: float = 120.0) -> None:
        self._control = control
        self._model = model
        self._try_timeout_s = try_timeout_s

    def status(self) -> dict[str, Any]:
        """The model's: its releases, the stable one, the candidate, and the server's `grpc` address."""
        found = self._control.ask("status")
        models = [each for each in _models(found) if self._model in (None, each["name"])]
        if len(models) != 1:
            names = ", ".join(str(each["name"]) for each in _models(found))
            raise ServingError(f"name one of the server's models with --model: {names}", field="model")
        return {**models[0], "grpc": found["grpc"], "deployment": found["deployment"]}

    def add(self, release: Mapping[str, object]) -> None:
        """As `Server`."""
        self._control.ask("add", model=self._model, release=dict(release))

    def promote(self, number: int) -> None:
        """As `Server`."""
        self._control.ask("promote", model=self._model, number=number)

    def settle(self) -> None:
        """As `Server`."""
        self._control.ask("settle", model=self._model)

    def remove(self, number: int, *, drain_timeout_s: float) -> None:
        """As `Server`."""
        self._control.ask("remove", model=self._model, number=number, drain_timeout_s=drain_timeout_s)

    def lives(self) -> Mapping[str, object]:
        """As `Server`: the process of the candidate's engine."""
        status = self.status()
        return {"engine": status["engine_pids"].get(str(status["canary"]))}

    def try_out(self) -> None:
        """As `Server`."""
        status = self.status()
        stable = next(each for each in status["releases"] if each["release"] == status["canary"])
        num_requests = min(int(stable["engine"].get("max_num_seqs", 1)), _MAX_TRIED)
        asyncio.run(self._try(str(status["grpc"]), f"{status['prefix']}{CANARY}", num_requests))

    async def _try(self, url: str, model: str, num_requests: int) -> None:
        async with AsyncTritonClient(url) as client:
            texts = await asyncio.gather(*(self._answer(client, model, n) for n in range(num_requests)))
        if not any(texts):
            raise ServerError(f"none of {num_requests} answers of {model} has any text")

    async def _answer(self, client: AsyncTritonClient, model: str, number: int) -> str:
        request = GenerateRequest(
            text_input=f"{number}. {_TRY_PROMPT}",
            max_tokens=_TRY_TOKENS,
            min_tokens=1,
            exclude_input_in_output=True,
        )
        try:
            chunks = client.generate(request, model=model, timeout_s=self._try_timeout_s)
            return "".join([chunk.text async for chunk in chunks])
        except Unavailable as exc:
            # Where the server itself is gone the rollout waits for it; here it is there, and the candidate is not.
            if exc.facts.get("reason") == "unreachable":
                raise
            raise ServerError(f"{model} does not answer: {exc.message}") from exc


def _models(status: Mapping[str, object]) -> list[dict[str, Any]]:
    found = status["models"]
    assert isinstance(found, list)
    return found
