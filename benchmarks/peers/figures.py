# SPDX-License-Identifier: Apache-2.0
"""Figures of one load on one peer, and of many rounds together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.peer import Answered
from benchmarks.support.report import median_with_interval
from clients.load.load_options import Load
from clients.load_report.run_figures import figures_of
from clients.load_run.run_folder import Run, RunInfo
from trireme.base.errors import ServerError


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the steady part of a load (`clients.load.figures`).

    Attributes:
        client_cpu_share: of a core, of the client's busiest process; None: there was no client.
        server_cpu_s_per_1000_tokens: core seconds of all its processes; None: not told.
        tokens_per_core_s: the same the other way round: tokens/s for each core that the server keeps busy.
        cpu_parts_s_per_1000_tokens: of each part of the server; None: not told.
        tokens_per_chunk: output tokens of a response with any.
    """

    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tokens_per_chunk: float
    client_cpu_share: float | None
    server_cpu_s_per_1000_tokens: float | None
    tokens_per_core_s: float | None = None
    cpu_parts_s_per_1000_tokens: dict[str, float] | None = None


def figures(answered: Answered, load: Load, *, output_tokens: int) -> Figures:
    """Return the figures of a closed loop.

    Raises:
        ServerError: a request failed, or its answer has another length than was asked for: then nothing is comparable.
    """
    for record in answered.records:
        if not record.is_done or record.output_tokens != output_tokens:
            raise ServerError(
                f"a request ended with {record.end!r} ({record.error}) and {record.output_tokens} output tokens; all "
                f"of them have to end with {output_tokens}"
            )
    info = RunInfo(
        tool="", commands=[], url=load.url, model=load.model, is_open=False, num_users=load.num_users,
        cpu=answered.client_cpu,
    )  # fmt: skip
    found = figures_of(Run(path=Path(), info=info, records=answered.records, samples=[]))
    num_tokens = sum(record.output_tokens for record in answered.records)
    used_s = answered.server_cpu_s
    return Figures(
        tokens_per_s=found.output_tokens.per_s,
        ttft_p50_ms=found.latencies["ttft"].percentiles["50"],
        ttft_p99_ms=found.latencies["ttft"].percentiles["99"],
        tpot_p50_ms=found.latencies["tpot"].percentiles["50"],
        tokens_per_chunk=num_tokens / sum(sum(map(bool, record.tokens)) for record in answered.records),
        client_cpu_share=found.client.cpu_share,
        server_cpu_s_per_1000_tokens=None if used_s is None else 1000 * used_s / num_tokens,
        tokens_per_core_s=num_tokens / used_s if used_s else None,
        cpu_parts_s_per_1000_tokens={part: 1000 * used_s / num_tokens for part, used_s in answered.cpu_parts_s.items()}
        or None,
    )


def medians(rounds: Sequence[Figures]) -> dict[str, Any]:
    """Return, for each figure, its median over the rounds with an interval; None where no round has it."""
    found: dict[str, Any] = {}
    for name in Figures.__struct_fields__:
        values = [value for one in rounds if (value := getattr(one, name)) is not None]
        if values and isinstance(values[0], dict):
            found[name] = {part: median_with_interval([value[part] for value in values]) for part in values[0]}
        else:
            found[name] = median_with_interval(values) if values else None
    return found


def ratios(
    ours: Sequence[Figures],
    theirs: Sequence[Figures],
    names: Sequence[str] = ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms"),
) -> Mapping[str, dict[str, float]]:
    """Return ours over theirs within a round, for some figures by their names.

    For tokens/s a ratio above 1 is better for ours, for times one below 1.
    """
    pairs = list(zip(ours, theirs, strict=True))
    return {
        name: median_with_interval([getattr(one, name) / getattr(other, name) for one, other in pairs])
        for name in names
    }
