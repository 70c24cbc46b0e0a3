# SPDX-License-Identifier: Apache-2.0
"""Several engines and the gateways before them in virtual time: the gateways' own choice of a server, no wire."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from gateway.servers.choice import choose
from gateway.servers.server import Server
from gateway.servers.server_load import EngineLoad, engine_of
from serving.engines.seam.base import GenerationRequest, TokenChunk
from serving.engines.seam.clock import VirtualClock
from serving.engines.simulated.simulated_engine import SimulatedEngine

MODEL = "ensemble"
_NO_CLIENT: Any = None


@dataclass(slots=True)
class Sent:
    """A request that was sent to a server; times are seconds of virtual time.

    Attributes:
        num_cached: tokens of its prompt that the server had in its KV cache.
        on_end: is called at its end.
    """

    request: GenerationRequest
    sent_s: float
    server: int
    first_s: float | None = None
    num_cached: int = 0
    on_first: Callable[[], None] | None = None
    on_end: Callable[[], None] | None = None


class VirtualFleet:
    """Engines of one kind, and what happens to them in the order of its time.

    Attributes:
        now_s: seconds since the start.
        servers: the engines, by number.
    """

    def __init__(self, engine: SimulatedEngineSpec, number: int) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.servers = [VirtualServer(self, engine) for _ in range(number)]

    def at(self, moment_s: float, event: Callable[[], None]) -> None:
        """Let something happen at a moment, or now where it has passed."""
        heapq.heappush(self._events, (max(moment_s, self.now_s), next(self._order), event))

    def run(self, seconds: float) -> None:
        """Let everything happen that does before a moment."""
        while self._events and self._events[0][0] < seconds:
            self.now_s, _, event = heapq.heappop(self._events)
            event()


class VirtualServer:
    """An engine that steps while it has work.

    Attributes:
        load: what the server tells of itself: its state after the last step that has ended.
    """

    def __init__(self, fleet: VirtualFleet, spec: SimulatedEngineSpec) -> None:
        self._fleet, self._clock = fleet, VirtualClock()
        self._engine = SimulatedEngine(spec, self._clock)
        self._sent: dict[int, Sent] = {}
        self._is_stepping = False
        self.load = EngineLoad()

    def add(self, sent: Sent) -> None:
        """Give a request to the engine; a step that goes on ends first."""
        if not self._is_stepping:
            self._clock.sleep_s(self._fleet.now_s - self._clock.now_s())
        self._sent[sent.request.key] = sent
        self._engine.add(sent.request)
        if not self._is_stepping:
            self._step()

    def _step(self) -> None:
        self._is_stepping = True
        chunks = self._engine.step()
        self._fleet.at(self._clock.now_s(), lambda: self._end_step(chunks))

    def _end_step(self, chunks: Sequence[TokenChunk]) -> None:
        stats = self._engine.stats()
        self.load = EngineLoad(stats.num_running, stats.num_waiting, stats.num_used_kv_blocks / stats.num_kv_blocks)
        for chunk in chunks:
            sent = self._sent[chunk.key]
            if sent.first_s is None:
                sent.first_s = self._fleet.now_s
                if sent.on_first is not None:
                    sent.on_first()
            if chunk.finish_reason is not None:
                del self._sent[chunk.key]
                if chunk.perf is not None:
                    sent.num_cached = chunk.perf.cached_tokens(self._engine.info.kv_block_tokens) or 0
                if sent.on_end is not None:
                    sent.on_end()
        self._is_stepping = False
        if self._engine.has_work:
            self._step()


class VirtualGateway:
    """A gateway that sends requests to the servers of a fleet.

    Args:
        read_s: between two looks at what each server tells of its load; None: it never looks.
        phase_s: when it looks first.
        unread: servers whose figures it cannot read.
    """

    def __init__(
        self,
        fleet: VirtualFleet,
        *,
        read_s: float | None,
        phase_s: float = 0.0,
        unread: Sequence[int] = (),
    ) -> None:
        self._fleet, self._read_s, self._unread = fleet, read_s, unread
        self._servers = [
            Server(str(number), _NO_CLIENT, [MODEL], lambda: fleet.now_s) for number in range(len(fleet.servers))
        ]
        if read_s is not None:
            fleet.at(phase_s, self._read)

    def send(self, request: GenerationRequest, numbers: Sequence[int], *, on_end: Callable[[Sent], None]) -> None:
        """Send a request to the server that the gateway chooses for it."""
        server = choose(self._servers, numbers, model=MODEL)
        number = self._servers.index(server)
        server.begin()
        sent = Sent(request, self._fleet.now_s, number)

        def end() -> None:
            server.num_running -= 1
            on_end(sent)

        sent.on_first, sent.on_end = lambda: server.prefixes.add(numbers), end
        self._fleet.servers[number].add(sent)

    def _read(self) -> None:
        for number, server in enumerate(self._servers):
            if number not in self._unread:
                load = self._fleet.servers[number].load
                server.note_load({engine_of(MODEL): load}, at_s=self._fleet.now_s, num_own=server.num_running)
        assert self._read_s is not None
        self._fleet.at(self._fleet.now_s + self._read_s, self._read)
