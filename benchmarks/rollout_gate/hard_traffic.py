# SPDX-License-Identifier: Apache-2.0
"""The requests of many simulated rollouts at once, look by look, after conditions and a candidate's fault.

Both arms get 2 requests a second, 20 in each of the 10 s between two looks; arm 0 is the candidate. An engine prefills
20 tokens in a millisecond beside 3 ms, and a step takes 10 ms and 0.4 ms for each sequence.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rollout_gate.conditions import Bursts, Conditions, Fault
from benchmarks.rollout_gate.simulated_rollouts import LOOK_S, PER_LOOK
from clients.rollout_gate.statistics.equal_work import broken_lines
from clients.rollout_gate.statistics.groups import NUM_STRATA
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import NO_UNIT, NUM_UNIT_BUCKETS
from clients.rollout_gate.statistics.work import KV_KNOTS, PROMPT_KNOTS, SEQS_KNOTS, STEP_PROMPT_KNOTS
from clients.rollout_gate.traffic_sums import Portion

MAX_TOKENS = 400
_BATCH, _BATCH_FADE_S = 8.0, 80.0
_LOOPS = 0.0005
_TENANTS = np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.05, 0.05, 0.03, 0.02, 0.02])
_SLOW_TENANT, _LONG = 5, 1000
_KEY_PARTS = {"ttft": 0.5, "tpot": 0.25, "length": 1.0}


class HardTraffic:
    """The traffic of some rollouts, side by side.

    Args:
        rollouts: number of rollouts.
        rng: source of chance; one state gives one traffic.
    """

    def __init__(self, conditions: Conditions, fault: Fault, *, rollouts: int, rng: np.random.Generator) -> None:
        self._is, self._fault, self._rng, self._rollouts = conditions, fault, rng, rollouts
        arms = (rollouts, 2)
        self._batch = rng.standard_normal(arms)
        self._is_slow = rng.random(arms) < 0.5
        self._drift, self._burst = rng.standard_normal((2, rollouts, 1))
        self._errors = [_BurstTimes(each, arms, rng) for each in (conditions.error_bursts, fault.error_bursts)]
        self._keys = _Keys(conditions, rollouts, rng) if conditions.num_keys else None

    def portions(self, looks: int) -> Iterator[Portion]:
        """Yield the requests between two looks, `looks` times."""
        for look in range(looks):
            yield self._portion(look * LOOK_S)
            self._go_on()

    def _go_on(self) -> None:
        """Let what fades fade for the time of a look."""
        rng = self._rng
        self._batch = _faded(self._batch, _BATCH_FADE_S, rng)
        self._drift, self._burst = _faded(self._drift, 600.0, rng), _faded(self._burst, 60.0, rng)
        self._is_slow ^= rng.random(self._is_slow.shape) < LOOK_S / self._is.regime_s

    def _portion(self, begin_s: float) -> Portion:
        given, fault, rng = self._is, self._fault, self._rng
        shape = (self._rollouts, 2, PER_LOOK)
        is_candidate = np.broadcast_to(np.array([True, False])[:, np.newaxis], shape)
        tokens = np.exp(rng.normal(6, 1, shape)).clip(8, 16_000)
        cached = np.where(rng.random(shape) < given.hits, 0.9 * tokens, 0.0)
        computed = tokens - cached
        seqs = np.broadcast_to((_BATCH * np.exp(given.own_batch_sd * self._batch))[..., np.newaxis], shape)
        shared = given.drift_sd * self._drift + given.burst_sd * self._burst
        own = np.where(self._is_slow, math.log(given.regime), 0.0)
        common = (shared + own)[..., np.newaxis]
        keys = {} if self._keys is None else self._keys.draw(rng)
        ttft = np.log(3 + computed / 20) + self._spread(given.ttft_sd, shape) + common + keys.get("ttft", 0.0)
        tpot = np.log(10 + 0.4 * seqs) + self._spread(given.tpot_sd, shape) + common / 2 + keys.get("tpot", 0.0)
        ttft += is_candidate * (math.log(fault.ttft) + math.log(10) * (rng.random(shape) < fault.slow))
        tpot += is_candidate * (math.log(fault.tpot) + math.log(4) * (rng.random(shape) < fault.slow_decode))
        tenant = np.searchsorted(_TENANTS.cumsum()[:-1], rng.random(shape), side="right")
        of_tenant = is_candidate * (tenant == _SLOW_TENANT) * math.log(fault.of_tenant)
        ttft += of_tenant + is_candidate * (tokens > _LONG) * math.log(fault.of_long)
        tpot += of_tenant
        stratum = np.clip(np.floor(np.log2(tokens / 16)) + 1, 0, NUM_STRATA - 1).astype(np.int64)  # 4 characters each
        length = 4.5 + rng.normal(0, given.output_sd, shape) + keys.get("length", 0.0)
        output = np.rint(np.exp(length + is_candidate * math.log(fault.length))).clip(2, MAX_TOKENS)
        at_s = begin_s + np.sort(rng.random(shape), axis=-1) * LOOK_S
        is_error = self._are_errors(at_s, is_candidate)
        is_looping = rng.random(shape) < _LOOPS + is_candidate * fault.garbled

        def told(values: Floats) -> Floats:
            return _flat(np.where(is_error, np.nan, values))

        hit = (cached > 0) * float(given.is_work_known)
        size = np.log2(1 + (computed if given.is_work_known else tokens))
        zero = np.zeros(shape)
        work = {
            "ttft": [*broken_lines(size, PROMPT_KNOTS), hit, np.log2(seqs)],
            "tpot": [
                *broken_lines(np.log2(seqs), SEQS_KNOTS),
                *broken_lines(zero, STEP_PROMPT_KNOTS),
                *broken_lines(np.log2(1 + seqs * 500), KV_KNOTS),
            ],
            "output_tokens": [np.log2(1 + tokens)],
        }
        return Portion(
            {
                "ttft": told(ttft),
                "tpot": told(tpot),
                "output_tokens": told(np.log(output)),
                "errors": _flat(is_error.astype(np.float64)),
                "empty": told(zero),
                "looping": told(is_looping.astype(np.float64)),
                "cut": told((output >= MAX_TOKENS).astype(np.float64)),
            },
            {name: np.stack([_flat(each) for each in features], axis=-1) for name, features in work.items()},
            _flat(is_candidate),
            _flat(keys["unit"].astype(np.int64)) if keys else np.full((self._rollouts, 2 * PER_LOOK), NO_UNIT),
            np.stack([_flat(stratum), NUM_STRATA + _flat(tenant)], axis=-1),
            _flat(at_s),
        )

    def _spread(self, sd: float, shape: tuple[int, ...]) -> Floats:
        given, rng = self._is, self._rng
        found = rng.normal(0, sd, shape) if given.pareto is None else rng.exponential(1 / given.pareto, shape)
        return np.asarray(found + math.log(100) * (rng.random(shape) < given.outliers))

    def _are_errors(self, at_s: Floats, is_candidate: NDArray[np.bool_]) -> NDArray[np.bool_]:
        of_both, of_candidate = self._errors
        base = 0.0 if self._fault.errors or self._fault.error_bursts else self._is.errors
        chance = base + of_both.chance(at_s) + is_candidate * (self._fault.errors + of_candidate.chance(at_s))
        return np.asarray(self._rng.random(at_s.shape) < chance)


class _BurstTimes:
    """The newest burst of each arm, which has begun or will."""

    def __init__(self, bursts: Bursts | None, arms: tuple[int, int], rng: np.random.Generator) -> None:
        self._bursts, self._rng = bursts, rng
        self._ends_s = np.zeros(arms)
        self._begins_s = np.full(arms, np.inf)
        if bursts is not None:
            self._next(np.ones(arms, bool))

    def _next(self, where: NDArray[np.bool_]) -> None:
        assert self._bursts is not None
        begins_s = self._ends_s + self._rng.exponential(self._bursts.every_s, self._ends_s.shape)
        ends_s = begins_s + self._rng.exponential(self._bursts.last_s, self._ends_s.shape)
        self._begins_s, self._ends_s = np.where(where, begins_s, self._begins_s), np.where(where, ends_s, self._ends_s)

    def chance(self, at_s: Floats) -> Floats:
        """Return the chance that each request fails: [..., requests], at rising times."""
        found = np.zeros(at_s.shape)
        if self._bursts is None:
            return found
        newest_s = at_s[..., -1]
        while True:
            inside = (at_s >= self._begins_s[..., np.newaxis]) & (at_s < self._ends_s[..., np.newaxis])
            found = np.where(inside, self._bursts.share, found)
            is_over = self._ends_s <= newest_s
            if not is_over.any():
                return found
            self._next(is_over)


class _Keys:
    """The users of each rollout, each on one arm by chance."""

    def __init__(self, conditions: Conditions, rollouts: int, rng: np.random.Generator) -> None:
        num = conditions.num_keys
        is_candidate = rng.random((rollouts, num)) < 0.5
        self._order = np.argsort(~is_candidate, axis=1)  # the candidate's first
        self._num_candidate = np.clip(is_candidate.sum(axis=1), 1, num - 1)
        self._num = num
        self._parts = {
            name: rng.normal(0, part * conditions.key_sd, (rollouts, num)) for name, part in _KEY_PARTS.items()
        }

    def draw(self, rng: np.random.Generator) -> dict[str, Floats]:
        """Return what the users of a look's requests add to each figure, and their `unit`s: [rollouts, 2, requests]."""
        place = rng.random((len(self._order), 2, PER_LOOK))
        split = self._num_candidate[:, np.newaxis]
        at = np.stack([place[:, 0] * split, split + place[:, 1] * (self._num - split)], axis=1).astype(np.int64)
        at = np.minimum(at, self._num - 1)
        rollout = np.arange(len(self._order))[:, np.newaxis, np.newaxis]
        user = self._order[rollout, at]
        return {name: part[rollout, user] for name, part in self._parts.items()} | {"unit": user % NUM_UNIT_BUCKETS}


def _faded(state: Floats, fade_s: float, rng: np.random.Generator) -> Floats:
    kept = math.exp(-LOOK_S / fade_s)
    return np.asarray(kept * state + math.sqrt(1 - kept**2) * rng.standard_normal(state.shape))


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    """Return [rollouts, arms, requests] as [rollouts, requests of both arms]."""
    return np.asarray(values.reshape(values.shape[0], -1))
