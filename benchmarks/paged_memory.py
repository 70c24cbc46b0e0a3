# SPDX-License-Identifier: Apache-2.0
"""Savings of a paged KV cache, beside a cache of the same size that reserves `max_seq_len` for each sequence.

Measured are memory that holds no token, and sequences that run at a time.

`python -m benchmarks.paged_memory --help`. The engine, OpenVINO's, runs in this process; it tells how many blocks were
in use in each step. No engine here reserves: what that would waste is computed from the same steps, and its batch is
stood in for by the same engine with as many `max_num_seqs` as fit when each reserves all that it may need.
"""

import random
import time
from pathlib import Path
from statistics import mean
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.support.report import environment, median_with_interval, write_result
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams


class Moment(NamedTuple):
    """A step in which every running sequence had a token."""

    num_running: int
    num_blocks: int  # in use, as the engine tells
    num_tokens: int  # in them


class Load(NamedTuple):
    """Requests that are all there from the start: tokens of the prompt and of the answer."""

    lengths: list[tuple[int, int]]
    seed: int

    @classmethod
    def drawn(cls, num_requests: int, *, most_tokens: int, seed: int) -> "Load":
        """Return prompts and answers of any length up to an eighth each of the most that a sequence may have."""
        draw = random.Random(seed)
        most = most_tokens // 8
        return cls([(draw.randint(8, most), draw.randint(8, most)) for _ in range(num_requests)], seed)


class Ran(NamedTuple):
    """Results of one side under a load."""

    duration_s: float
    moments: list[Moment]
    most_running: int


def main(
    deployment: Annotated[Path, typer.Option(help="Deployment file.")] = DEFAULT_DEPLOYMENT,
    num_kv_blocks: Annotated[int, typer.Option(help="KV blocks of both sides.", min=1)] = 256,
    requests: Annotated[int, typer.Option(help="Requests of a round.", min=2)] = 48,
    rounds: Annotated[int, typer.Option(help="Rounds; each runs both sides.", min=2)] = 9,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 1,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes some minutes."""
    spec = load_deployment(deployment)
    given = spec.model.engine
    if not isinstance(given, OpenVinoEngineSpec):
        raise typer.BadParameter(
            "take a deployment with an openvino engine: others tell of blocks after they are freed"
        )
    engine = create_engine(_changed(given, num_kv_blocks=num_kv_blocks))
    num_tokens = num_kv_blocks * engine.info.kv_block_tokens
    num_reserved = num_tokens // given.max_seq_len
    reserving = create_engine(_changed(given, num_kv_blocks=num_kv_blocks, max_num_seqs=num_reserved))
    paged: list[Ran] = []
    reserved: list[Ran] = []
    for index in range(rounds + 1):
        load = Load.drawn(requests, most_tokens=given.max_seq_len, seed=seed + index)
        sides = [(engine, paged), (reserving, reserved)]
        random.Random(index).shuffle(sides)
        for side, ran in sides:
            ran.append(_run(side, load))
    paged, reserved = paged[1:], reserved[1:]  # the first round warms up
    result: dict[str, object] = {
        "benchmark": "paged_memory",
        "deployment": spec.name,
        "engine": given.model_dump(mode="json", exclude={"dir"}) | {"num_kv_blocks": num_kv_blocks},
        "kv_cache_tokens": num_tokens,
        "requests": requests,
        "rounds": rounds,
        "measured": {
            "most_running": median_with_interval([float(ran.most_running) for ran in paged]),
            "mean_running": median_with_interval([mean(one.num_running for one in ran.moments) for ran in paged]),
            "wasted_fraction": median_with_interval([_wasted_in_blocks(ran, engine) for ran in paged]),
            "duration_over_reserving": median_with_interval(
                [one.duration_s / other.duration_s for one, other in zip(paged, reserved, strict=True)]
            ),
        },
        "computed": {
            "sequences_that_fit_when_each_reserves_max_seq_len": num_reserved,
            "wasted_fraction_when_each_reserves_max_seq_len": median_with_interval(
                [_wasted_in_reserve(ran, given.max_seq_len) for ran in paged]
            ),
        },
        "environment": environment(),
    }
    if is_kept:
        typer.echo(f"written to {write_result(f'paged_memory_{spec.name}', result, out)}", err=True)
    Console().print(_table(result))


def _changed(spec: OpenVinoEngineSpec, **changes: int) -> OpenVinoEngineSpec:
    return OpenVinoEngineSpec.model_validate(spec.model_dump() | changes)


def _run(engine: Engine, load: Load) -> Ran:
    draw = random.Random(load.seed)
    lengths = dict(enumerate(load.lengths, start=load.seed * 1000))
    held: dict[int, int] = {}  # tokens in the KV cache, of those that have had a token
    moments: list[Moment] = []
    most_running = 0
    start_s = time.perf_counter()
    for key, (num_prompt_tokens, num_output_tokens) in lengths.items():
        ids = [draw.randrange(300, engine.info.vocab_size) for _ in range(num_prompt_tokens)]
        sampling = SamplingParams(max_tokens=num_output_tokens, min_tokens=num_output_tokens, end_id=-1)
        engine.add(GenerationRequest(key=key, input_ids=ids, sampling=sampling))
    while engine.has_work:
        chunks = engine.step()
        stats = engine.stats()
        num_ended = 0
        for chunk in chunks:
            # The newest token is not in the cache yet; the first comes from the prompt.
            held[chunk.key] = held.get(chunk.key, lengths[chunk.key][0] - 1) + len(chunk.token_ids)
            num_ended += chunk.finish_reason is not None
        num_running = stats.num_running + num_ended  # in the step, whose blocks are told
        if num_running == len(held) == len(chunks) and stats.num_used_kv_blocks:
            moments.append(Moment(num_running, stats.num_used_kv_blocks, sum(held.values())))
        most_running = max(most_running, num_running)
        for chunk in chunks:
            if chunk.finish_reason is not None:
                del held[chunk.key]
    return Ran(time.perf_counter() - start_s, moments, most_running)


def _wasted_in_blocks(ran: Ran, engine: Engine) -> float:
    return 1 - sum(one.num_tokens for one in ran.moments) / (
        engine.info.kv_block_tokens * sum(one.num_blocks for one in ran.moments)
    )


def _wasted_in_reserve(ran: Ran, max_seq_len: int) -> float:
    return 1 - sum(one.num_tokens for one in ran.moments) / (max_seq_len * sum(one.num_running for one in ran.moments))


def _table(result: dict[str, object]) -> Table:
    table = Table(title="A paged KV cache beside one that reserves max_seq_len (medians of the rounds, 90 % intervals)")
    for column in ("what", "how", "median", "interval"):
        table.add_column(column)
    for how in ("measured", "computed"):
        figures = result[how]
        assert isinstance(figures, dict)
        for name, figure in figures.items():
            found = figure if isinstance(figure, dict) else {"median": figure, "low": figure, "high": figure}
            table.add_row(name, how, f"{found['median']:.3g}", "{low:.3g} to {high:.3g}".format(**found))
    return table


if __name__ == "__main__":
    typer.run(main)
