# SPDX-License-Identifier: Apache-2.0
"""The ranking of options for a workload: which meet the targets, and at what cost."""

from bisect import bisect_left
from dataclasses import replace
from functools import cache

from build_engines.planner.estimators.estimator import Estimator, Load
from build_engines.planner.estimators.uncertainty import factor_of
from build_engines.planner.option import Option, Plan
from build_engines.planner.option_order import ordered, why_not_first
from build_engines.planner.question import Question
from build_engines.planner.roofline.candidates import STOPS, Candidate, Rejected, candidates
from build_engines.planner.roofline.steady_state import Estimate, Limits
from trireme.base.errors import SpecError


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
    options = ordered(question, options)
    best = options[0]
    drawn = _best_of_each_format(options)[:num_curves]
    finished = [
        replace(
            option,
            why_not_first="" if option is best else why_not_first(question, option, best),
            curve=curve_of(question, option, estimators) if option in drawn else (),
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
        found.setdefault(option.weight_format, option)
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
    made = replicas * estimate.output_tokens_per_s
    served = min(made, replicas * question.serving.tokens_per_s(estimate.tpot_ms))
    factor, unmeasured = factor_of(candidate, estimator.name)
    need = question.serving.need(
        estimate.output_tokens_per_s, estimate.tpot_ms, osl=question.workload.osl, batch_size=estimate.batch_size
    )
    return Option(
        candidate=candidate,
        estimate=estimate,
        num_gpus=num_gpus,
        engine_output_tokens_per_s=made,
        served_output_tokens_per_s=served,
        serving=need,
        estimator=estimator.name,
        why_estimator="; ".join(passed_over),
        uncertainty=factor,
        unmeasured=tuple(unmeasured),
        needs_16_bit_checkpoint=question.needs_16_bit_checkpoint(candidate.engine.formats.name),
        has_margin=_has_margin(question, candidate, estimator, limits, replicas, factor),
        missed=question.targets.missed_by(estimate),
        usd_per_million_tokens=_price(question, num_gpus, made),
        usd_per_million_tokens_as_served=_price(question, num_gpus, served),
    )


def _price(question: Question, num_gpus: int, tokens_per_s: float) -> float | None:
    """Return the dollars of a million tokens, or None: no price was given."""
    price = question.price_per_gpu_hour
    return None if price is None else num_gpus * price / (tokens_per_s * 3600) * 1e6


def _has_margin(
    question: Question, candidate: Candidate, estimator: Estimator, limits: Limits, replicas: int, factor: float
) -> bool:
    """Return True if the replicas keep up with the rate even if they are slower than predicted by a factor."""
    if question.load.requests_per_s is None:
        return True
    slower = Load(requests_per_s=question.load.requests_per_s * factor).shared(replicas)
    return estimator.estimate(candidate, question.workload, slower, limits) is not None


def _limits(question: Question, candidate: Candidate) -> Limits:
    wanted, footprint = question.wanted, candidate.footprint
    return Limits(
        footprint.kv_tokens,
        wanted.max_batch_size,
        wanted.max_num_tokens,
        is_chunked=candidate.why_not_chunked is None,
        state_tokens=footprint.state_tokens,
    )


def _of_candidate(question: Question, candidate: Candidate) -> Question:
    """Return the question as it is for a candidate: without block reuse nothing of a prompt is cached."""
    if candidate.is_block_reused or not question.workload.cached:
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
    """Return the fewest replicas that keep up within the targets, or all of them.

    They are found by bisection: each further replica leaves less to all.
    """

    @cache
    def with_replicas(replicas: int) -> Estimate | None:
        return estimator.estimate(candidate, question.workload, question.load.shared(replicas), limits)

    def is_enough(replicas: int) -> bool:
        estimate = with_replicas(replicas)
        return estimate is not None and question.targets.missed_by(estimate) is None

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


def _why_not_served(question: Question, candidate: Candidate) -> str:
    if why := _limits(question, candidate).why_too_long(question.workload):
        return f"{why}: {candidate.why_not_chunked}; raise --max-num-tokens, or take another --kv-format"
    if question.load.requests_per_s is not None:
        return f"cannot keep up with {question.load.requests_per_s:g} requests/s"
    return f"no room in the KV cache for one request of {question.workload.num_tokens} tokens"


def curve_of(
    question: Question, option: Option, estimators: list[Estimator], *, steps: tuple[float, ...] = (1,)
) -> tuple[Estimate, ...]:
    """Return the estimates of one replica of an option, from one client to a full batch.

    Args:
        question: the question of the plan.
        option: one of the plan's options.
        estimators: those that the plan was made with.
        steps: batches are these times powers of two.
    """
    estimator = next(one for one in estimators if one.name == option.estimator)
    candidate = option.candidate
    question = _of_candidate(question, candidate)
    limits = _limits(question, candidate)
    full = limits.batch(question.workload)
    sizes = sorted({min(full, int(step * 2**n)) for n in range(full.bit_length() + 1) for step in steps})
    found = (estimator.estimate(candidate, question.workload, Load(size), limits) for size in sizes)
    return tuple(estimate for estimate in found if estimate is not None)
