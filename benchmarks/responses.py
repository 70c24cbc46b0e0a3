# SPDX-License-Identifier: Apache-2.0
"""Responses and tokens a second that the way through the server carries, with an engine that costs nothing.

`python -m benchmarks.responses --help`. The simulated engine makes a token for each of 64 streams every few
milliseconds, faster from row to row. Tokens that are there when the sender is free leave together, so one token each
means that the sender keeps up with the engine.
"""

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask, Run
from clients.exact_prompts import PromptMaker
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import ResponseSpec, TokenizerSpec
from ensemble_configs.spec.triton_spec import TritonSpec
from serving.text.tokenization import PromptTokenizer

ONE_EACH = 1.05  # tokens per response up to which a row counts as "one token each"


def main(
    model: Annotated[str, typer.Option(help="Model that is asked.")] = "ensemble",
    streams: Annotated[int, typer.Option(help="Streams at a time.", min=1)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each stream.", min=2)] = 1000,
    rates: Annotated[str, typer.Option(help="Tokens/s the engine offers, without delay.")] = "6000,8000,10000,12000",
    delayed_rates: Annotated[str, typer.Option(help="Tokens/s the engine offers, with --delay-ms.")] = "30000,60000",
    delay_ms: Annotated[float, typer.Option(help="max_chunk_delay_ms of the second half.")] = 10.0,
    rounds: Annotated[int, typer.Option(help="Runs of each row.", min=1)] = 5,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; a few minutes."""
    tokenizer = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer
    maker = PromptMaker(PromptTokenizer.from_spec(tokenizer), input_tokens=16, seed=1)
    rows: list[dict[str, Any]] = []
    where: dict[str, object] = {}
    offers = [(int(rate), 0.0) for rate in rates.split(",")]
    offers += [(int(rate), delay_ms) for rate in delayed_rates.split(",")]
    for rate, delay in track(offers, console=Console(stderr=True), transient=True):
        spec = _deployment(tokenizer, step_ms=1000 * streams / rate, streams=streams, delay_ms=delay)
        with ThroughEnsemble(spec, model=model) as server:
            where = environment(triton_http=server.http)
            runs = [server.run(Ask(maker.prompts(streams), output_tokens)) for _ in range(rounds + 1)]
        rows.append({"offered_tokens_per_s": rate, "max_chunk_delay_ms": delay} | _figures(runs[1:]))
    result: dict[str, object] = {
        "benchmark": "responses",
        "model": model,
        "streams": streams,
        "output_tokens": output_tokens,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result('responses', result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _deployment(tokenizer: TokenizerSpec, *, step_ms: float, streams: int, delay_ms: float) -> DeploymentSpec:
    engine = SimulatedEngineSpec(
        provider="simulated",
        step_ms=step_ms,
        prefill_us_per_token=0,
        decode_us_per_seq=0,
        max_num_seqs=streams,
        max_seq_len=8192,
        num_kv_blocks=32_768,
    )
    responses = ResponseSpec(max_chunk_delay_ms=delay_ms)
    return DeploymentSpec.of_one(
        name="responses", tokenizer=tokenizer, engine=engine, responses=responses, triton=TritonSpec()
    )


def _figures(runs: list[Run]) -> dict[str, Any]:
    figures = {name: median_with_interval([getattr(run, name) for run in runs]) for name in Run.__struct_fields__}
    rates = [run.tokens_per_s / run.tokens_per_response for run in runs]
    return {"responses_per_s": median_with_interval(rates), **figures}


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="an engine that costs nothing; medians")
    for column in ("offered tokens/s", "delay ms", "tokens/s", "responses/s", "tokens/response", "one each"):
        table.add_column(column, justify="right")
    table.add_column("ITL p50 / p99 ms", justify="right")
    table.add_column("client us/response", justify="right")
    for row in rows:
        median = {name: figures["median"] for name, figures in row.items() if isinstance(figures, dict)}
        table.add_row(
            str(row["offered_tokens_per_s"]),
            f"{row['max_chunk_delay_ms']:g}",
            f"{median['tokens_per_s']:.0f}",
            f"{median['responses_per_s']:.0f}",
            f"{median['tokens_per_response']:.2f}",
            "yes" if median["tokens_per_response"] <= ONE_EACH else "no",
            f"{median['itl_p50_ms']:.1f} / {median['itl_p99_ms']:.1f}",
            f"{median['client_cpu_us']:.0f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
