# SPDX-License-Identifier: Apache-2.0
"""The tables of a report as rows of text, for every form that it takes."""

from collections.abc import Callable
from typing import NamedTuple

from clients.load_report.document import Document, RunPart
from clients.load_report.latency_percentiles import Interval, Spread
from clients.load_report.rates import Rate
from clients.load_report.server_figures import ServerFigures

PERCENTILES = ("50", "90", "95", "99")


class Table(NamedTuple):
    """A table; its first column is the rows' names, left, and all others are numbers, right."""

    header: list[str]
    rows: list[list[str]]


def overview(document: Document) -> Table:
    """Return a table with a line for each run."""
    has_goodput = any(part.figures.goodput for part in document.runs)
    header = ["run", "tool", "load", "requests/s", "output tokens/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"]
    header += ["E2E p99", *(["goodput"] if has_goodput else []), "failed", "client CPU"]
    rows = []
    for part in document.runs:
        figures = part.figures
        latencies = [
            _cell(figures.latencies.get(name), percentile)
            for name, percentile in (("ttft", "50"), ("ttft", "99"), ("tpot", "50"), ("tpot", "99"), ("e2e", "99"))
        ]
        goodput = [f"{figures.goodput.per_s:.2f}/s, {figures.goodput_share:.1%}" if figures.goodput else "-"]
        cpu = figures.client.cpu_share
        rows.append(
            [
                figures.name,
                part.info.tool,
                part.load,
                f"{figures.requests.per_s:.2f}",
                f"{figures.output_tokens.per_s:.1f}",
                *latencies,
                *(goodput if has_goodput else []),
                f"{figures.error_share:.1%}",
                ("-" if cpu is None else f"{cpu:.0%}") + (" (bound)" if figures.client.why_bound else ""),
            ]
        )
    return Table(header, rows)


def failures(part: RunPart) -> Table:
    """Return the failures of the whole run, the most frequent first; no rows: there were none."""
    rows = [[one.end, " ".join(one.error.split()) or "-", str(one.count)] for one in part.failures]
    return Table(["", "said, such as", "requests"], rows)


def latencies(part: RunPart) -> Table:
    """Return the latencies in milliseconds, with their intervals where there are some."""
    names = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}
    rows = [
        [names[name], *_spread(spread), f"{spread.max:.1f}", str(spread.count)]
        for name, spread in part.figures.latencies.items()
    ]
    return Table(["ms", "mean", *(f"p{percentile}" for percentile in PERCENTILES), "max", "values"], rows)


def throughput(part: RunPart) -> Table:
    """Return the rates a second."""
    figures = part.figures
    rates: list[tuple[str, Rate | None]] = [
        ("requests/s", figures.requests),
        ("output tokens/s", figures.output_tokens),
        ("input tokens/s", figures.input_tokens),
        ("goodput, requests/s", figures.goodput),
    ]
    rows = [[name, f"{rate.per_s:.2f}", _interval(rate.interval, 2)] for name, rate in rates if rate is not None]
    if part.tokens_per_s_per_gpu is not None:
        rows.append(["output tokens/s/GPU", f"{part.tokens_per_s_per_gpu:.2f}", ""])
    return Table(["", "a second", "95 % interval"], rows)


def requests(part: RunPart) -> Table:
    """Return how many requests there were, how they ended, and how long they were."""
    figures = part.figures
    targets = ", ".join(f"{target.name} <= {target.limit_ms:g} ms" for target in figures.targets)
    rows = [
        ["measured, of all", f"{figures.num_requests} of {figures.num_all}"],
        *[[f"ended: {end}", str(count)] for end, count in sorted(figures.ends.items())],
        ["refused by the server", str(figures.num_refused)],
        ["ended well without a token", str(figures.num_empty)],
        ["sent more than once", str(figures.num_retried)],
        ["ISL, mean and p99", _length(figures.isl)],
        ["OSL, mean and p99", _length(figures.osl)],
        ["measured part", figures.window.why],
        ["warm-up requests, not counted", str(part.info.warmup_requests)],
    ]
    if figures.goodput_share is not None:
        rows.append([f"within {targets}", f"{figures.goodput_share:.1%}"])
    if figures.client.lag_p99_ms is not None:
        rows.append(["sent after due, p99", f"{figures.client.lag_p99_ms:.2f} ms"])
    if figures.client.cpu_share is not None:
        cpu = f"{figures.client.cpu_share:.0%} of a core, of {figures.client.num_processes}"
        rows.append(["client's busiest process", cpu])
    return Table(["", ""], rows)


_SERVER: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("batch_mean", "requests in the batch, mean", "{:.1f}".format),
    ("batch_max", "requests in the batch, at most", "{:.0f}".format),
    ("batch_occupancy", "batch occupancy over engine steps", "{:.1%}".format),
    ("waiting_mean", "requests that wait, mean", "{:.1f}".format),
    ("waiting_max", "requests that wait, at most", "{:.0f}".format),
    ("kv_usage_mean", "KV cache use, mean", "{:.1%}".format),
    ("kv_usage_max", "KV cache use, at most", "{:.1%}".format),
    ("preemptions", "preemptions", "{:.0f}".format),
    ("busy_share", "time in engine steps", "{:.1%}".format),
    ("steps_per_s", "engine steps a second", "{:.1f}".format),
    ("step_ms", "engine step, mean ms", "{:.2f}".format),
    ("prefill_step_ms", "prefill step, mean ms", "{:.2f}".format),
    ("decode_step_ms", "decode step, mean ms", "{:.2f}".format),
    ("prefill_tokens_per_s", "prompt tokens a second of prefill steps", "{:.1f}".format),
    ("decode_tokens_per_s", "output tokens a second of engine steps", "{:.1f}".format),
    ("mbu", "MBU", "{:.1%}".format),
    ("mfu", "MFU", "{:.1%}".format),
    ("gpu_utilization", "GPU utilisation (any kernel runs)", "{:.1%}".format),
)


def server(figures: ServerFigures | None) -> Table:
    """Return the figures of the server's metrics; a figure that the server does not tell has no row."""
    rows = [
        [title, form(value)]
        for name, title, form in _SERVER
        if figures is not None and (value := getattr(figures, name)) is not None
    ]
    return Table(["", ""], rows)


def tool_says(part: RunPart) -> Table:
    """Return the tool's figures by its own names and definitions, which are not those of this report."""
    return Table([part.info.tool, "says"], [[name, value] for name, value in part.info.tool_says.items()])


def against(part: RunPart) -> Table:
    """Return the ratios to the first run."""
    rows = [
        [ratio.figure, f"{ratio.value:.3f}", _interval(ratio.interval, 3), "differs" if ratio.is_different else ""]
        for ratio in part.against_first
    ]
    return Table(["", "ratio", "95 % interval", ""], rows)


def environment(part: RunPart) -> Table:
    """Return the place and the circumstances of the run."""
    found = part.info.environment
    versions = ", ".join(f"{name} {version}" for name, version in found.get("versions", {}).items())
    rows = [
        ["date", part.info.date],
        ["tool", part.info.tool],
        ["server", f"{part.info.url}, model {part.info.model}"],
        ["client's machine", f"{found.get('cpu', '?')}, {found.get('num_cpus', '?')} CPUs, "
         f"{found.get('memory_gib', '?')} GiB, load {found.get('load_1min', '?')}"],
        ["system", f"{found.get('system', '?')}, Python {found.get('python', '?')}"],
        ["versions", versions],
        ["prompts", part.info.lengths or "-"],
        ["seed", "-" if part.info.seed is None else str(part.info.seed)],
    ]  # fmt: skip
    return Table(["", ""], rows)


def _cell(spread: Spread | None, percentile: str) -> str:
    return "-" if spread is None else f"{spread.percentiles[percentile]:.1f}"


def _spread(spread: Spread) -> list[str]:
    values = {"mean": spread.mean, **spread.percentiles}
    return [
        f"{values[name]:.1f}" + (f" ({_interval(spread.intervals[name], 1)})" if name in spread.intervals else "")
        for name in ("mean", *PERCENTILES)
    ]


def _interval(interval: Interval | None, digits: int) -> str:
    return "" if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _length(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.mean:.1f}, {spread.percentiles['99']:.0f}"
