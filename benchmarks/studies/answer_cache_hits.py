# SPDX-License-Identifier: Apache-2.0
"""A study of the hits of kept answers: the gateway's own cache of exact answers, where some questions are popular.

`python -m benchmarks.studies.answer_cache_hits`. Questions are drawn by Zipf's law, callers by chance, and time is
virtual, so the same seed gives the same figures. Beside each stands what renewal theory says of a cache without a bound
of memory: an answer that is made lives for `ttl_s`, and of the requests for question i, which come at a rate r, the
share r * ttl / (1 + r * ttl) finds it.
"""

import asyncio
import itertools
import random
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.report import environment, write_result
from clients.infer_messages import GenerateRequest
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.tool_calls.deltas import Content
from gateway.cache.answer_store import AnswersInMemory
from gateway.cache.cached_answerer import AnswerCache
from gateway.cache.kept_answer import KeptAnswer, name_of
from gateway.gateway_metrics import GatewayMetrics

QUESTIONS, PER_S, ANSWER_TOKENS = 10_000, 20.0, 200
MODEL = "chat"
_ANSWER = KeptAnswer([Piece(0, [Content("word " * ANSWER_TOKENS)], "stop")], Usage(100, ANSWER_TOKENS), "stop", 1)


class Load(NamedTuple):
    """A load, and the cache before it.

    Attributes:
        skew: exponent of Zipf's law; 0: all questions are as popular.
        owners: tenants, each of which finds its own answers alone.
    """

    skew: float = 1.0
    ttl_s: float = 300.0
    owners: int = 1
    max_mib: float = 64.0


LOADS = (
    *(Load(skew=skew) for skew in (0.0, 0.6, 0.8, 1.0, 1.2)),
    *(Load(ttl_s=ttl_s) for ttl_s in (60.0, 3600.0)),
    *(Load(owners=owners) for owners in (10, 100)),
    *(Load(ttl_s=3600.0, max_mib=max_mib) for max_mib in (4.0, 1.0)),
)


def shares(load: Load) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the share of the requests that each question has."""
    weights = np.arange(1, QUESTIONS + 1, dtype=np.float64) ** -load.skew
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return found


def expected(load: Load) -> float:
    """Return the share of requests that find their answer, without a bound of memory, once the cache is warm."""
    each = shares(load)
    lives = PER_S / load.owners * each * load.ttl_s
    return float((each * lives / (1 + lives)).sum())


async def measured(load: Load, *, seconds: float, seed: int) -> float:
    """Return the share of requests that found their answer in the second half of the time."""
    rng = random.Random(seed)
    now_s = 0.0
    store = AnswersInMemory(ttl_s=load.ttl_s, max_bytes=int(load.max_mib * (1 << 20)), now_s=lambda: now_s)
    cache = AnswerCache(store, GatewayMetrics())
    limits = list(itertools.accumulate(shares(load).tolist()))
    asked = found = 0
    while now_s < seconds:
        now_s += rng.expovariate(PER_S)
        [question] = rng.choices(range(QUESTIONS), cum_weights=limits)
        name = name_of(_asked(question), model=MODEL, owner=f"tenant {rng.randrange(load.owners)}")
        answer = await cache.find(name, MODEL)
        if answer is None:
            await cache.keep(name, _ANSWER)
        if now_s >= seconds / 2:
            asked += 1
            found += answer is not None
    return found / asked


def _asked(question: int) -> Asked:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": f"Question {question}? " + "Please be brief. " * 10}
    ]
    request = GenerateRequest(messages=messages, max_tokens=256, temperature=0.0)
    return Asked(endpoint=Endpoint.CHAT, requests=(request,))


def main(
    seconds: Annotated[float, typer.Option(min=600, help="Virtual seconds of each run.")] = 7200.0,
    seed: Annotated[int, typer.Option(help="Seed of questions and callers.")] = 1,
) -> None:
    """Measure, print and keep; takes some minutes."""
    where = environment()
    rows = []
    for load in track(LOADS, "loads", transient=True):
        hit_share = asyncio.run(measured(load, seconds=seconds, seed=seed))
        rows.append({**load._asdict(), "hit_share": hit_share, "expected": expected(load)})
    result = {
        "benchmark": "answer_cache_hits",
        "questions": QUESTIONS,
        "requests_per_s": PER_S,
        "answer_tokens": ANSWER_TOKENS,
        "seconds": seconds,
        "seed": seed,
        "rows": rows,
        "environment": where,
    }
    table = Table(title="share of requests that found a kept answer")
    for column in ("skew", "ttl, s", "tenants", "MiB", "found", "by theory"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row['skew']:g}", f"{row['ttl_s']:g}", str(row["owners"]), f"{row['max_mib']:g}",
            f"{row['hit_share']:.3f}", f"{row['expected']:.3f}",
        )  # fmt: skip
    Console().print(table)
    print(f"written to {write_result('answer_cache_hits', result)}")


if __name__ == "__main__":
    typer.run(main)
