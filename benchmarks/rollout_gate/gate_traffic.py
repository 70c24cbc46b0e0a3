# SPDX-License-Identifier: Apache-2.0
"""Many simulated rollouts at once: requests of both arms after a latency model, and the gate's sums of them.

Both arms get 2 requests a second, 20 in each of the 10 s between two looks; arm 0 is the candidate.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.rollout_gate.latency_models import LatencyModel
from clients.rollout_gate.evidence import MIN_SLOW_REFERENCE
from clients.rollout_gate.fading import Differences, Times, differences_of, own_variance
from clients.rollout_gate.findings import Counts, Level, Sample, Scores
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.mean_test import Floats
from clients.rollout_gate.score_test import gains
from ensemble_configs.split.outcome import Outcome

PER_LOOK = 20  # requests of each arm
LOOK_S = 10.0
PROMPTS_PER_LOOK = 1  # of the held-out set, on both arms
_GOOD_SCORE = 0.8

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

    def log_e2e_per_token(self) -> Singles:
        """Return the logarithm of (TTFT + (tokens - 1) TPOT) / tokens."""
        whole = np.exp(self.log_ttft) + (self.num_tokens - 1) * np.exp(self.log_tpot)
        return np.asarray(np.log(whole / self.num_tokens))


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


def sample_of(traffic: Traffic, spec: GateSpec) -> Sample:
    """Return the gate's sums after each look: leading dimensions [rollouts, looks].

    They are as `clients.rollout_gate.evidence` makes them of outcomes, which a test compares; what differs is only that
    all looks are made at once. A look is a block.
    """
    answered = ~traffic.is_error
    values = {
        "ttft": traffic.log_ttft,
        "tpot": traffic.log_tpot,
        "e2e_per_token": traffic.log_e2e_per_token(),
        "output_tokens": np.log(traffic.num_tokens),
    }
    cells = {name: _cells(one, traffic.stratum, answered) for name, one in values.items()}
    is_slow, is_judged = _slow(traffic, cells["ttft"], spec)
    cells["slow"] = _cells(is_slow.astype(np.float32), traffic.stratum, is_judged & answered)
    counts = {
        "slow": _counts(is_slow & answered, is_judged & answered),
        "errors": _counts(traffic.is_error, np.ones_like(answered)),
        "empty": _counts(traffic.is_empty & answered, answered),
        "looping": _counts(traffic.is_looping & answered, answered),
        "cut": _counts((traffic.num_tokens >= traffic.num_tokens.max()) & answered, answered),
    }
    if spec.ttft_target_ms is not None:
        is_over = traffic.log_ttft > math.log(spec.ttft_target_ms)
        counts["ttft_over_target"] = _counts(is_over & answered, answered)
        cells["ttft_over_target"] = _cells(is_over.astype(np.float32), traffic.stratum, answered)
    difference = (traffic.score[:, 0] - traffic.score[:, 1]).astype(np.float64)
    won = [each.sum(axis=2).cumsum(axis=1) for each in gains(difference, spec.effects.quality)]
    sums = [each.sum(axis=2).cumsum(axis=1) for each in (difference, difference**2)]
    num = np.broadcast_to(np.arange(1.0, difference.shape[1] + 1) * PROMPTS_PER_LOOK, difference.shape[:2])
    scores = {"quality": Scores(num, *sums, *won)}
    look = np.arange(difference.shape[1], dtype=np.float64)
    return Sample(
        num_requests=np.stack([num * (PER_LOOK // PROMPTS_PER_LOOK)] * 2, axis=-1),
        times=Times(LOOK_S * look, look + 1),
        levels={name: _levels(cells[name]) for name in values},
        differences={name: _differences(one) for name, one in cells.items()},
        counts=counts,
        scores=scores,
    )


class _Cells(NamedTuple):
    """Sums over each look's own requests: [rollouts, 2, looks, strata]."""

    num: Floats
    mean: Floats
    m2: Floats


def _cells(values: Singles, stratum: NDArray[np.int64], kept: NDArray[np.bool_]) -> _Cells:
    shape, strata = values.shape[:3], int(stratum.max()) + 1
    at = np.arange(math.prod(shape), dtype=np.int64).reshape(*shape, 1) * strata + stratum
    at, known = at[kept], values[kept].astype(np.float64)
    centre = float(known.mean()) if known.size else 0.0  # near all of them, so that the squares lose nothing
    known -= centre
    size = math.prod(shape) * strata
    num, total, squares = (
        np.bincount(at, weights, size).reshape(*shape, strata).astype(np.float64) for weights in (None, known, known**2)
    )
    mean = total / np.maximum(num, 1)
    return _Cells(num, np.where(num > 0, mean + centre, 0.0), np.maximum(squares - num * mean**2, 0))


def _levels(cells: _Cells) -> tuple[Level, Level]:
    """Return the levels over all strata, after each look."""
    num = cells.num.sum(axis=3).cumsum(axis=2)
    mean = (cells.num * cells.mean).sum(axis=3).cumsum(axis=2) / np.maximum(num, 1)
    return Level(num[:, 0], mean[:, 0]), Level(num[:, 1], mean[:, 1])


def _differences(cells: _Cells) -> Differences:
    """Return the differences after each look, as `clients.rollout_gate.blocks` has them of blocks of one look."""
    shared = cells.num[:, 0] * cells.num[:, 1] / np.maximum(cells.num.sum(axis=1), 1)
    weight = shared.sum(axis=2)
    total = (shared * (cells.mean[:, 0] - cells.mean[:, 1])).sum(axis=2)
    within = (np.maximum(cells.num - 1, 0), cells.m2, shared[:, np.newaxis] ** 2 / np.maximum(cells.num, 1))
    own = own_variance(*(np.moveaxis(one.cumsum(axis=2), 1, 3) for one in within))
    num_pairs, squares = _pairs(total, weight)
    return differences_of(total.cumsum(axis=1), weight.cumsum(axis=1), own, num_pairs=num_pairs, squares=squares)


def _pairs(total: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return how many pairs of neighbours there were, and the squares of what they differ by.

    Both are [rollouts, looks, scales].
    """
    rollouts, looks = weight.shape
    scales = looks.bit_length() - 1
    num, squares = np.zeros((rollouts, looks, scales)), np.zeros((rollouts, looks, scales))
    for scale in range(scales):
        whole = weight.shape[1] // 2
        totals, weights = (one[:, : 2 * whole].reshape(rollouts, whole, 2) for one in (total, weight))
        total, weight = totals.sum(axis=2), weights.sum(axis=2)
        difference = np.diff(totals / np.maximum(weights, 1e-9), axis=2)[..., 0]
        ends = (np.arange(whole) + 1) * 2 ** (scale + 1) - 1
        num[:, ends, scale] = weights.min(axis=2) > 0
        squares[:, ends, scale] = difference**2 * weights.prod(axis=2) / np.maximum(weight, 1e-9)
    return num.cumsum(axis=1), squares.cumsum(axis=1)


def _counts(happened: NDArray[np.bool_], possible: NDArray[np.bool_]) -> Counts:
    found = [np.moveaxis(one.sum(axis=3).cumsum(axis=2), 1, 2).astype(np.float64) for one in (happened, possible)]
    return Counts(*found)


def _slow(traffic: Traffic, ttft: _Cells, spec: GateSpec) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    # What the baseline was up to the look before: [rollouts, looks, strata].
    num = ttft.num[:, 1].cumsum(axis=1)
    mean = (ttft.num * ttft.mean)[:, 1].cumsum(axis=1) / np.maximum(num, 1)
    limit = np.where(num >= MIN_SLOW_REFERENCE, mean + math.log(spec.slow_factor), np.inf)
    limit = np.concatenate([np.full_like(limit[:, :1], np.inf), limit[:, :-1]], axis=1)[:, np.newaxis]
    shape = (*traffic.stratum.shape[:3], limit.shape[-1])
    limits = np.take_along_axis(np.broadcast_to(limit, shape), traffic.stratum, axis=3)
    return traffic.log_ttft > limits, np.isfinite(limits)


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
