# SPDX-License-Identifier: Apache-2.0
"""Interfaces of a peer: it is started, counts a prompt's tokens, takes a load, and is stopped."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from clients.access import NO_ACCESS, Access
from clients.infer_messages import GenerateRequest
from clients.load.load_options import Load
from clients.load.processes import run_processes
from clients.load.send import connect
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord
from trireme.base.errors import ServerError, ServingError

Bits = Literal[8, 16]  # of a weight


class Answered(msgspec.Struct, frozen=True):
    """The records of a load, with processor times."""

    records: list[LoadRecord]
    client_cpu: list[list[CpuSample]]  # of each process of the client; none: there was no client
    server_cpu_s: float | None  # of all processes of the server, while the load was on; None: not told
    cpu_parts_s: dict[str, float] = {}  # of this, what each part of the server took; empty: not told


class Started(Protocol):
    """A peer that runs."""

    version: str
    settings: str  # as it was started, for a shell

    def count(self, text: str) -> int:
        """Return how many tokens the peer makes of a prompt, special ones included."""

    def put_on(self, load: Load) -> Answered:
        """Send the peer a load; the peer knows its own address."""


class Peer(Protocol):
    """A side of the comparison."""

    name: str
    beside: str | None  # the name of our side that it may be compared with; None: it is ours
    precision: str  # of weights and of the arithmetic
    needs: tuple[Path, ...]  # what has to be installed or made first

    def started(self) -> contextlib.AbstractContextManager[Started]:
        """Return a context in which the peer is alone on the machine, from when it answers."""


class AskedServer:
    """A server that the load client knows how to ask: by OpenAI's API or by Triton's gRPC.

    Args:
        cpu_s: tells the CPU time of all its processes up to now.
        cpu_parts_s: the same for each part of the server. None: nobody asks for parts.
        access: the key, where the server wants one.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: str,
        settings: str,
        cpu_s: Callable[[], float],
        cpu_parts_s: Callable[[], Mapping[str, float]] | None = None,
        access: Access = NO_ACCESS,
    ) -> None:
        self.url = url
        self.model = model
        self.version = version
        self.settings = settings
        self._cpu_s = cpu_s
        self._cpu_parts_s = cpu_parts_s or (lambda: {})
        self._access = access

    def count(self, text: str) -> int:
        """Return how many tokens the server says that a prompt has.

        Raises:
            ServerError: the server does not say.
        """
        return asyncio.run(self._count(text))

    async def _count(self, text: str) -> int:
        request = GenerateRequest(text_input=text, max_tokens=1, stream=True, return_num_input_tokens=True)
        async with connect(self.url, self._access) as client:
            answer = client.generate(request, model=self.model, timeout_s=60.0)
            counts = [chunk.num_input_tokens async for chunk in answer]
        for count in counts:
            if count is not None:
                return count
        raise ServerError(f"{self.url} does not say how many tokens a prompt has, so nothing can be compared with it")

    def put_on(self, load: Load) -> Answered:
        """Put a load on the server by the built-in load client."""
        before: list[tuple[float, Mapping[str, float]]] = []
        load = msgspec.structs.replace(load, url=self.url, model=self.model, access=self._access)
        outcome = run_processes(load, began=lambda *_: before.append((self._cpu_s(), self._cpu_parts_s())))
        [(cpu_s, parts_s)] = before
        used = {part: used_s - parts_s.get(part, 0.0) for part, used_s in self._cpu_parts_s().items()}
        return Answered(outcome.records, outcome.cpu, self._cpu_s() - cpu_s, used)


def is_ready(url: str, model: str, access: Access = NO_ACCESS) -> bool:
    """Return whether a server answers a request for this model; one that does not know it yet is not ready."""

    async def ask() -> bool:
        async with connect(url, access) as client:
            return await client.is_ready(model=model)

    with contextlib.suppress(ServingError):
        return asyncio.run(ask())
    return False
