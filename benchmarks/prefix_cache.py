# SPDX-License-Identifier: Apache-2.0
"""Savings of the prefix cache: TTFT of a prompt that continues an earlier one, over that of one that shares nothing.

Both are as long, and are asked through the server. The hits on the metrics page are shown beside those that the block
size predicts.

`python -m benchmarks.prefix_cache --help`. Requests are alone on the server; each pair is asked in a drawn order.
"""

import functools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.support.metrics_page import metric
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask
from clients.exact_prompts import WORDS, PromptMaker
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.openvino.openvino_pipeline import KV_BLOCK_TOKENS
from serving.text.tokenization import PromptTokenizer

_OWN_TOKENS = 40  # of each prompt, behind what it shares
_OUTPUT_TOKENS = 2
_COUNTED_S = 5.0  # requests are counted in bunches


class Pair(NamedTuple):
    """A prompt, one that continues its beginning, and one as long that shares nothing with any."""

    earlier: str
    warm: str
    cold: str
    num_shared_tokens: int


class PairMaker:
    """Seeded pairs of prompts whose tokens are counted.

    Args:
        shared_tokens: what `earlier` and `warm` have in common, at least.
    """

    def __init__(self, tokenizer: PromptTokenizer, *, shared_tokens: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self.num_tokens = shared_tokens + _OWN_TOKENS
        # Of one seed, prompts of two lengths would begin alike.
        draw = random.Random(f"{seed} {shared_tokens}")
        self._shared = PromptMaker(tokenizer, input_tokens=shared_tokens, seed=draw.getrandbits(32))
        self._whole = PromptMaker(tokenizer, input_tokens=self.num_tokens, seed=draw.getrandbits(32))
        self._rng = draw

    def pair(self) -> Pair:
        """Return a new pair."""
        [shared], [cold] = self._shared.prompts(1), self._whole.prompts(1)
        earlier, warm = self._continued(shared), self._continued(shared)
        return Pair(earlier, warm, cold, self._num_common_tokens(earlier, warm))

    def _continued(self, text: str) -> str:
        """Return the text with words behind it, as many tokens as a prompt has."""
        while True:
            words = self._rng.choices(WORDS, k=_OWN_TOKENS)
            while words and self._num_tokens_of(" ".join((text, *words))) > self.num_tokens:
                words.pop()
            continued = " ".join((text, *words))
            if self._num_tokens_of(continued) == self.num_tokens:
                return continued

    def _num_tokens_of(self, text: str) -> int:
        return len(self._tokenizer.encode(text))

    def _num_common_tokens(self, one: str, other: str) -> int:
        tokens = zip(self._tokenizer.encode(one), self._tokenizer.encode(other), strict=True)
        return next((index for index, (first, second) in enumerate(tokens) if first != second), self.num_tokens)


def main(
    deployment: Annotated[
        Path, typer.Option(help="Deployment file, of an engine of openvino, or of vllm with kv_block_tokens.")
    ] = DEFAULT_DEPLOYMENT,
    shared: Annotated[list[int], typer.Option(help="Tokens that prompts share; may be given again.")] = [  # noqa: B006
        *(128, 512, 1024, 1984),
    ],
    pairs: Annotated[int, typer.Option(help="Pairs of each length.", min=2)] = 15,
    seed: Annotated[int, typer.Option(help="Seed of prompts and orders.")] = 1,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes a minute or two."""
    spec = load_deployment(deployment)
    engine = spec.model.engine
    block_tokens = _block_tokens(engine)
    if block_tokens is None:
        raise typer.BadParameter(
            "the deployment's engine has no prefix cache that is always on: take one of openvino, or of vllm with "
            "kv_block_tokens"
        )
    tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
    with ThroughEnsemble(spec) as server:
        counts = functools.partial(_Counts.of, server.metrics)
        _ttft_ms(server, PromptMaker(tokenizer, input_tokens=64, seed=seed).prompts(1)[0])  # the first request warms up
        _counted(counts, _Counts(0, 0, 0), _Counts(64, 0, 64))
        rows = [
            _measure(
                server,
                counts,
                PairMaker(tokenizer, shared_tokens=length, seed=seed),
                pairs,
                random.Random(seed),
                block_tokens=block_tokens,
            )
            for length in shared
        ]
        where = environment(triton_http=server.http)
    result: dict[str, object] = {
        "benchmark": "prefix_cache",
        "deployment": spec.name,
        "engine": engine.model_dump(mode="json", exclude={"dir", "venv_dir"}),
        "block_tokens": block_tokens,
        "pairs": pairs,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result(f'prefix_cache_{spec.name}', result, out)}", err=True)
    Console().print(_table(rows))


def _block_tokens(engine: EngineSpec) -> int | None:
    """Return the tokens of a KV block that can be found again; None: there is no prefix cache."""
    if isinstance(engine, OpenVinoEngineSpec) and engine.is_prefix_caching:
        return KV_BLOCK_TOKENS
    if isinstance(engine, VllmEngineSpec) and engine.is_block_reuse:
        return engine.kv_block_tokens
    return None


def _measure(
    server: ThroughEnsemble,
    counts: "Callable[[], _Counts]",
    maker: PairMaker,
    count: int,
    order: random.Random,
    *,
    block_tokens: int,
) -> dict[str, object]:
    """Measure one length; the first pair warms up, and counts among the hits."""
    found: list[tuple[float, float]] = []  # warm and cold, ms
    before = counts()
    expected = _Counts(0, 0, 0)
    shared = []
    for _ in range(count + 1):
        pair = maker.pair()
        _ttft_ms(server, pair.earlier)
        sides = [("warm", pair.warm), ("cold", pair.cold)]
        order.shuffle(sides)
        ttft_ms = {name: _ttft_ms(server, prompt) for name, prompt in sides}
        found.append((ttft_ms["warm"], ttft_ms["cold"]))
        shared.append(pair.num_shared_tokens)
        hits = pair.num_shared_tokens // block_tokens * block_tokens
        expected = expected.plus(3 * maker.num_tokens, hits, 3 * maker.num_tokens - hits)
    counted = _counted(counts, before, expected)
    found = found[1:]
    return {
        "prompt_tokens": maker.num_tokens,
        "shared_tokens": {"least": min(shared), "most": max(shared)},
        "warm_ttft_ms": median_with_interval([warm for warm, _ in found]),
        "cold_ttft_ms": median_with_interval([cold for _, cold in found]),
        "warm_over_cold": median_with_interval([warm / cold for warm, cold in found]),
        "on_the_metrics_page": counted._asdict(),
        "expected": expected._asdict(),
        "are_hits_as_expected": counted == expected,
    }


class _Counts(NamedTuple):
    """Counts of prompt tokens: asked for, found in the cache, computed."""

    queried: int
    found: int
    computed: int

    @classmethod
    def of(cls, address: str) -> "_Counts":
        """Return the counts on the metrics page at ``host:port``."""
        names = ("prefix_cache_queries", "cached_prompt_tokens")
        queried, found = (metric(address, f"trireme_{name}_total", model="ensemble") for name in names)
        return cls(int(queried), int(found), int(metric(address, "trireme_engine_prompt_tokens_total")))

    def plus(self, queried: int, found: int, computed: int) -> "_Counts":
        return _Counts(self.queried + queried, self.found + found, self.computed + computed)


def _counted(counts: Callable[[], _Counts], before: _Counts, expected: _Counts) -> _Counts:
    """Return the counts since `before`, once every request is counted."""
    deadline_s = time.monotonic() + _COUNTED_S
    while True:
        counted = _Counts(*(now - then for now, then in zip(counts(), before, strict=True)))
        # The engine's steps are told at other times than the ends of requests.
        if counted.queried >= expected.queried and counted.found + counted.computed >= counted.queried:
            return counted
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the metrics page has {counted} and not {expected}")
        time.sleep(0.1)


def _ttft_ms(server: ThroughEnsemble, prompt: str) -> float:
    return server.run(Ask([prompt], _OUTPUT_TOKENS)).ttft_ms


def _table(rows: Sequence[dict[str, object]]) -> Table:
    table = Table(title="TTFT of a prompt by what an earlier one shares with it (medians, 90 % interval of the ratio)")
    for column in ("prompt", "shared", "cold ms", "warm ms", "warm / cold", "found", "expected"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(str(row["prompt_tokens"]), str(_part(row, "shared_tokens")["least"])),
            *(f"{_part(row, f'{side}_ttft_ms')['median']:.1f}" for side in ("cold", "warm")),
            "{median:.3f} ({low:.3f} to {high:.3f})".format(**_part(row, "warm_over_cold")),
            *(f"{_part(row, name)['found']:,}" for name in ("on_the_metrics_page", "expected")),
        )
    return table


def _part(row: dict[str, object], name: str) -> dict[str, float]:
    part = row[name]
    assert isinstance(part, dict)
    return part


if __name__ == "__main__":
    typer.run(main)
