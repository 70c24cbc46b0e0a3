# SPDX-License-Identifier: Apache-2.0
"""The ranking of options for a workload: which meet the targets, at what cost, and why the others lose."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cache

from build_engines.checkpoint.model_shape import ModelShape
from build_engines.planner.estimators.estimator import Estimator, Load
from build_engines.planner.estimators.uncertainty import factor_of
from build_engines.planner.roofline.candidates import STOPS, Candidate, Machines, Rejected, Wanted, candidates
from build_engines.planner.roofline.quantized_checkpoint import Quantized
from build_engines.planner.roofline.serving_limit import ServingLimit
from build_engines.planner.roofline.steady_state import Estimate, Limits, Workload
from trireme.base.errors import SpecError


@dataclass(frozen=True)
class Targets:
    """Targets of latency for users; None: no target."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """Return True if any target is set."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def missed_by(self, estimate: Estimate) -> str | None:
        """Return the target that an estimate misses, in words, or None."""
        if self.ttft_ms is not None and estimate.ttft_ms > self.ttft_ms:
            return f"TTFT {estimate.ttft_ms:.0f} ms > {self.ttft_ms:.0f}"
        if self.tpot_ms is not None and estimate.tpot_ms > self.tpot_ms:
            return f"TPOT {estimate.tpot_ms:.1f} ms > {self.tpot_ms:g}"
        return None


@dataclass(frozen=True)
class Question:
    """A question to the planner: the model, the machines, the workload and its load, and the targets."""

    model: ModelShape
    machines: Machines
    workload: Workload
    load: Load = field(default_factory=Load)  # on all replicas; nothing set: the most within the targets
    targets: Targets = field(default_factory=Targets)
    price_per_gpu_hour: float | None = None
    wanted: Wanted = field(default_factory=Wanted)
    serving: ServingLimit = field(default_factory=ServingLimit)
    quantized: Quantized | None = None  # the checkpoint, already


@dataclass(frozen=True, eq=False)
class Option:
    """A candidate with its predictions, over all of its replicas."""

    candidate: Candidate
    estimate: Estimate
    num_gpus: int  # GPUs of as many replicas as are needed
    engine_output_tokens_per_s: float  # what the engines make
    output_tokens_per_s: float  # what of it goes out through the serving host
    estimator: str
    why_estimator: str  # the reason why estimators before it did not estimate; empty: it is the first
    uncertainty: float  # 9 of 10 within this factor either way
    unmeasured: tuple[str, ...]
    missed: str | None = None  # the target that it misses
    is_capped_by_serving: bool = False
    usd_per_million_tokens: float | None = None
    why_not_first: str = ""
    curve: tuple[Estimate, ...] = field(default=(), repr=False)  # of one replica, from one client to a full batch

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Return the tokens/s of each GPU that the option takes."""
        return self.output_tokens_per_s / self.num_gpus


@dataclass(frozen=True)
class Plan:
    """The options, best first, and the rejected candidates."""

    question: Question
    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    why_estimator: str  # the first of the estimators is that


def make_plan(question: Question, estimators: list[Estimator], *, why_estimator: str = "", num_curves: int = 8) -> Plan:
    """Estimate every legal candidate and rank the options.

    Args:
        estimators: the first that covers a candidate is asked.
        why_estimator: the reason for the order of the estimators, for the report.
        num_curves: number of best weight formats for which throughput against latency is worked out too.

    Raises:
        SpecError: nothing is legal, or nothing fits; the message has the reason of the nearest candidate.
    """
    _check(question)
    legal, rejected = candidates(question.model, question.machines, question.wanted)
    options = [option for one in legal if (option := _option(question, one, estimators)) is not None]
    served = {option.candidate for option in options}
    rejected += [Rejected(one.name, _why_not_served(question, one), "load") for one in legal if one not in served]
    if not options:
        raise _nothing_serves(question, rejected)
    options.sort(key=_rank)
    best = options[0]
    drawn = _best_of_each_format(options)[:num_curves]
    finished = [
        replace(
            option,
            why_not_first="" if option is best else _why_not_first(option, best),
            curve=_curve(question, option, estimators) if option in drawn else (),
        )
        for option in options
    ]
    return Plan(question, tuple(finished), tuple(rejected), why_estimator)


# What may be changed where even the nearest was stopped so; the reason of a layout names sizes that would do.
_WAYS_OUT = {
    "gpus": "give more --gpus, or a smaller --tp-size or --pp-size",
    "layout": "ask for another --tp-size or --pp-size",
    "format": "ask for another --format or --kv-format, or another --gpu",
    "memory": "give more GPUs (--gpus), larger ones (--gpu) or a smaller --format",
    "load": "give more GPUs (--gpus), shorter sequences (--isl, --osl), less load or a smaller format",
}


def _nothing_serves(question: Question, rejected: list[Rejected]) -> SpecError:
    """Return an error with the reason of the candidate that came furthest.

    Among candidates that do not fit, it is the one that lacks least.
    """
    nearest = max(rejected, key=lambda one: (STOPS.index(one.stopped_by), -one.missing_bytes))
    machines = question.machines
    kind = "smallest that is legal" if nearest.stopped_by == "memory" else "nearest"
    return SpecError(
        f"nothing serves this workload on {machines.num_gpus} x {machines.gpu.title}; the {kind}, {nearest.name}: "
        f"{nearest.reason}; {_WAYS_OUT[nearest.stopped_by]}"
    )


def _best_of_each_format(options: list[Option]) -> list[Option]:
    found: dict[str, Option] = {}
    for option in options:
        found.setdefault(option.candidate.engine.formats.linear.name, option)
    return list(found.values())


def _check(question: Question) -> None:
    longest = question.model.max_position_embeddings
    if question.workload.num_tokens > longest:
        raise SpecError(
            f"isl + osl is {question.workload.num_tokens} tokens, and the model reaches to {longest}; shorten one",
            field="isl",
            value=question.workload.isl,
            max=longest - question.workload.osl,
        )
    isl, cached = question.workload.isl, question.workload.cached
    if cached >= isl:
        raise SpecError(
            f"--cached-tokens {cached} of a prompt of {isl}: its last token is always computed; give at most {isl - 1}",
            field="cached-tokens",
            value=cached,
            max=isl - 1,
        )


def _option(question: Question, candidate: Candidate, estimators: list[Estimator]) -> Option | None:
    question = _of_candidate(question, candidate)
    limits = _limits(question, candidate)
    if limits.why_too_long(question.workload) is not None:
        return None
    passed_over = []
    for estimator in estimators:
        why_not = estimator.why_not(candidate, question.workload, limits)
        if why_not is None:
            break
        passed_over.append(f"{estimator.name}: {why_not}")
    else:
        return None
    found = _replicas(question, candidate, estimator, limits)
    if found is None:
        return None
    estimate, replicas = found
    num_gpus = replicas * candidate.layout.world_size
    most = question.serving.tokens_per_s(estimate.tpot_ms)
    tokens_per_s = replicas * min(estimate.output_tokens_per_s, most)
    price = question.price_per_gpu_hour
    factor, unmeasured = factor_of(candidate, estimator.name)
    return Option(
        candidate=candidate,
        estimate=estimate,
        num_gpus=num_gpus,
        engine_output_tokens_per_s=replicas * estimate.output_tokens_per_s,
        output_tokens_per_s=tokens_per_s,
        estimator=estimator.name,
        why_estimator="; ".join(passed_over),
        uncertainty=factor,
        unmeasured=tuple(unmeasured),
        missed=question.targets.missed_by(estimate),
        is_capped_by_serving=estimate.output_tokens_per_s > most,
        usd_per_million_tokens=None if price is None else num_gpus * price / (tokens_per_s * 3600) * 1e6,
    )


def _limits(question: Question, candidate: Candidate) -> Limits:
    wanted = question.wanted
    is_chunked = candidate.why_not_chunked is None
    return Limits(candidate.footprint.kv_tokens, wanted.max_batch_size, wanted.max_num_tokens, is_chunked)


def _of_candidate(question: Question, candidate: Candidate) -> Question:
    """Return the question as it is for a candidate: without block reuse nothing of a prompt is cached."""
    if candidate.why_not_chunked is None or not question.workload.cached:
        return question
    return replace(question, workload=question.workload._replace(cached=0))


def _replicas(
    question: Question, candidate: Candidate, estimator: Estimator, limits: Limits
) -> tuple[Estimate, int] | None:
    """Return one replica's estimate, and how many replicas are used.

    At a rate, and for users, the fewest replicas are used that keep up within the targets, for the others can be given
    back; else all.
    """
    workload, load = question.workload, question.load
    most = candidate.num_replicas
    if load.requests_per_s is not None or load.users is not None:
        return _fewest_replicas(question, candidate, estimator, limits)
    if load.concurrency is not None:
        most = min(most, max(1, int(load.concurrency)))  # no replica without a client
        estimate = estimator.estimate(candidate, workload, load.shared(most), limits)
    else:
        estimate = _most_within(question, candidate, estimator, limits)
    return None if estimate is None else (estimate, most)


def _fewest_replicas(
    question: Question, candidate: Candidate, estimator: Estimator, limits: Limits
) -> tuple[Estimate, int] | None:
    """Return the fewest replicas that keep up within the targets, servers included, or all of them.

    They are found by bisection: each further replica leaves less to all.
    """

    @cache
    def with_replicas(replicas: int) -> Estimate | None:
        return estimator.estimate(candidate, question.workload, question.load.shared(replicas), limits)

    def is_enough(replicas: int) -> bool:
        estimate = with_replicas(replicas)
        if estimate is None or question.targets.missed_by(estimate) is not None:
            return False
        return estimate.output_tokens_per_s <= question.serving.tokens_per_s(estimate.tpot_ms)

    replicas = 1 + bisect_left(range(1, candidate.num_replicas), True, key=is_enough)
    best = with_replicas(replicas)
    return None if best is None else (best, replicas)


def _most_within(question: Question, candidate: Candidate, estimator: Estimator, limits: Limits) -> Estimate | None:
    """Return the largest batch within the targets, or one client if none is within.

    It is found by bisection: TTFT and TPOT grow with the batch.
    """
    full = limits.batch(question.workload)
    if full < 1:
        return None

    @cache
    def at(batch: int) -> Estimate | None:
        return estimator.estimate(candidate, question.workload, Load(batch), limits)

    def is_too_large(batch: int) -> bool:
        estimate = at(batch)
        return estimate is None or question.targets.missed_by(estimate) is not None

    if not question.targets.is_set:
        return at(full)
    return at(1 + bisect_left(range(2, full + 1), True, key=is_too_large))


def _rank(option: Option) -> tuple[bool, float, float]:
    """Return a sort key: meeting the targets first, then the fewest GPU-seconds for a token, then the fastest."""
    return option.missed is not None, -option.tokens_per_s_per_gpu, option.estimate.tpot_ms


def _why_not_served(question: Question, candidate: Candidate) -> str:
    if why := _limits(question, candidate).why_too_long(question.workload):
        return f"{why}: {candidate.why_not_chunked}; raise --max-num-tokens, or take another --kv-format"
    if question.load.requests_per_s is not None:
        return f"cannot keep up with {question.load.requests_per_s:g} requests/s"
    return f"no room in the KV cache for one request of {question.workload.num_tokens} tokens"


def _why_not_first(option: Option, best: Option) -> str:
    if option.missed is not None and best.missed is None:
        return option.missed
    ratio = best.tokens_per_s_per_gpu / option.tokens_per_s_per_gpu
    mine, theirs = option.estimate.step, best.estimate.step
    if mine is None or theirs is None:
        return f"{ratio:.2f}x the GPU time a token"
    tokens = option.estimate.batch_size or 1.0, best.estimate.batch_size or 1.0
    parts = {}
    for name in ("compute_s", "bandwidth_s", "interconnect_s", "host_s"):
        per_token = getattr(mine, name) * option.candidate.layout.world_size / tokens[0]
        parts[name] = per_token - getattr(theirs, name) * best.candidate.layout.world_size / tokens[1]
    worst = max(parts, key=lambda name: parts[name]).removesuffix("_s")
    smaller = f", batch {tokens[0]:.0f} for {tokens[1]:.0f}" if tokens[0] < 0.8 * tokens[1] else ""
    return f"{ratio:.2f}x the GPU time a token: {worst}{smaller}"


def _curve(question: Question, option: Option, estimators: list[Estimator]) -> tuple[Estimate, ...]:
    estimator = next(one for one in estimators if one.name == option.estimator)
    candidate = option.candidate
    question = _of_candidate(question, candidate)
    limits = _limits(question, candidate)
    full = limits.batch(question.workload)
    sizes = sorted({min(full, 2**n) for n in range(full.bit_length() + 1)})
    found = (estimator.estimate(candidate, question.workload, Load(size), limits) for size in sizes)
    return tuple(estimate for estimate in found if estimate is not None)
