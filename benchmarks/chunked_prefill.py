# SPDX-License-Identifier: Apache-2.0
"""The effect of a prompt of the model's full length on streams that run: p99 ITL.

Three sides: without the prompt, beside it with chunked prefill, and beside it in one piece.

`python -m benchmarks.chunked_prefill --help`. All sides are up during the whole run and asked in turn.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.support.disturbed_streams import Disturbance, Scene, disturb_engine, disturb_server
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.exact_prompts import PromptMaker
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.providers import create_engine
from serving.text.tokenization import PromptTokenizer
from trireme.base.sample_statistics import percentile

_STREAM_TOKENS = 200  # of each stream, so that it outlasts the prefill
_TOKENS_BEFORE = 40

Disturb = Callable[[str | None], Disturbance]  # the long prompt or none


def main(
    deployment: Annotated[Path, typer.Option(help="Deployment file; its chunks are what is measured.")] = (
        DEFAULT_DEPLOYMENT
    ),
    streams: Annotated[int, typer.Option(help="Streams that run.", min=1)] = 16,
    rounds: Annotated[int, typer.Option(help="Rounds; each asks all sides once.", min=2)] = 9,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes a few minutes."""
    spec = load_deployment(deployment)
    tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
    short = PromptMaker(tokenizer, input_tokens=64, seed=seed)
    long = PromptMaker(tokenizer, input_tokens=spec.model.engine.max_seq_len - 1, seed=seed + 1)
    with contextlib.ExitStack() as stack:
        specs = (spec, _in_one_piece(spec))
        servers = [stack.enter_context(ThroughEnsemble(each)) for each in specs]
        sides = {"ensemble": [_through(server, short, streams) for server in servers]}
        if not isinstance(spec.model.engine, VllmEngineSpec):  # whose engine is in an environment of its own
            sides["in_process"] = [_in_process(each, tokenizer, short, streams) for each in specs]
        rows = [_measure(path, chunked, in_one_piece, long, rounds) for path, (chunked, in_one_piece) in sides.items()]
        where = environment(triton_http=servers[0].http)
    result: dict[str, object] = {
        "benchmark": "chunked_prefill",
        "deployment": spec.name,
        "engine": spec.model.engine.model_dump(mode="json", exclude={"dir", "venv_dir"}),
        "streams": streams,
        "long_prompt_tokens": spec.model.engine.max_seq_len - 1,
        "rounds": rounds,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result(f'chunked_prefill_{spec.name}', result, out)}", err=True)
    Console().print(_table(rows))


def _in_one_piece(spec: DeploymentSpec) -> DeploymentSpec:
    """Return the deployment with steps that take the longest prompt whole, beside everything else."""
    num_tokens = spec.model.engine.max_seq_len + spec.model.engine.max_num_seqs
    engine = spec.model.engine.model_copy(update={"max_num_batched_tokens": num_tokens})
    return spec.with_model(engine=engine).model_copy(update={"name": f"{spec.name}_in_one_piece"})


def _through(server: ThroughEnsemble, short: PromptMaker, streams: int) -> Disturb:
    def disturb(long_prompt: str | None) -> Disturbance:
        scene = Scene(short.prompts(streams), _STREAM_TOKENS, _TOKENS_BEFORE, long_prompt)
        return asyncio.run(disturb_server(server.url, scene))

    return disturb


def _in_process(spec: DeploymentSpec, tokenizer: PromptTokenizer, short: PromptMaker, streams: int) -> Disturb:
    engine = create_engine(spec.model.engine)

    def disturb(long_prompt: str | None) -> Disturbance:
        prompts = [tokenizer.encode(prompt).tolist() for prompt in short.prompts(streams)]
        long_ids = None if long_prompt is None else tokenizer.encode(long_prompt).tolist()
        return disturb_engine(engine, Scene(prompts, _STREAM_TOKENS, _TOKENS_BEFORE, long_ids))

    return disturb


def _measure(path: str, chunked: Disturb, in_one_piece: Disturb, long: PromptMaker, rounds: int) -> dict[str, object]:
    found: dict[str, list[Disturbance]] = {"alone": [], "chunked": [], "in_one_piece": []}
    for index in range(rounds + 1):
        long_prompt = long.prompts(1)[0]
        runs = {
            "alone": chunked(None),
            "chunked": chunked(long_prompt),
            "in_one_piece": in_one_piece(long_prompt),
        }
        if index:  # the first round warms up
            for name, run in runs.items():
                found[name].append(run)
    p99 = {name: [percentile(run.gaps_ms, 99) for run in runs] for name, runs in found.items()}
    row: dict[str, object] = {"path": path}
    for name, those in found.items():
        row[f"{name}_p99_itl_ms"] = median_with_interval(p99[name])
        if name != "alone":
            ratios = [with_it / alone for with_it, alone in zip(p99[name], p99["alone"], strict=True)]
            row[f"{name}_p99_itl_ratio"] = median_with_interval(ratios)
            row[f"{name}_ttft_ms"] = median_with_interval([run.ttft_ms or 0.0 for run in those])
    return row


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(title="p99 ITL of the streams, ms (median of the rounds); ratios to no long prompt, 90 % interval")
    table.add_column("path")
    for column in ("alone", "chunked", "in one piece", "ratio", "ratio", "TTFT of the long prompt", "in one piece"):
        table.add_column(column, justify="right")
    names = [
        *("alone_p99_itl_ms", "chunked_p99_itl_ms", "in_one_piece_p99_itl_ms"),
        *("chunked_p99_itl_ratio", "in_one_piece_p99_itl_ratio", "chunked_ttft_ms", "in_one_piece_ttft_ms"),
    ]
    for row in rows:
        table.add_row(str(row["path"]), *(_shown(row[name], name) for name in names))
    return table


def _shown(figures: object, name: str) -> str:
    assert isinstance(figures, dict)
    if name.endswith("_ratio"):
        return f"{figures['median']:.2f} ({figures['low']:.2f} to {figures['high']:.2f})"
    return f"{figures['median']:.1f}"


if __name__ == "__main__":
    typer.run(main)
