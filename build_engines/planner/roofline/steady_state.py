# SPDX-License-Identifier: Apache-2.0
"""The way from the time of a step to what users see: TTFT, TPOT and tokens/s of an engine that batches in flight.

All requests of a workload are alike: `isl` tokens in, `osl` out. In the steady state a batch of B sequences turns over
once in `osl` steps, and in that time B prompts are prefilled beside it, in chunks.
"""

from dataclasses import dataclass
from typing import NamedTuple

from build_engines.planner.roofline.efficiencies import Efficiencies
from build_engines.planner.roofline.step_time import Engine, StepLoad, StepTime, step_time


class Workload(NamedTuple):
    """Equal requests, in tokens."""

    isl: int
    osl: int
    cached: int = 0  # of the prompt, at its start: in the KV cache already, so looked back at but not computed again

    @property
    def prefilled(self) -> int:
        """Return the tokens of a prompt that are computed; the last one always is."""
        return self.isl - self.cached

    @property
    def num_tokens(self) -> int:
        """Return the tokens of one request in the KV cache at its end."""
        return self.isl + self.osl


class Limits(NamedTuple):
    """Limits of what the engine takes at once."""

    kv_tokens: int
    max_batch_size: int = 2048
    max_num_tokens: int = 8192  # of a step: longer prompts come in chunks
    is_chunked: bool = True  # False: a prompt is prefilled whole, and none goes on from cached blocks
    state_tokens: float = 0.0  # tokens of KV cache whose room a sequence's states of linear attention take

    def step_tokens(self, workload: Workload) -> int:
        """Return the prompt tokens that a step takes at most: whole prompts, where they are not chunked."""
        if self.is_chunked:
            return self.max_num_tokens
        return max(1, self.max_num_tokens // workload.isl) * workload.isl

    def why_too_long(self, workload: Workload) -> str | None:
        """Return in words why prompts of a workload cannot be prefilled, or None."""
        if self.is_chunked or workload.isl <= self.max_num_tokens:
            return None
        return f"prompts of {workload.isl} tokens are more than a step's {self.max_num_tokens}, and are not chunked"

    def batch(self, workload: Workload) -> int:
        """Return the most sequences that run at once, each with room for all of its tokens."""
        return min(self.max_batch_size, int(self.kv_tokens // (workload.num_tokens + self.state_tokens)))


class Run(NamedTuple):
    """A benchmark at a fixed concurrency, from an idle engine on."""

    requests_per_client: float  # the first of each comes at once with those of all others
    is_varied: bool = False  # answers are of different lengths, so that clients do not stay in step


@dataclass(frozen=True)
class Estimate:
    """The estimate of one replica."""

    ttft_ms: float
    tpot_ms: float
    output_tokens_per_s: float
    batch_size: float  # sequences that run at once
    step: StepTime | None  # of a typical step: what binds; None: the estimator does not say

    @property
    def bound_by(self) -> str:
        """Return what most of a step waits for."""
        return self.step.bound_by if self.step else "(not said)"


def at_concurrency(
    engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits, num_clients: float, run: Run | None = None
) -> Estimate | None:
    """Return the estimate with clients that each send their next request when they have the answer.

    None: not one request fits. Clients beyond the batch wait: their time to the first token grows, the throughput does
    not.

    Args:
        run: a benchmark's, which begins with a request of every client at once; None: it has been so for long.
    """
    batch = min(num_clients, limits.batch(workload))
    if batch < 1:
        return None
    decode, prefill_s = _cycle_parts(engine, eff, workload, limits, batch)
    cycle_s = workload.osl * decode.total_s + batch * prefill_s
    own_prefill_s = _prefill_alone_s(engine, eff, workload, limits, batch - 1)
    # A request comes when another's last token is out: the next step has begun without it. The token leaves one later.
    ttft_s = own_prefill_s + eff.waited_steps * (1 - 1 / batch) * decode.total_s
    if run is None or not run.is_varied:
        ttft_s += _queue_s(prefill_s, cycle_s, batch)
    if run is not None:
        ttft_s += (batch - 1) / 2 * prefill_s / run.requests_per_client
    waiting_s = max(0.0, num_clients - batch) * cycle_s / batch
    tpot_s = max(cycle_s - ttft_s, workload.osl * decode.total_s) / workload.osl
    typical = _mixed(engine, eff, workload, batch, decode)
    ttft_s += waiting_s + eff.tokenize_s * workload.isl
    return Estimate(1000 * ttft_s, 1000 * tpot_s, batch * workload.osl / cycle_s, batch, typical)


def _queue_s(prefill_s: float, cycle_s: float, batch: float) -> float:
    """Return the seconds for which a prompt waits for those before it.

    Requests of one length that began together end together, so their clients' next prompts meet. Mean value analysis of
    a closed network, by Schweitzer's approximation: W = P (1 + (n - 1) / n Q), Q = n W / cycle.
    """
    return prefill_s / (1 - (batch - 1) * prefill_s / cycle_s) - prefill_s


def saturated(engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits) -> Estimate | None:
    """Return the estimate with a full batch and requests always waiting: the most tokens/s.

    Its TTFT is without the wait in the queue.
    """
    return at_concurrency(engine, eff, workload, limits, limits.batch(workload))


def at_rate(
    engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits, requests_per_s: float
) -> Estimate | None:
    """Return the estimate with requests at a rate, independent of answers.

    None: the engine cannot keep up, and its queue grows for ever. The batch is what is in flight, by Little's law: rate
    x time in the engine. Found as a fixed point.
    """
    most = limits.batch(workload)
    full = saturated(engine, eff, workload, limits)
    if full is None or requests_per_s * workload.osl > full.output_tokens_per_s:
        return None
    batch, estimate = 1.0, full
    for _ in range(100):
        decode, prefill_s = _cycle_parts(engine, eff, workload, limits, batch)
        busy = requests_per_s * prefill_s  # share of the time that goes to other requests' prompts
        if busy >= 1:
            return None
        tpot_s = decode.total_s / (1 - busy)
        ttft_s = _prefill_alone_s(engine, eff, workload, limits, max(0.0, batch - 1)) + tpot_s / 2
        # Prompts queue for each other's prefill: M/D/1.
        ttft_s += busy * prefill_s / (2 * (1 - busy))
        typical = _mixed(engine, eff, workload, batch, decode)
        first_s = ttft_s + eff.tokenize_s * workload.isl  # before the request is in the engine
        estimate = Estimate(1000 * first_s, 1000 * tpot_s, requests_per_s * workload.osl, batch, typical)
        wanted = min(most, requests_per_s * (ttft_s + workload.osl * tpot_s))
        if abs(wanted - batch) < 0.001 * batch:
            break
        batch = (batch + wanted) / 2
    return estimate


def at_users(
    engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits, num_users: float, think_time_s: float
) -> Estimate | None:
    """Return the estimate with people, who think before they ask again.

    By the interactive response time law, users = requests in the engine + think time x requests/s; the number in the
    engine is found by bisection.
    """
    low, high, estimate = 0.0, num_users, None
    for _ in range(40):
        in_engine = (low + high) / 2
        estimate = at_concurrency(engine, eff, workload, limits, max(1.0, in_engine))
        if estimate is None:
            return None
        requests_per_s = min(1.0, in_engine) * estimate.output_tokens_per_s / workload.osl
        if in_engine + think_time_s * requests_per_s > num_users:
            high = in_engine
        else:
            low = in_engine
    return estimate


def prompt_share(engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits, batch: float) -> float:
    """Return the share of the engine's working time that prompts take; answers take the rest.

    A prompt's time is what it adds to the steps that it shares with sequences that decode.
    """
    decode, prefill_s = _cycle_parts(engine, eff, workload, limits, batch)
    return batch * prefill_s / (workload.osl * decode.total_s + batch * prefill_s)


def _cycle_parts(
    engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits, batch: float
) -> tuple[StepTime, float]:
    """Return a step of decoding alone, and the seconds that one prompt adds to the steps that it shares."""
    context = workload.isl + workload.osl / 2
    decode = step_time(engine, eff, StepLoad(batch, context))
    chunk = min(max(workload.prefilled, batch * workload.prefilled / workload.osl), limits.step_tokens(workload))
    mixed = step_time(engine, eff, StepLoad(batch, context, chunk, workload.isl, workload.cached))
    return decode, (mixed.total_s - decode.total_s) * workload.prefilled / chunk


def _prefill_alone_s(engine: Engine, eff: Efficiencies, workload: Workload, limits: Limits, others: float) -> float:
    """Return the seconds from the start of a prompt's first chunk to its first token, beside `others` that decode."""
    context = workload.isl + workload.osl / 2
    step_tokens = limits.step_tokens(workload)
    num_whole, rest = divmod(workload.prefilled, step_tokens)
    chunks = ((num_whole, step_tokens), (1, rest))
    return sum(
        count * step_time(engine, eff, StepLoad(others, context, chunk, workload.isl, workload.cached, True)).total_s
        for count, chunk in chunks
        if count and chunk
    )


def _mixed(engine: Engine, eff: Efficiencies, workload: Workload, batch: float, decode: StepTime) -> StepTime:
    """Return a step with its mean share of prompts."""
    if workload.isl == 0:
        return decode
    prompt_tokens = batch * workload.prefilled / workload.osl
    load = StepLoad(batch, workload.isl + workload.osl / 2, prompt_tokens, workload.isl, workload.cached)
    return step_time(engine, eff, load)
