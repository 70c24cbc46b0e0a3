# SPDX-License-Identifier: Apache-2.0
"""The table of a plan's options, and the notes below it."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from build_engines.planner.option import Option, Plan
from build_engines.planner.roofline.serving_limit import MEASURED_RESPONSES_PER_S, ServingLimit
from trireme.base.text_tables import TextTable

_GIB = 2**30
_SAME = 0.01  # figures that are no further apart are one row, with the names of all formats
T = TypeVar("T")


def grouped(items: Iterable[T], reason_of: Callable[[T], str | None]) -> dict[str, list[T]]:
    """Return the items by their reason, without those that have none."""
    groups: dict[str, list[T]] = {}
    for item in items:
        if reason := reason_of(item):
            groups.setdefault(reason, []).append(item)
    return groups


def folded(options: Iterable[Option]) -> list[list[Option]]:
    """Return the rows of a table: options in order, weight formats with equal figures together."""
    rows: list[list[Option]] = []
    rows_of: dict[tuple[object, ...], list[list[Option]]] = {}
    for option in options:
        alike = rows_of.setdefault(_kind(option), [])
        row = next((row for row in alike if _has_same_figures(row[0], option)), None)
        if row is None:
            row = []
            alike.append(row)
            rows.append(row)
        row.append(option)
    return rows


def _kind(option: Option) -> tuple[object, ...]:
    """Return what options of one row have in common beside their figures."""
    candidate, estimate = option.candidate, option.estimate
    return (
        candidate.layout, candidate.engine.kv_format, candidate.why_not_chunked is None, option.num_gpus,
        estimate.bound_by, option.missed is None, option.needs_16_bit_checkpoint, option.has_margin,
        option.serving.is_over, f"{option.uncertainty:.2f}", option.estimator,
    )  # fmt: skip


def _has_same_figures(one: Option, other: Option) -> bool:
    mine, theirs = (
        (each.ttft_ms, each.tpot_ms, each.output_tokens_per_s, each.batch_size)
        for each in (one.estimate, other.estimate)
    )
    return all(math.isclose(*pair, rel_tol=_SAME) for pair in zip(mine, theirs, strict=True))


def plan_table(plan: Plan, num_shown: int) -> TextTable:
    """Return the first rows of a plan's options, with notes."""
    rows = folded(plan.options)
    shown = rows[:num_shown]
    is_priced = plan.question.price_per_gpu_hour is not None
    is_over = any(row[0].serving.is_over for row in shown)
    headers = ["format", "KV", "layout", "GPUs", "batch", "TTFT ms", "TPOT ms", "tokens/s", "/GPU"]
    headers += ["$/M tokens"] if is_priced else []
    headers += ["$/M served"] if is_priced and is_over else []
    headers += ["within", "bound by", "behind the first by"]
    cells = tuple(tuple(_cells(row, is_priced=is_priced, is_over=is_over)) for row in shown)
    left = ("format", "KV", "layout", "bound by", "behind the first by")
    return TextTable("", tuple(headers), cells, tuple(_notes(plan, rows, num_shown)), left)


def _cells(row: list[Option], *, is_priced: bool, is_over: bool) -> Iterator[str]:
    option = row[0]
    engine, estimate = option.candidate.engine, option.estimate
    yield ", ".join(each.weight_format for each in row)
    yield from (engine.kv_format, str(option.candidate.layout), str(option.num_gpus))
    yield from (f"{estimate.batch_size:,.0f}", f"{estimate.ttft_ms:,.0f}", f"{estimate.tpot_ms:.1f}")
    mark = "*" if option.serving.is_over else ""
    yield from (f"{option.engine_output_tokens_per_s:,.0f}{mark}", f"{option.engine_tokens_per_s_per_gpu:,.0f}")
    if is_priced:
        yield f"{option.usd_per_million_tokens:.3f}"
    if is_priced and is_over:
        yield f"{option.usd_per_million_tokens_as_served:.3f}"
    yield from (f"x/÷ {option.uncertainty:.2f}", estimate.bound_by, option.why_not_first)


def _notes(plan: Plan, rows: list[list[Option]], num_shown: int) -> Iterator[str]:
    hidden = sum(len(row) for row in rows[num_shown:])
    if hidden > 0:
        yield f"{hidden} more options: --top {len(rows)}"
    shown = [option for row in rows[:num_shown] for option in row]
    yield from _of_the_first(plan)
    yield from _of_serving(plan, shown)
    unchunked = grouped([option.candidate for option in shown], lambda one: one.why_not_chunked)
    for reason, found in unchunked.items():
        most = f"prompts of {plan.question.wanted.max_num_tokens:,} tokens at most"
        yield f"No chunked prefill and no block reuse, {most}: {'; '.join(one.name for one in found)}: {reason}."
    unmeasured = sorted({name for option in shown for name in option.unmeasured})
    if unmeasured:
        yield f"Wider in `within`, for no published measurement was fitted for: {', '.join(unmeasured)}."
    if plan.rejected:
        yield "Not possible:"
    for reason, rejected in grouped(plan.rejected, lambda one: one.reason).items():
        names = [one.name for one in rejected]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"  {'; '.join(names[:3])}{more}: {reason}"


def _of_the_first(plan: Plan) -> Iterator[str]:
    best = plan.options[0]
    if best.missed is not None:
        yield f"No option meets the targets; the first misses them by {best.missed}."
    if best.needs_16_bit_checkpoint:
        own = [option for option in plan.options if not option.needs_16_bit_checkpoint]
        why = f"the checkpoint as it is misses the targets by {own[0].missed}" if own else "it is served in no format"
        yield f"The first is made from the checkpoint in 16 bits, not from this one: {why}."
    yield from _of_another_checkpoint(plan)
    if not best.has_margin:
        yield f"The first may not keep up: the load is more than its most over its `within`, {best.uncertainty:.2f}."
    memory = best.candidate.footprint
    yield (
        f"first: on each GPU {memory.weight_bytes / _GIB:.1f} GiB of weights, {memory.workspace_bytes / _GIB:.1f} "
        f"of workspace, {memory.kv_bytes / _GIB:.1f} of KV cache: {memory.kv_tokens:,} tokens, "
        f"{memory.num_sequences(plan.question.workload.num_tokens):,} whole sequences a replica"
    )
    if memory.state_bytes_per_sequence:
        mib, batch = memory.state_bytes_per_sequence / 2**20, math.ceil(best.estimate.batch_size)
        yield (
            f"States of engine.max_num_seqs sequences, {mib:.1f} MiB of a GPU each, are taken before the KV cache: set "
            f"max_num_seqs to what is to run at once, {batch:,} for the first."
        )
    is_own = plan.question.quantized is not None and not best.needs_16_bit_checkpoint
    if best.candidate.engine.formats.of_experts.is_quantized and not is_own:
        yield f"{best.weight_format} is not free of loss: `trireme evaluate` says what it costs."


def _of_another_checkpoint(plan: Plan) -> Iterator[str]:
    """Yield what the checkpoint in 16 bits would save, where it would."""
    best = plan.options[0]
    other = next((option for option in plan.options if option.needs_16_bit_checkpoint), None)
    if other is None or best.needs_16_bit_checkpoint or other.missed is not None:
        return
    if plan.question.is_load_given and other.num_gpus < best.num_gpus:
        gpus = f"{other.num_gpus} GPU{'s' if other.num_gpus > 1 else ''}"
        yield f"Made from the checkpoint in 16 bits, {other.candidate.name} takes {gpus}."
    ratio = best.engine_tokens_per_s_per_gpu / other.engine_tokens_per_s_per_gpu
    if not plan.question.is_load_given and ratio < 1:
        yield f"Made from the checkpoint in 16 bits, {other.candidate.name} takes {ratio:.2f}x the GPU time a token."


def _of_serving(plan: Plan, shown: list[Option]) -> Iterator[str]:
    """Yield what the hosts around the engines have to carry, which is no part of the order."""
    limit, need = plan.question.serving, plan.options[0].serving
    yield (
        f"serving host, for each replica of the first: {need.responses_per_s:,.0f} responses/s, about "
        f"{need.cores:.1f} cores by what a response cost with {need.num_streams} streams; {_limit_in_words(limit)}."
    )
    if any(option.serving.is_over for option in shown):
        priced = " ($/M served: with neither)" if plan.question.price_per_gpu_hour is not None else ""
        yield (
            f"* more than that: with more cores, or with several tokens in a response{priced}. Measure yours: "
            "--serving-responses-per-s."
        )


def _limit_in_words(limit: ServingLimit) -> str:
    rate = f"{limit.responses_per_s:,.0f}/s"
    if limit.responses_per_s == MEASURED_RESPONSES_PER_S:
        return f"two cores, older and shared with the clients, carried {rate} with a token in each"
    return f"--serving-responses-per-s is {rate}"
