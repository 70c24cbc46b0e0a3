# SPDX-License-Identifier: Apache-2.0
"""Many simulated rollouts at once: requests of both arms after a latency model, and what the gate sees of them.

Both arms get 2 requests a second, 20 in each of the 10 s between two looks; arm 0 is the candidate.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rollout_gate.latency_models import LatencyModel
from benchmarks.rollout_gate.simulated_rollouts import LOOK_S, PER_LOOK, Seen
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.sample import Scores
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import NO_GROUP, NO_UNIT
from clients.rollout_gate.statistics.score_test import gains
from clients.rollout_gate.statistics.work import decode_work, prefill_work, prompt_work
from clients.rollout_gate.traffic_sums import Portion
from ensemble_configs.split.outcome import Outcome

PROMPTS_PER_LOOK = 1  # of the held-out set, on both arms
_GOOD_SCORE = 0.8
_WORKS = {"ttft": prefill_work, "tpot": decode_work, "output_tokens": prompt_work}

Singles = NDArray[np.float32]


@dataclass(frozen=True)
class Regression:
    """The faults of a candidate; by default none.

    Attributes:
        garbled: share of answers; half of them loop, all of them score 0 in the held-out set.
        errors: share of requests, on top of the baseline's.
        errors_of_both: share of each arm's requests in place of the model's.
        slow: share of requests with ten times the TTFT.
    """

    ttft: float = 1.0
    tpot: float = 1.0
    length: float = 1.0
    errors: float = 0.0
    errors_of_both: float | None = None
    slow: float = 0.0
    garbled: float = 0.0


@dataclass(frozen=True)
class Traffic:
    """The requests of rollouts: [rollouts, 2 arms, looks, requests] each, and scores [rollouts, 2, looks, prompts].

    Attributes:
        log_ttft: natural logarithm of milliseconds; so is `log_tpot`.
    """

    stratum: NDArray[np.int64]
    log_ttft: Singles
    log_tpot: Singles
    num_tokens: Singles
    is_error: NDArray[np.bool_]
    is_empty: NDArray[np.bool_]
    is_looping: NDArray[np.bool_]
    score: Singles


def traffic_of(
    model: LatencyModel, regression: Regression, *, rollouts: int, looks: int, rng: np.random.Generator
) -> Traffic:
    """Draw the traffic of rollouts."""
    shape = (rollouts, 2, looks, PER_LOOK)
    candidate = np.array([1.0, 0.0], np.float32)[:, np.newaxis, np.newaxis]
    stratum = _choices(np.array([one.share for one in model.strata]), shape, rng)
    common = _common(model, rollouts, looks, rng)
    first, second = rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32)
    correlation = np.float32(model.correlation)
    second = correlation * first + np.sqrt(1 - correlation**2) * second
    own = np.sqrt(np.float32(1 - model.stratum_share))
    shared = _fading((rollouts, 1, looks, len(model.strata)), model.stratum_s, rng) * np.sqrt(model.stratum_share)
    shared = np.take_along_axis(np.broadcast_to(shared, (*shape[:3], len(model.strata))), stratum, axis=3)
    log_ttft = _log([one.ttft_ms for one in model.strata])[stratum] + common
    log_ttft += model.ttft_sd * shared + own * _residual(first, model.ttft_sd, model.ttft_quantiles, rng)
    log_ttft += _tail(shape, model, rng) + candidate * np.float32(math.log(regression.ttft))
    log_ttft += candidate * (rng.random(shape, np.float32) < regression.slow) * np.float32(math.log(10))
    log_tpot = _log([one.tpot_ms for one in model.strata])[stratum] + common / 2
    log_tpot += model.tpot_sd * shared + own * _residual(second, model.tpot_sd, model.tpot_quantiles, rng)
    log_tpot += _tail(shape, model, rng) + candidate * np.float32(math.log(regression.tpot))
    length = rng.standard_normal(shape, np.float32) * np.float32(model.output_sd)
    length += math.log(model.output_tokens) + candidate * np.float32(math.log(regression.length))
    tokens = np.clip(np.rint(np.exp(length)), 2, model.max_tokens).astype(np.float32)
    errors = model.errors if regression.errors_of_both is None else regression.errors_of_both
    is_bad = candidate * regression.garbled
    prompts = (rollouts, 2, looks, PROMPTS_PER_LOOK)
    score = np.clip(_GOOD_SCORE + model.score_sd * rng.standard_normal(prompts, np.float32), 0, 1)
    return Traffic(
        stratum,
        log_ttft.astype(np.float32),
        log_tpot.astype(np.float32),
        tokens,
        rng.random(shape, np.float32) < errors + candidate * regression.errors,
        rng.random(shape, np.float32) < model.empty,
        rng.random(shape, np.float32) < model.looping + is_bad / 2,
        np.where(rng.random(prompts, np.float32) < is_bad, 0, score).astype(np.float32),
    )


def outcomes_of(traffic: Traffic, rollout: int, look: int) -> list[Outcome]:
    """Return what one rollout's clients would report between two looks."""
    found = []
    for arm, name in enumerate(("candidate", "baseline")):
        for request in range(PER_LOOK):
            at = (rollout, arm, look, request)
            stratum, num_tokens = int(traffic.stratum[at]), int(traffic.num_tokens[at])
            if traffic.is_error[at]:
                found.append(Outcome(arm=name, stratum=stratum, error="INTERNAL"))
                continue
            ttft_ms, tpot_ms = math.exp(traffic.log_ttft[at]), math.exp(traffic.log_tpot[at])
            is_cut = num_tokens >= traffic.num_tokens.max()
            outcome = Outcome(
                arm=name,
                stratum=stratum,
                ttft_ms=round(ttft_ms, 3),
                tpot_ms=round(tpot_ms, 3),
                e2e_ms=round(ttft_ms + (num_tokens - 1) * tpot_ms, 3),
                num_tokens=num_tokens,
                finish_reason="length" if is_cut else "stop",
                is_empty=bool(traffic.is_empty[at]),
                is_looping=bool(traffic.is_looping[at]),
            )
            found.append(outcome)
        for prompt, score in enumerate(traffic.score[rollout, arm, look]):
            found.append(Outcome(arm=name, prompt=f"{look}-{prompt}", score=round(float(score), 4)))
    return found


def seen_of(traffic: Traffic, spec: GateSpec) -> Iterator[Seen]:
    """Yield what the gate sees between two looks, as `clients.rollout_gate.evidence` makes it of the same outcomes."""
    rollouts, _, looks, _ = traffic.stratum.shape
    difference = (traffic.score[:, 0] - traffic.score[:, 1]).astype(np.float64)
    won = [each.sum(axis=2).cumsum(axis=1) for each in gains(difference, spec.effects.quality)]
    total, squares = (each.sum(axis=2).cumsum(axis=1) for each in (difference, difference**2))
    longest = traffic.num_tokens.max()
    is_candidate = np.broadcast_to(np.array([True, False])[:, np.newaxis], (rollouts, 2, PER_LOOK))
    blanks = [Outcome(arm="", stratum=stratum) for stratum in range(int(traffic.stratum.max()) + 1)]
    works = {name: np.array([work(one) for one in blanks]) for name, work in _WORKS.items()}
    for look in range(looks):
        stratum = traffic.stratum[:, :, look]
        is_error = traffic.is_error[:, :, look]

        def told(values: Floats | NDArray[np.bool_] | Singles, is_error: NDArray[np.bool_] = is_error) -> Floats:
            return _flat(np.where(is_error, np.nan, values))

        num_tokens, log_ttft = traffic.num_tokens[:, :, look], traffic.log_ttft[:, :, look]
        values = {
            "ttft": told(log_ttft),
            "tpot": told(traffic.log_tpot[:, :, look]),
            "output_tokens": told(np.log(num_tokens)),
            "errors": _flat(is_error.astype(np.float64)),
            "empty": told(traffic.is_empty[:, :, look]),
            "looping": told(traffic.is_looping[:, :, look]),
            "cut": told(num_tokens >= longest),
        }
        if spec.ttft_target_ms is not None:
            values["ttft_over_target"] = told(log_ttft > math.log(spec.ttft_target_ms))
        groups = np.stack([_flat(stratum), np.full((rollouts, 2 * PER_LOOK), NO_GROUP)], axis=-1)
        unknown = np.full((rollouts, 2 * PER_LOOK), NO_UNIT)
        work = {name: each[_flat(stratum)] for name, each in works.items()}
        at_s = np.full((rollouts, 2 * PER_LOOK), LOOK_S * look)
        portion = Portion(values, work, _flat(is_candidate), unknown, groups, at_s)
        num = np.full(rollouts, float(PROMPTS_PER_LOOK * (look + 1)))
        yield Seen(portion, {"quality": Scores(num, *(each[:, look] for each in (total, squares, *won)))})


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    """Return [rollouts, arms, requests] as [rollouts, requests of both arms]."""
    return np.asarray(values.reshape(values.shape[0], -1))


def _common(model: LatencyModel, rollouts: int, looks: int, rng: np.random.Generator) -> Floats:
    """Return the hour's and the bursts' part of latency, [rollouts, 2, looks, 1]."""
    hour = np.arange(looks) * LOOK_S / model.drift_s + rng.random((rollouts, 1, 1))
    found = np.repeat(model.drift * np.sin(2 * np.pi * hour), 2, axis=1)
    found = found + model.burst_sd * _fading((rollouts, 1, looks, 1), model.burst_s, rng)[..., 0]
    found = found + model.own_burst_sd * _fading((rollouts, 2, looks, 1), model.own_burst_s, rng)[..., 0]
    return np.asarray(found[..., np.newaxis], np.float64)


def _fading(shape: tuple[int, ...], fades_s: float, rng: np.random.Generator) -> Singles:
    """Return standard normal numbers, autoregressive along axis 2: correlated by e^-(t / fades_s)."""
    found = rng.standard_normal(shape, np.float32)
    kept = np.float32(math.exp(-LOOK_S / fades_s))
    for look in range(1, shape[2]):
        found[:, :, look] = kept * found[:, :, look - 1] + np.sqrt(1 - kept**2) * found[:, :, look]
    return found


def _residual(normal: Singles, sd: float, quantiles: tuple[float, ...], rng: np.random.Generator) -> Singles:
    if not quantiles:
        return normal * np.float32(sd)
    # The recorded ones, evenly spaced in probability, with straight lines between.
    fine = np.interp(np.linspace(0, 1, 4001), np.linspace(0, 1, len(quantiles)), quantiles).astype(np.float32)
    return np.asarray(fine[rng.integers(0, fine.size, normal.shape, dtype=np.int16)])


def _tail(shape: tuple[int, ...], model: LatencyModel, rng: np.random.Generator) -> Singles:
    """Return the logarithm of the tail's factor; that of a Pareto variable is exponential."""
    found = np.zeros(shape, np.float32)
    if model.tail_share > 0:
        is_tail = rng.random(shape, np.float32) < model.tail_share
        found[is_tail] = rng.standard_exponential(int(is_tail.sum()), np.float32) / np.float32(model.tail_index)
    return found


def _choices(shares: Floats, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    edges = np.cumsum(shares / shares.sum())[:-1].astype(np.float32)
    found: NDArray[np.int64] = np.searchsorted(edges, rng.random(shape, np.float32), side="right")
    return found


def _log(values: list[float]) -> Singles:
    return np.log(np.array(values, np.float32))
