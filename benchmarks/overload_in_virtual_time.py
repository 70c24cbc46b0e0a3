# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload, with admission and without: its decisions alone, on the simulated engine in virtual time.

`python -m benchmarks.overload_in_virtual_time`. Nothing here depends on the machine, so the same seed gives the same
figures. What Triton and real time add is another benchmark's to say.
"""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.report import write_result
from ensemble_configs.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.engine_specs import SimulatedEngineSpec
from ensemble_configs.errors import Unavailable
from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.base import Engine, GenerationRequest, SamplingParams
from serving.engines.clock import VirtualClock
from serving.engines.simulated import SimulatedEngine
from serving.scheduling import Priority, Scheduling

ENGINE = SimulatedEngineSpec(
    provider="simulated", max_num_seqs=64, num_kv_blocks=2048, max_num_batched_tokens=2048, step_ms=10.0
)  # fmt: skip
# Fixed before any run, as multiples of what a request has alone.
TTFT_FACTOR, TPOT_FACTOR = 5.0, 2.0
MIX = {Priority.PREMIUM: 0.2, Priority.STANDARD: 0.5, Priority.BATCH: 0.3}
ADMISSION = AdmissionSpec.model_validate({"budget": {"shares": {"premium": 1.0, "standard": 0.9, "batch": 0.85}}})
LOADS = (0.5, 1.0, 2.0, 3.0)
_WARM_UP_S = 10.0
_LAST_ANSWER_S = 8.0  # arrivals in the last seconds may not be done


@dataclass(slots=True)
class Record:
    """What became of a request; seconds of virtual time."""

    priority: Priority
    sent_s: float
    refused_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    is_done: bool = False

    @property
    def ttft_s(self) -> float | None:
        """None: it had no token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    def is_good(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether it was answered within both targets."""
        if not self.is_done or self.first_s is None or self.first_s - self.sent_s > ttft_s:
            return False
        return self.num_tokens < 2 or (self.last_s - self.first_s) / (self.num_tokens - 1) <= tpot_s


class Run:
    """One engine under one load."""

    def __init__(self, make: Callable[[VirtualClock], Engine], seed: int) -> None:
        self._clock = VirtualClock()
        self._engine = make(self._clock)
        self._rng = random.Random(seed)
        self.records: list[Record] = []

    def open_loop(self, per_s: float, seconds: float) -> list[Record]:
        """Poisson arrivals, whatever the engine does."""
        next_s = self._rng.expovariate(per_s)
        while self._clock.now_s() < seconds:
            while next_s <= self._clock.now_s():
                self._send(next_s)
                next_s += self._rng.expovariate(per_s)
            if self._engine.has_work:
                self._step()
            else:
                self._clock.sleep_s(next_s - self._clock.now_s())
        return self.records

    def closed_loop(self, num_clients: int, seconds: float) -> float:
        """Clients that each wait for their answer: requests done per second."""
        for _ in range(num_clients):
            self._send(0.0)
        num_done = 0
        while self._clock.now_s() < seconds:
            for _ in range(self._step()):
                num_done += 1
                self._send(self._clock.now_s())
        return num_done / seconds

    def _send(self, sent_s: float) -> None:
        rng = self._rng
        record = Record(rng.choices([*MIX], [*MIX.values()])[0], sent_s)
        self.records.append(record)
        num_prompt = int(min(512, max(8, rng.lognormvariate(4.2, 0.8))))
        num_output = int(min(400, max(4, rng.lognormvariate(4.0, 0.7))))
        key = len(self.records) - 1
        request = GenerationRequest(
            key=key,
            input_ids=[16 + (key + i) % 4000 for i in range(num_prompt)],
            sampling=SamplingParams(max_tokens=num_output),
            scheduling=Scheduling(priority=record.priority, tenant=rng.choice("abcd")),
        )
        try:
            self._engine.add(request)
        except Unavailable:
            record.refused_s = self._clock.now_s()

    def _step(self) -> int:
        num_done = 0
        for chunk in self._engine.step():
            record, now_s = self.records[chunk.key], self._clock.now_s()
            if chunk.token_ids:
                record.first_s = now_s if record.first_s is None else record.first_s
                record.last_s = now_s
                record.num_tokens += len(chunk.token_ids)
            if chunk.error is not None:
                record.refused_s = now_s
            elif chunk.finish_reason is not None:
                record.is_done = True
                num_done += 1
        return num_done


def without_admission(clock: VirtualClock) -> Engine:
    """As upstream: all that come, in the order that they come."""
    return SimulatedEngine(ENGINE, clock)


def unloaded() -> tuple[float, float]:
    """TTFT and TPOT of requests that are alone, medians in seconds."""
    done = [record for record in Run(without_admission, 1).open_loop(0.5, 600.0) if record.is_done]
    ttft_s = statistics.median(record.ttft_s for record in done if record.ttft_s is not None)
    decoding = [record for record in done if record.num_tokens > 1 and record.first_s is not None]
    return ttft_s, statistics.median((one.last_s - (one.first_s or 0.0)) / (one.num_tokens - 1) for one in decoding)


def summary(records: list[Record], seconds: float, ttft_s: float, tpot_s: float) -> dict[str, object]:
    """Goodput and throughput in requests/s; by class the share that was good, and the TTFT's 99th percentile."""
    counted = [one for one in records if _WARM_UP_S <= one.sent_s < seconds - _LAST_ANSWER_S]
    counted_s = seconds - _LAST_ANSWER_S - _WARM_UP_S
    refusals_s = [one.refused_s - one.sent_s for one in counted if one.refused_s is not None]
    by_class = {}
    for priority in Priority:
        own = [one for one in counted if one.priority is priority]
        ttfts_s = sorted(one.ttft_s for one in own if one.ttft_s is not None)
        by_class[priority.name.lower()] = {
            "requests": len(own),
            "good_share": sum(one.is_good(ttft_s, tpot_s) for one in own) / max(1, len(own)),
            "ttft_p99_ms": 1000 * ttfts_s[int(0.99 * len(ttfts_s))] if ttfts_s else None,
        }
    return {
        "goodput_per_s": sum(one.is_good(ttft_s, tpot_s) for one in counted) / counted_s,
        "done_per_s": sum(one.is_done for one in counted) / counted_s,
        "latest_refusal_ms": 1000 * max(refusals_s, default=0.0),
        "classes": by_class,
    }


def main(
    seconds: Annotated[float, typer.Option(min=60, help="Of virtual time for each load.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.")] = 1,
) -> None:
    """Measure, print and keep; takes a minute or two."""
    alone_ttft_s, alone_tpot_s = unloaded()
    ttft_s, tpot_s = TTFT_FACTOR * alone_ttft_s, TPOT_FACTOR * alone_tpot_s
    capacity_per_s = Run(without_admission, seed).closed_loop(2 * ENGINE.max_num_seqs, seconds)
    slo = SloSpec(ttft_ms=1000 * ttft_s, tpot_ms=1000 * tpot_s)

    def with_admission(clock: VirtualClock) -> Engine:
        return AdmittingEngine(SimulatedEngine(ENGINE, clock), ADMISSION, slo, clock)

    kinds = {"admission": with_admission, "none": without_admission}
    found: dict[str, dict[float, dict[str, object]]] = {kind: {} for kind in kinds}
    for kind, load in track([(kind, load) for kind in kinds for load in LOADS], "loads", transient=True):
        records = Run(kinds[kind], seed).open_loop(load * capacity_per_s, seconds)
        found[kind][load] = summary(records, seconds, ttft_s, tpot_s)
    result = {
        "benchmark": "overload_in_virtual_time",
        "engine": ENGINE.model_dump(mode="json"),
        "admission": ADMISSION.model_dump(mode="json"),
        "seed": seed,
        "seconds": seconds,
        "targets_ms": {"ttft": 1000 * ttft_s, "tpot": 1000 * tpot_s},
        "capacity_requests_per_s": capacity_per_s,
        "loads": found,
    } | _ratios(found)
    path = write_result("overload_in_virtual_time", result)
    _show(found, result)
    print(f"written to {path}")


def _ratios(found: dict[str, dict[float, dict[str, object]]]) -> dict[str, float]:
    goodput = {load: float(str(one["goodput_per_s"])) for load, one in found["admission"].items()}
    most_done = max(float(str(one["done_per_s"])) for one in found["none"].values())
    return {
        "goodput_at_3x_over_peak": goodput[3.0] / max(goodput.values()),
        "peak_goodput_over_throughput_without_admission": max(goodput.values()) / most_done,
        "premium_ttft_p99_at_3x_over_half": _premium_p99(found, 3.0) / _premium_p99(found, 0.5),
    }


def _premium_p99(found: dict[str, dict[float, dict[str, object]]], load: float) -> float:
    classes = found["admission"][load]["classes"]
    assert isinstance(classes, dict)
    return float(classes["premium"]["ttft_p99_ms"])


def _show(found: dict[str, dict[float, dict[str, object]]], result: dict[str, object]) -> None:
    table = Table(title="requests/s within both targets; by class: share that was, TTFT p99 in ms")
    for column in (
        "load",
        "admission",
        "goodput",
        "done",
        "latest refusal ms",
        *(one.name.lower() for one in Priority),
    ):
        table.add_column(column, justify="right")
    for kind, loads in found.items():
        for load, one in loads.items():
            classes = one["classes"]
            assert isinstance(classes, dict)
            cells = [f"{each['good_share']:.2f}, {each['ttft_p99_ms'] or 0:.0f}" for each in classes.values()]
            numbers = [f"{one[name]:.1f}" for name in ("goodput_per_s", "done_per_s", "latest_refusal_ms")]
            table.add_row(f"{load:g}x", kind, *numbers, *cells)
    console = Console()
    console.print(table)
    for name in _ratios(found):
        console.print(f"{name}: {result[name]:.3f}")


if __name__ == "__main__":
    typer.run(main)
