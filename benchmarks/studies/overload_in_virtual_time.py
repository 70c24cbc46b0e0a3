# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload, with admission and without: its decisions alone, on the simulated engine in virtual time.

`python -m benchmarks.studies.overload_in_virtual_time`. Nothing here depends on the machine, so the same seed gives the
same figures. What Triton and real time add is another benchmark's to say.
"""

import itertools
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.report import write_result
from benchmarks.support.virtual_run import Record, VirtualRun
from clients.load.arrivals import SHAPES, arrivals_s
from ensemble_configs.spec.admission_spec import AdmissionSpec, QueueSpec, SloSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.scheduling import Priority, Scheduling
from serving.engines.simulated.simulated_engine import SimulatedEngine

ENGINE = SimulatedEngineSpec(
    provider="simulated", max_num_seqs=64, num_kv_blocks=2048, max_num_batched_tokens=2048, step_ms=10.0
)  # fmt: skip
# Fixed before any run, as multiples of what a request has alone.
TTFT_FACTOR, TPOT_FACTOR = 5.0, 2.0
MIX = {Priority.PREMIUM: 0.2, Priority.STANDARD: 0.5, Priority.BATCH: 0.3}
LOADS = (0.5, 1.0, 2.0, 3.0)
_WARM_UP_S = 10.0
_LAST_ANSWER_S = 8.0  # arrivals in the last seconds may not be done


def requests(seed: int) -> Iterator[GenerationRequest]:
    """Yield requests of every class, tenant and length."""
    rng = random.Random(seed)
    for key in itertools.count():
        num_prompt = int(min(512, max(8, rng.lognormvariate(4.2, 0.8))))
        num_output = int(min(400, max(4, rng.lognormvariate(4.0, 0.7))))
        yield GenerationRequest(
            key=key,
            input_ids=[16 + (key + i) % 4000 for i in range(num_prompt)],
            sampling=SamplingParams(max_tokens=num_output),
            scheduling=Scheduling(priority=rng.choices([*MIX], [*MIX.values()])[0], tenant=rng.choice("abcd")),
        )


def arrivals(seed: int, shape: str, per_s: float, seconds: float) -> Iterator[tuple[float, GenerationRequest]]:
    """Yield requests with the time at which each is due, in seconds."""
    return zip(arrivals_s(random.Random(seed), shape, per_s, seconds), requests(seed), strict=False)


def unloaded(engine: SimulatedEngineSpec) -> tuple[float, float]:
    """Return TTFT and TPOT of requests that are alone, medians in seconds."""
    run = VirtualRun(lambda clock: SimulatedEngine(engine, clock))
    done = [record for record in run.open_loop(arrivals(1, "poisson", 0.5, 600.0), 600.0) if record.is_done]
    ttft_s = statistics.median(record.ttft_s for record in done if record.ttft_s is not None)
    decoding = [record for record in done if record.num_tokens > 1 and record.first_s is not None]
    return ttft_s, statistics.median((one.last_s - (one.first_s or 0.0)) / (one.num_tokens - 1) for one in decoding)


def summary(records: list[Record], seconds: float, ttft_s: float, tpot_s: float) -> dict[str, object]:
    """Return goodput and throughput in requests/s; by class the share that was good, and the TTFT's 99th percentile."""
    counted = [one for one in records if _WARM_UP_S <= one.sent_s < seconds - _LAST_ANSWER_S]
    counted_s = seconds - _LAST_ANSWER_S - _WARM_UP_S
    refusals_s = sorted(one.refused_s - one.sent_s for one in counted if one.refused_s is not None)
    by_class = {}
    for priority in Priority:
        own = [one for one in counted if one.request.scheduling.priority == priority]
        ttfts_s = sorted(one.ttft_s for one in own if one.ttft_s is not None)
        by_class[priority.name.lower()] = {
            "requests": len(own),
            "good_share": sum(one.is_good(ttft_s, tpot_s) for one in own) / max(1, len(own)),
            "ttft_p99_ms": 1000 * ttfts_s[int(0.99 * len(ttfts_s))] if ttfts_s else None,
        }
    return {
        "goodput_per_s": sum(one.is_good(ttft_s, tpot_s) for one in counted) / counted_s,
        "done_per_s": sum(one.is_done for one in counted) / counted_s,
        "refusal_p99_ms": 1000 * refusals_s[int(0.99 * len(refusals_s))] if refusals_s else 0.0,
        "latest_refusal_ms": 1000 * max(refusals_s, default=0.0),
        "classes": by_class,
    }


def main(
    seconds: Annotated[float, typer.Option(min=60, help="Virtual seconds for each load.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 1,
    shape: Annotated[str, typer.Option(help=f"Shape of arrivals: {' or '.join(SHAPES)}.")] = "poisson",
    step_ms: Annotated[float, typer.Option(min=1, help="An engine's step, without what its sequences add.")] = 10.0,
    refuse_within_ms: Annotated[float, typer.Option(min=0, help="The setting of a deployment; 0: none.")] = 15.0,
) -> None:
    """Measure, print and keep; takes a minute or two."""
    if shape not in SHAPES:
        raise typer.BadParameter(f"a shape is one of {', '.join(SHAPES)}; got {shape!r}")
    engine = ENGINE.model_copy(update={"step_ms": step_ms})
    queue = QueueSpec(refuse_within_ms=refuse_within_ms or None)
    admission = AdmissionSpec(queue=queue)
    alone_ttft_s, alone_tpot_s = unloaded(engine)
    ttft_s, tpot_s = TTFT_FACTOR * alone_ttft_s, TPOT_FACTOR * alone_tpot_s
    slo = SloSpec(ttft_ms=1000 * ttft_s, tpot_ms=1000 * tpot_s)
    kinds: dict[str, Callable[[VirtualClock], Engine]] = {
        "admission": lambda clock: AdmittingEngine(SimulatedEngine(engine, clock), admission, slo, clock),
        "none": lambda clock: SimulatedEngine(engine, clock),  # as upstream: all that come, in the order that they come
    }
    capacity_per_s = VirtualRun(kinds["none"]).closed_loop(requests(seed), 2 * engine.max_num_seqs, seconds)
    found: dict[str, dict[float, dict[str, object]]] = {kind: {} for kind in kinds}
    for kind, load in track([(kind, load) for kind in kinds for load in LOADS], "loads", transient=True):
        run = VirtualRun(kinds[kind])
        records = run.open_loop(arrivals(seed, shape, load * capacity_per_s, seconds), seconds)
        found[kind][load] = summary(records, seconds, ttft_s, tpot_s)
    result = {
        "benchmark": "overload_in_virtual_time",
        "engine": engine.model_dump(mode="json"),
        "admission": admission.model_dump(mode="json"),
        "shape": shape,
        "seed": seed,
        "seconds": seconds,
        "targets_ms": {"ttft": 1000 * ttft_s, "tpot": 1000 * tpot_s},
        "capacity_requests_per_s": capacity_per_s,
        "loads": found,
    } | _ratios(found)
    name = "overload_in_virtual_time" + "".join(
        f"_{part}"
        for part, is_said in (
            (shape, shape != "poisson"),
            (f"step_{step_ms:g}_ms", step_ms != ENGINE.step_ms),
            (f"refuse_within_{refuse_within_ms:g}_ms", queue != QueueSpec()),
        )
        if is_said
    )
    path = write_result(name, result)
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
        "refusal p99 ms",
        "latest",
        *(one.name.lower() for one in Priority),
    ):
        table.add_column(column, justify="right")
    for kind, loads in found.items():
        for load, one in loads.items():
            classes = one["classes"]
            assert isinstance(classes, dict)
            cells = [f"{each['good_share']:.2f}, {each['ttft_p99_ms'] or 0:.0f}" for each in classes.values()]
            numbers = [
                f"{one[name]:.1f}" for name in ("goodput_per_s", "done_per_s", "refusal_p99_ms", "latest_refusal_ms")
            ]
            table.add_row(f"{load:g}x", kind, *numbers, *cells)
    console = Console()
    console.print(table)
    for name in _ratios(found):
        console.print(f"{name}: {result[name]:.3f}")


if __name__ == "__main__":
    typer.run(main)
