# SPDX-License-Identifier: Apache-2.0
"""The figures of one run."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from clients.latency import MetricUndefined, RequestRecord, e2e_ms, itl_ms, tpot_ms, ttft_ms
from clients.load_report.latency_percentiles import Spread, spread_of
from clients.load_report.rates import Rate, rate_of
from clients.load_report.server_figures import ServerFigures, server_figures
from clients.load_report.slo import Target, is_met
from clients.load_report.steady_state import Window, steady_window
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import Run
from trireme.base.errors import SpecError
from trireme.base.sample_statistics import percentile

CLIENT_BOUND_SHARE = 0.7  # of one core, of the busiest process of the client
LATE_MS = 10.0  # requests that go out later than this after they were due are not the load that was asked for

LATENCIES: dict[str, Callable[[RequestRecord], float | list[float]]] = {
    "ttft": ttft_ms,
    "itl": itl_ms,
    "tpot": tpot_ms,
    "e2e": e2e_ms,
}


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The client's own figures, which say whether it was fast enough for this measurement.

    Attributes:
        cpu_share: part of one core that its busiest process used; None: not known.
        lag_p99_ms: how much later than due requests were sent; None: nothing was due.
        why_bound: why the client was the bottleneck, in words; "": it was not.
    """

    num_processes: int
    cpu_share: float | None
    lag_p99_ms: float | None
    why_bound: str


class RunFigures(msgspec.Struct, kw_only=True):
    """Latencies in milliseconds, of requests of the window that ended well.

    Attributes:
        num_requests: requests in the window; num_all: in the whole run.
        ends: numbers of ends by code, "done" among them.
        num_refused: requests that the server refused; a connection that broke, or a server that said nothing, is none.
        num_empty: requests that ended well without a token; num_retried: requests that were sent more than once.
        goodput: requests that met `targets`, a second; None: there are no targets.
        goodput_share: share of the window's requests that met `targets`.
    """

    name: str
    window: Window
    num_all: int
    num_requests: int
    ends: dict[str, int]
    num_refused: int
    num_empty: int
    num_retried: int
    requests: Rate
    output_tokens: Rate
    input_tokens: Rate | None
    isl: Spread | None
    osl: Spread | None
    latencies: dict[str, Spread]
    targets: tuple[Target, ...]
    goodput: Rate | None
    goodput_share: float | None
    client: ClientFigures
    server: ServerFigures | None

    @property
    def error_share(self) -> float:
        """Return the share of the window's requests that did not end well."""
        return 1 - self.ends.get("done", 0) / self.num_requests if self.num_requests else 0.0

    @property
    def refused_share(self) -> float:
        """Return the share of the window's requests that were refused."""
        return self.num_refused / self.num_requests if self.num_requests else 0.0


def figures_of(run: Run, *, targets: tuple[Target, ...] = ()) -> RunFigures:
    """Return the figures of the run's steady part.

    Raises:
        SpecError: there is no request in it.
    """
    if not run.records:
        raise SpecError(f"{run.path} has no request that ended; was the load stopped at once?", field="run")
    window = steady_window(
        run.records,
        num_users=None if run.info.is_open else run.info.num_users,
        before_ns=run.info.unended.since_ns if run.info.unended else math.inf,
    )
    measured = [record for record in run.records if window.holds(record.due_ns)]
    done = [record for record in measured if record.is_done]
    good = [record for record in run.records if is_met(record, targets)]
    inputs = [
        (record.times_ns[0], record.input_tokens) for record in run.records if record.input_tokens and record.times_ns
    ]
    return RunFigures(
        name=run.name,
        window=window,
        num_all=len(run.records),
        num_requests=len(measured),
        ends=dict(Counter(record.end for record in measured)),
        num_refused=sum(record.is_refused for record in measured),
        num_empty=sum(not record.output_tokens for record in done),
        num_retried=sum(record.num_attempts > 1 for record in measured),
        requests=rate_of([one for record in run.records if record.is_done for one in _progress(record)], window, done),
        output_tokens=rate_of(
            [one for record in run.records for one in zip(record.times_ns, record.tokens, strict=True)], window, done
        ),
        input_tokens=rate_of(inputs, window, done) if inputs else None,
        isl=spread_of([[float(record.input_tokens)] for record in done if record.input_tokens is not None]),
        osl=spread_of([[float(record.output_tokens)] for record in done]),
        latencies={
            name: spread for name, metric in LATENCIES.items() if (spread := spread_of(values_of(done, metric)))
        },
        targets=targets,
        goodput=rate_of([one for record in good for one in _progress(record)], window, done) if targets else None,
        goodput_share=sum(window.holds(record.due_ns) for record in good) / max(1, len(measured)) if targets else None,
        client=_client(run, window),
        server=server_figures(run.samples, window, model=run.info.model),
    )


def values_of(
    records: Sequence[LoadRecord], metric: Callable[[RequestRecord], float | list[float]]
) -> list[list[float]]:
    """Return the values of each request that has any, in order."""
    values = []
    for record in records:
        try:
            value = metric(record.latencies())
        except MetricUndefined:
            continue
        if found := value if isinstance(value, list) else [value]:
            values.append(found)
    return values


def pooled(records: Sequence[LoadRecord], metric: Callable[[RequestRecord], float | list[float]]) -> list[float]:
    """Return the values of all requests together, in order."""
    return [value for values in values_of(records, metric) for value in values]


def _progress(record: LoadRecord) -> list[tuple[int, float]]:
    """Return when which share of a request was done.

    The shares go with its tokens, so that both rates have equal edges.
    """
    if not record.output_tokens:
        return [(record.end_ns, 1.0)]
    return [(at_ns, count / record.output_tokens) for at_ns, count in zip(record.times_ns, record.tokens, strict=True)]


def _client(run: Run, window: Window) -> ClientFigures:
    shares = []
    for samples in run.info.cpu:
        within = [sample for sample in samples if window.start_ns <= sample.at_ns <= window.end_ns]
        used = within if len(within) > 1 else samples
        if len(used) > 1 and used[-1].at_ns > used[0].at_ns:
            shares.append((used[-1].cpu_s - used[0].cpu_s) / ((used[-1].at_ns - used[0].at_ns) / 1e9))
    lags = [record.lag_ns / 1e6 for record in run.records if window.holds(record.due_ns) and not record.turn]
    cpu_share = max(shares, default=None)
    lag_p99_ms = percentile(lags, 99) if run.info.is_open and lags else None
    reasons = []
    if cpu_share is not None and cpu_share > CLIENT_BOUND_SHARE:
        reasons.append(f"a process of the client used {cpu_share:.0%} of a core; give it more with --processes")
    if lag_p99_ms is not None and lag_p99_ms > LATE_MS:
        reasons.append(f"one request in a hundred went out {lag_p99_ms:.0f} ms late or more")
    return ClientFigures(
        num_processes=len(run.info.cpu), cpu_share=cpu_share, lag_p99_ms=lag_p99_ms, why_bound="; ".join(reasons)
    )
