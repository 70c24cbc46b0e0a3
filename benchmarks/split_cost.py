# SPDX-License-Identifier: Apache-2.0
"""The cost of a split in the server: the same requests with and without one, at equal engine load.

`python -m benchmarks.split_cost --help`. Rounds of four sides take turns: no split; a split that gives everything to
the stable release, so that nothing changes but the deciding and the outcomes; a canary of the same release with half;
and no split, with requests that name both releases in turn, so that two engines run as under the canary.
A step of the simulated engine takes the same time whatever its batch is: half of the requests on each of two engines
load an engine as all of them load one. Each side answers as many requests before those that are measured: the first
outcome of a rollout opens its journal.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.costless_server import costless_deployment, demo_tokenizer
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask, Run
from clients.exact_prompts import PromptMaker
from clients.server_control import ServerControl
from ensemble_configs.split.outcome_journal import JournalReader
from trireme.base.unix_socket import CONTROL_SOCKET

_NAME = "split_cost"
_STREAMS = (1, 16)
_STEP_MS = 10.0
_LEASE_S = 600.0
_WARM_UP = 16  # requests
_WARM_TOKENS = 2
_NONE, _ALL_STABLE, _CANARY = "no split", "a split, all to the stable release", "a canary with 50 %"
_NAMED = "no split, the requests name two releases"
_MODEL = "tensorrt_llm_bls"  # splits as `ensemble` does, and takes the releases that requests name
_SHARES: dict[str, list[dict[str, Any]]] = {
    _ALL_STABLE: [{"upto": 1.0, "release": 1, "arm": "baseline"}],
    _CANARY: [{"upto": 0.5, "release": 2, "arm": "candidate"}, {"upto": 1.0, "release": 1, "arm": "baseline"}],
}
_RATIOS = [(_ALL_STABLE, _NONE), (_CANARY, _NONE), (_NAMED, _NONE), (_CANARY, _NAMED)]
_FIGURES = {"throughput": "tokens_per_s", "ttft": "ttft_ms", "itl_p99": "itl_p99_ms"}


class _Split:
    """The split of the running server, and what the journal has told."""

    def __init__(self, control: ServerControl) -> None:
        self._control = control
        self._number = 0
        self.num_outcomes = 0

    @contextmanager
    def on(self, side: str) -> Iterator[None]:
        """Split the requests meanwhile, and count the outcomes; each time as a rollout of its own."""
        if side not in _SHARES:
            yield
            return
        self._number += 1
        asked: dict[str, Any] = {"rollout": self._number, "step": 0, "hash_seed": str(self._number)}
        journal = str(self._control.ask("split", shares=_SHARES[side], lease_s=_LEASE_S, **asked)["journal"])
        yield
        self._control.ask("split", shares=_SHARES[side], lease_s=0.001, **asked)
        self.num_outcomes += len(JournalReader(Path(journal)).read({}).lines)


def main(
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds of each number of streams.", min=1)] = 20,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; some five minutes."""
    maker = PromptMaker(demo_tokenizer(), input_tokens=16, seed=1)
    spec = costless_deployment(_NAME, endpoints=["ensemble", "tensorrt_llm_bls"])
    spec = spec.with_model(engine=spec.model.engine.model_copy(update={"step_ms": _STEP_MS}))
    rng, rows = random.Random(1), []
    with ThroughEnsemble(spec, model=_MODEL) as server:
        control = ServerControl(Path("build") / _NAME / CONTROL_SOCKET)
        models: Any = control.ask("status")["models"]
        control.ask("add", release={**models[0]["releases"][0], "release": 2})
        split = _Split(control)
        _warm_up(server, split, maker)
        for streams in _STREAMS:
            seen: list[dict[str, Run]] = []
            for number in track(range(rounds + 1), console=Console(stderr=True), transient=True):
                ask = Ask(maker.prompts(streams), output_tokens)
                sides = rng.sample([_NONE, *_SHARES, _NAMED], 4)
                found = {side: _run(server, ask, split.on, side) for side in sides}
                if number:  # the first round warms up
                    seen.append(found)
            rows.append(_row(streams, seen))
        where = environment(triton_http=server.http)
    expected = len(_SHARES) * (rounds + 1) * 2 * sum(_STREAMS)  # twice: those before the measured ones, too
    if split.num_outcomes != expected:
        raise SystemExit(f"the journals have {split.num_outcomes} outcomes, and {expected} requests were split")
    result: dict[str, object] = {
        "benchmark": "split_cost",
        "engine": "simulated",
        "step_ms": _STEP_MS,
        "output_tokens": output_tokens,
        "rounds": rounds,
        "rows": rows,
        "outcomes": split.num_outcomes,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result('split_cost', result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _warm_up(server: ThroughEnsemble, split: _Split, maker: PromptMaker) -> None:
    """Ask until the candidate answers: before that the stable release does, and that is no outcome."""
    while split.num_outcomes < _WARM_UP:
        split.num_outcomes = 0
        _run(server, Ask(maker.prompts(_WARM_UP), _WARM_TOKENS), split.on, _CANARY)
    split.num_outcomes = 0


def _run(server: ThroughEnsemble, ask: Ask, split: Callable[[str], Any], side: str) -> Run:
    releases = (1, 2) if side == _NAMED else ()
    with split(side):
        server.run(msgspec.structs.replace(ask, output_tokens=_WARM_TOKENS), releases=releases)
        return server.run(ask, releases=releases)


def _row(streams: int, seen: list[dict[str, Run]]) -> dict[str, Any]:
    def ratios(side: str, over: str) -> dict[str, Any]:
        return {
            name: median_with_interval([getattr(one[side], of) / getattr(one[over], of) for one in seen])
            for name, of in _FIGURES.items()
        }

    return {
        "streams": streams,
        "tokens_per_s": median_with_interval([one[_NONE].tokens_per_s for one in seen]),
        "ratios": [{"side": side, "over": over, **ratios(side, over)} for side, over in _RATIOS],
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="medians, 90 % intervals")
    for column in ("streams", "side", "over", "tokens/s", "TTFT", "ITL p99"):
        table.add_column(column, justify="right")
    for row in rows:
        for found in row["ratios"]:
            figures = (_with_interval(found[name]) for name in _FIGURES)
            table.add_row(str(row["streams"]), found["side"], found["over"], *figures)
    return table


def _with_interval(found: dict[str, float]) -> str:
    return f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


if __name__ == "__main__":
    typer.run(main)
