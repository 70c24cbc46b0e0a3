# SPDX-License-Identifier: Apache-2.0
"""Requests to several servers, by their beginnings and by the servers' load: TTFT on simulated engines.

`python -m benchmarks.studies.routing_in_virtual_time`. Two gateways have conversations, four servers answer them, and
one server has others' requests, too, in bursts that no gateway sees but in the server's figures. Nothing here depends
on the machine, so the same seed gives the same figures.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.report import environment, write_result
from benchmarks.support.virtual_fleet import Sent, VirtualFleet, VirtualGateway
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from gateway.servers.server_pool import READ_S
from serving.engines.seam.base import GenerationRequest, SamplingParams

ENGINE = SimulatedEngineSpec(
    provider="simulated", max_num_seqs=32, num_kv_blocks=1024, kv_block_tokens=64, max_num_batched_tokens=1024,
    max_seq_len=8192, step_ms=10.0, prefill_us_per_token=50.0, decode_us_per_seq=200.0,
)  # fmt: skip
NUM_SERVERS, NUM_GATEWAYS, NUM_TURNS = 4, 2, 6
_PIECE_TOKENS = 64
_WARM_UP_S = 30.0
# A prompt's blocks are kept when it ends, as engines with a prefix cache do; others' go first.
_KEPT = SamplingParams(
    max_tokens=1, retention_token_range_starts=(0,), retention_token_range_ends=(-1,),
    retention_token_range_priorities=(50,), retention_decode_priority=50, retention_decode_duration_ms=-1,
)  # fmt: skip


class Way(NamedTuple):
    """A way to choose a server: whether beginnings draw, and whether servers are asked for their load."""

    has_affinity: bool
    sees_load: bool


WAYS = {
    "fewest of its own": Way(has_affinity=False, sees_load=False),
    "beginnings": Way(has_affinity=True, sees_load=False),
    "load": Way(has_affinity=False, sees_load=True),
    "beginnings and load": Way(has_affinity=True, sees_load=True),
}


class Case(NamedTuple):
    """A case: what others send to the first server, and what goes wrong.

    Attributes:
        others_per_s: requests of others while a burst of theirs lasts.
        gateways: that share the conversations.
        unread: servers whose figures nobody can read.
    """

    others_per_s: float = 0.0
    gateways: int = NUM_GATEWAYS
    unread: tuple[int, ...] = ()


CASES = {
    "others at one server": Case(others_per_s=14.0),
    "the same, of a server without figures": Case(others_per_s=14.0, unread=(0,)),
    "nobody else": Case(),
    "nobody else, eight gateways": Case(gateways=8),
}
_BURST_S = 20.0  # others ask for so long, and are silent as long


class Conversation:
    """A conversation: each turn has the whole of it as its prompt."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self._rng, self.number, self.turn = rng, number, 0
        self._ids: list[int] = []
        self._numbers: list[int] = []

    def ask(self, key: int) -> tuple[GenerationRequest, list[int]]:
        """Return the request of the next turn, and the numbers of its pieces."""
        self.turn += 1
        self._say(int(min(900, max(16, self._rng.lognormvariate(5.3, 0.7)))))
        num_output = int(min(400, max(8, self._rng.lognormvariate(4.2, 0.6))))
        sampling = msgspec.structs.replace(_KEPT, max_tokens=num_output)
        request, numbers = GenerationRequest(key=key, input_ids=[*self._ids], sampling=sampling), [*self._numbers]
        self._say(num_output)  # the answer; other tokens than the engine's, so that its blocks do not count as known
        return request, numbers

    def _say(self, num_tokens: int) -> None:
        begin = len(self._ids)
        self._ids += [16 + (self.number * 7919 + begin + at) % 4000 for at in range(num_tokens)]
        for at in range(begin, len(self._ids), _PIECE_TOKENS):
            self._numbers.append(hash((self.number, self._numbers[-1] if self._numbers else 0, at)))


class Run:
    """A run of one case in one way."""

    def __init__(self, case: Case, way: Way, *, conversations_per_s: float, seed: int, read_s: float) -> None:
        self._rng, self._way, self._per_s = random.Random(seed), way, conversations_per_s
        self._case, self._keys = case, iter(range(1 << 40))
        self.fleet = VirtualFleet(ENGINE, NUM_SERVERS)
        self.gateways = [
            VirtualGateway(
                self.fleet,
                read_s=read_s if way.sees_load else None,
                phase_s=read_s * number / case.gateways,
                unread=case.unread,
            )
            for number in range(case.gateways)
        ]
        self.sent: list[Sent] = []

    def measure(self, seconds: float) -> dict[str, float]:
        """Return the percentiles of TTFT, and the share of the prompts' tokens that was cached."""
        self._begin(random.Random(self._rng.random()), 0)
        if self._case.others_per_s:
            self._others(random.Random(self._rng.random()))
        self.fleet.run(seconds)
        counted = [one for one in self.sent if one.sent_s >= _WARM_UP_S and one.first_s is not None]
        ttft_ms = [1000 * (one.first_s - one.sent_s) for one in counted if one.first_s is not None]
        at_first = sum(one.server == 0 for one in counted)
        return {
            "requests": len(counted),
            **{f"ttft_p{share}_ms": float(np.percentile(ttft_ms, share)) for share in (50, 95, 99)},
            "cached_share": sum(one.num_cached for one in counted) / sum(len(one.request.input_ids) for one in counted),
            "share_of_the_first_server": at_first / len(counted),
        }

    def _begin(self, rng: random.Random, number: int) -> None:
        conversation = Conversation(random.Random(rng.random()), number)
        self._ask(conversation, self.gateways[number % len(self.gateways)])
        self.fleet.at(self.fleet.now_s + rng.expovariate(self._per_s), lambda: self._begin(rng, number + 1))

    def _ask(self, conversation: Conversation, gateway: VirtualGateway) -> None:
        request, numbers = conversation.ask(next(self._keys))

        def go_on(sent: Sent) -> None:
            self.sent.append(sent)
            if conversation.turn < NUM_TURNS:
                pause_s = 1.0 + 3.0 * ((request.key * 2654435761) % 1000) / 1000
                self.fleet.at(self.fleet.now_s + pause_s, lambda: self._ask(conversation, gateway))

        gateway.send(request, numbers if self._way.has_affinity else [], on_end=go_on)

    def _others(self, rng: random.Random) -> None:
        if self.fleet.now_s % (2 * _BURST_S) < _BURST_S:
            ids = [16 + rng.randrange(4000) for _ in range(600)]
            request = GenerationRequest(key=next(self._keys), input_ids=ids, sampling=SamplingParams(max_tokens=150))
            self.fleet.servers[0].add(Sent(request, self.fleet.now_s, 0))
        next_s = self.fleet.now_s + rng.expovariate(self._case.others_per_s)
        self.fleet.at(next_s, lambda: self._others(rng))


def measured(seconds: float, conversations_per_s: float, seed: int) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield the figures of each way in each case."""
    for (case_name, case), (name, way) in itertools.product(CASES.items(), WAYS.items()):
        run = Run(case, way, conversations_per_s=conversations_per_s, seed=seed, read_s=READ_S)
        yield case_name, name, run.measure(seconds)


def main(
    seconds: Annotated[float, typer.Option(min=60, help="Virtual seconds of each run.")] = 300.0,
    conversations_per_s: Annotated[float, typer.Option(min=0.1, help="Conversations that begin.")] = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 1,
) -> None:
    """Measure, print and keep; takes some minutes."""
    where = environment()
    found: dict[str, dict[str, dict[str, float]]] = {case: {} for case in CASES}
    runs = measured(seconds, conversations_per_s, seed)
    for case, way, figures in track(runs, "runs", total=len(CASES) * len(WAYS), transient=True):
        found[case][way] = figures
    result = {
        "benchmark": "routing_in_virtual_time",
        "engine": ENGINE.model_dump(mode="json"),
        "servers": NUM_SERVERS,
        "turns": NUM_TURNS,
        "conversations_per_s": conversations_per_s,
        "cases": {name: case._asdict() for name, case in CASES.items()},
        "seconds": seconds,
        "seed": seed,
        "read_s": READ_S,
        "found": found,
        "environment": where,
    }
    _show(found)
    print(f"written to {write_result('routing_in_virtual_time', result)}")


def _show(found: dict[str, dict[str, dict[str, float]]]) -> None:
    table = Table(title="TTFT of the gateways' requests, ms")
    for column in ("case", "chosen by", "p50", "p95", "p99", "cached", "at the first server"):
        table.add_column(column)
    for case, ways in found.items():
        for way, figures in ways.items():
            times = [f"{figures[f'ttft_p{share}_ms']:.0f}" for share in (50, 95, 99)]
            table.add_row(
                case, way, *times, f"{figures['cached_share']:.2f}", f"{figures['share_of_the_first_server']:.2f}"
            )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
