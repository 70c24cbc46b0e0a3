# SPDX-License-Identifier: Apache-2.0
"""The spread over keys: what the split gave to the arms by chance is keys, not requests."""

import numpy as np
import pytest
from gate_rows import rows_of

from clients.rollout_gate.statistics.clusters import Clusters
from clients.rollout_gate.statistics.rows import NO_UNIT, NUM_UNIT_BUCKETS, unit_bucket
from ensemble_configs.split.places import unit_of


def clusters_of(num_keys: int, sd_of_keys: float, *, seed: int, requests: int = 4000) -> tuple[Clusters, float]:
    """Return clusters of keys that differ, each on one arm, and the difference of the arms' means."""
    rng = np.random.default_rng(seed)
    is_candidate, level = rng.random(num_keys) < 0.5, rng.normal(0, sd_of_keys, num_keys)
    key = rng.integers(0, num_keys, requests)
    value = level[key] + rng.normal(0, 1, requests)
    found, arm = Clusters(()), is_candidate[key]
    found.add(rows_of(value, arm, unit=key), value)
    return found, value[arm].mean() - value[~arm].mean()


@pytest.mark.parametrize(("num_keys", "sd_of_keys"), [(60, 1.0), (200, 0.3), (200, 0.0)])
def test_the_variance_is_that_of_the_difference_over_many_splits(num_keys: int, sd_of_keys: float) -> None:
    found = [clusters_of(num_keys, sd_of_keys, seed=seed) for seed in range(200)]
    told = []
    for one, _ in found:
        num = one.num.sum(axis=-2)
        told.append(float(one.spread(np.ones(2), num).inflation * (1 / num).sum()))
    assert np.mean(told) == pytest.approx(np.var([difference for _, difference in found]), rel=0.25)


def test_few_keys_are_few_degrees_of_freedom() -> None:
    few, _ = clusters_of(20, 1.0, seed=1)
    many, _ = clusters_of(200, 1.0, seed=1)
    assert float(few.spread(np.ones(2), few.num.sum(axis=-2)).freedom) < 12
    assert 60 < float(many.spread(np.ones(2), many.num.sum(axis=-2)).freedom) < 100


def test_one_key_that_has_most_requests_counts_as_few_keys() -> None:
    found = Clusters(())
    key = np.concatenate([np.zeros(900, int), np.arange(1, 101)])
    arm = np.concatenate([np.ones(900, bool), np.arange(100) % 2 == 0])
    value = np.random.default_rng(1).normal(size=1000)
    found.add(rows_of(value, arm, unit=key), value)
    assert float(found.spread(np.ones(2), np.array([950.0, 50.0])).freedom) == 1


def test_without_keys_requests_are_independent() -> None:
    found = Clusters(())
    found.add(rows_of([1.0, 2.0], [True, False]), np.array([1.0, 2.0]))
    spread = found.spread(np.ones(2), np.ones(2))
    assert (float(spread.inflation), float(spread.freedom)) == (1.0, np.inf)


def test_a_key_has_the_same_bucket_always_and_none_has_none() -> None:
    assert unit_bucket("") == NO_UNIT
    buckets = {unit_bucket(unit_of(f"user {number}", "seed")) for number in range(5000)}
    assert buckets == set(range(NUM_UNIT_BUCKETS))
    assert unit_bucket("told by a client, and no hexadecimal digits") >= 0
    assert unit_bucket(unit_of("user 1", "seed")) == unit_bucket(unit_of("user 1", "seed"))
