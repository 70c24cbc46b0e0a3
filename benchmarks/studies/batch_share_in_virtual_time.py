# SPDX-License-Identifier: Apache-2.0
"""Costs and gains of the batch class's share of the budget: admission alone, in virtual time.

`python -m benchmarks.studies.batch_share_in_virtual_time`; a minute or two. The same interactive arrivals each time,
half of what the engine can do, and beside them a batch job that always has requests waiting. Nothing here depends on
the machine; what Triton and the job's own process add is `benchmarks.studies.batch_beside_interactive`'s to say.
"""

import random
import statistics
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.overload import ENGINE
from benchmarks.overload_figures import p99
from benchmarks.support.report import write_result
from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.scheduling import Priority, Scheduling
from serving.engines.simulated.simulated_engine import SimulatedEngine

SHARES = (0.6, 0.75, 0.8, 0.85, 0.95, 1.0)
INTERACTIVE_LOAD = 0.5
_WAITING = 64  # of the batch job, always
_WARM_UP_S = 20.0


def _num_output(rng: random.Random) -> int:
    return int(min(200, max(4, rng.lognormvariate(3.6, 0.7))))


MEAN_TOKENS = statistics.fmean(map(_num_output, [random.Random(0)] * 20_000))


class Measured(msgspec.Struct, frozen=True):
    """The figures of a run, after its warm-up."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    num_interactive: int
    interactive_tokens_per_s: float
    batch_tokens_per_s: float


class Run:
    """Interactive requests by seed, with a batch job beside them or without.

    Args:
        share: of the batch class.
        prompt_factor: how much longer the job's prompts are than interactive ones.
        prefill_share: of a step, that the job's prompts may have beside interactive ones; None: the default.
    """

    def __init__(
        self,
        engine: SimulatedEngineSpec,
        share: float,
        seed: int,
        *,
        prompt_factor: int = 1,
        prefill_share: float | None = None,
    ) -> None:
        self._prompt_factor = prompt_factor
        self._clock = VirtualClock()
        budget: dict[str, object] = {"shares": {"standard": 1.0, "batch": share}}
        if prefill_share is not None:
            budget["batch_prefill_share"] = prefill_share
        admission = AdmissionSpec.model_validate({"budget": budget})
        self._engine = AdmittingEngine(SimulatedEngine(engine, self._clock), admission, SloSpec(), self._clock)
        self._arrivals, self._job = random.Random(seed), random.Random(-seed)
        self._sent_s: dict[int, float] = {}  # of interactive requests without a token
        self._ttft_s: list[float] = []
        self._num_tokens = {True: 0, False: 0}  # of interactive requests, of the job
        self._num_keys = 0
        self._interactive: set[int] = set()

    def measure(self, *, per_s: float, num_batch: int, seconds: float) -> Measured:
        """Run, and return the figures.

        Args:
            per_s: interactive arrivals.
            num_batch: requests of the job in flight or waiting.
            seconds: virtual time.
        """
        next_s = self._arrivals.expovariate(per_s) if per_s else float("inf")
        for _ in range(num_batch):
            self._send(self._job, Priority.BATCH)
        while (now_s := self._clock.now_s()) < seconds:
            while next_s <= now_s:
                self._sent_s[self._send(self._arrivals, Priority.STANDARD)] = next_s
                next_s += self._arrivals.expovariate(per_s)
            if self._engine.has_work:
                self._step()
            else:
                self._clock.sleep_s(next_s - now_s)
        counted_s = seconds - _WARM_UP_S
        return Measured(
            ttft_p50_ms=1000 * statistics.median(self._ttft_s) if self._ttft_s else 0.0,
            ttft_p99_ms=1000 * p99(self._ttft_s) if self._ttft_s else 0.0,
            num_interactive=len(self._ttft_s),
            interactive_tokens_per_s=self._num_tokens[True] / counted_s,
            batch_tokens_per_s=self._num_tokens[False] / counted_s,
        )

    def _send(self, rng: random.Random, priority: Priority) -> int:
        key = self._num_keys = self._num_keys + 1
        num_prompt = rng.choices([16, 32, 64, 128, 256], [1, 3, 4, 3, 1])[0]  # as `benchmarks.overload`
        if priority is Priority.BATCH:
            num_prompt *= self._prompt_factor
        request = GenerationRequest(
            key=key,
            input_ids=[16 + (key + i) % 4000 for i in range(num_prompt)],
            sampling=SamplingParams(max_tokens=_num_output(rng)),
            scheduling=Scheduling(priority=priority, tenant=priority.name),
        )
        if priority is not Priority.BATCH:
            self._interactive.add(key)
        self._engine.add(request)
        return key

    def _step(self) -> None:
        chunks = self._engine.step()
        now_s = self._clock.now_s()
        for chunk in chunks:
            is_interactive = chunk.key in self._interactive
            if now_s >= _WARM_UP_S:
                self._num_tokens[is_interactive] += len(chunk.token_ids)
            if chunk.token_ids and (sent_s := self._sent_s.pop(chunk.key, None)) is not None and sent_s >= _WARM_UP_S:
                self._ttft_s.append(now_s - sent_s)
            if chunk.finish_reason is None:
                continue
            if is_interactive:
                self._interactive.discard(chunk.key)
            else:
                self._send(self._job, Priority.BATCH)


def ratios(alone: Measured, beside: Measured, capacity: float) -> dict[str, float]:
    """Return what the job costs interactive requests, and how much it fills of what they leave.

    Args:
        alone: without the job.
        beside: with the job.
        capacity: tokens/s.
    """
    total = beside.interactive_tokens_per_s + beside.batch_tokens_per_s
    interactive = alone.interactive_tokens_per_s
    return {
        "ttft_p50_ratio": beside.ttft_p50_ms / alone.ttft_p50_ms,
        "ttft_p99_ratio": beside.ttft_p99_ms / alone.ttft_p99_ms,
        "idle_capacity_filled": (total - interactive) / (capacity - interactive),
        "total_over_capacity": total / capacity,
    }


def main(
    seconds: Annotated[float, typer.Option(min=60, help="Virtual seconds for each share.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 1,
) -> None:
    """Measure, print and keep."""
    free = ENGINE.model_copy(update={"prefill_us_per_token": 0.0})
    # What the job's prompts cost in the steps of others: prefills that take no time, and seven times as much.
    kinds: dict[str, tuple[SimulatedEngineSpec, int, float | None]] = {
        "as it is": (ENGINE, 1, None),
        "prefill is free": (free, 1, None),
        "the job's prompts 7 times as long": (ENGINE, 7, None),
        "7 times as long, not held back": (ENGINE, 7, 1.0),
    }
    found: dict[str, dict[str, object]] = {}
    table = Table("", "batch share", "TTFT p50", "p99", "idle filled", "total / capacity", "job tokens/s")
    for name, (engine, prompt_factor, prefill_share) in kinds.items():
        full = Run(engine, 1.0, seed).measure(per_s=0.0, num_batch=2 * engine.max_num_seqs, seconds=seconds)
        capacity = full.batch_tokens_per_s
        per_s = INTERACTIVE_LOAD * capacity / MEAN_TOKENS
        alone = Run(engine, 1.0, seed).measure(per_s=per_s, num_batch=0, seconds=seconds)
        rows: dict[str, object] = {"alone": msgspec.to_builtins(alone), "capacity_tokens_per_s": capacity}
        for share in SHARES:
            run = Run(engine, share, seed, prompt_factor=prompt_factor, prefill_share=prefill_share)
            beside = run.measure(per_s=per_s, num_batch=_WAITING, seconds=seconds)
            figures = ratios(alone, beside, capacity)
            rows[f"{share:g}"] = msgspec.to_builtins(beside) | figures
            table.add_row(
                name,
                f"{share:g}",
                *(f"{figure:.3f}" for figure in figures.values()),
                f"{beside.batch_tokens_per_s:.0f}",
            )
        found[name] = rows
    Console().print(table)
    spec = ENGINE.model_dump(mode="json")
    result = {"benchmark": "batch_share_in_virtual_time", "engine": spec, "seed": seed, "seconds": seconds}
    print(f"written to {write_result('batch_share_in_virtual_time', {**result, 'runs': found})}")


if __name__ == "__main__":
    typer.run(main)
