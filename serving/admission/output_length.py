# SPDX-License-Identifier: Apache-2.0
"""Output-length predictions by what a tenant's earlier requests made."""

import math
from collections import OrderedDict

from serving.engines.seam.base import GenerationRequest

_BUCKETS_PER_OCTAVE = 4  # so an estimate is at most 19 % above what was seen
_NUM_BUCKETS = 24 * _BUCKETS_PER_OCTAVE  # up to 16 million tokens
_MIN_SAMPLES = 20.0
_FORGET = 0.99  # of each sample's weight with every one that follows: the last hundred count
_MAX_TENANTS = 10_000


class LearnedForecast:
    """The prediction by a quantile of what a tenant's earlier requests made; `max_tokens` until there are enough."""

    def __init__(self, quantile: float) -> None:
        self._quantile = quantile
        self._seen: OrderedDict[str, _Lengths] = OrderedDict()  # the least recently used first

    def expected_tokens(self, request: GenerationRequest) -> int:
        """Return the length at which `quantile` of the tenant's requests had ended, from 1 to `max_tokens`."""
        most = request.sampling.max_tokens
        lengths = self._seen.get(request.scheduling.tenant)
        if lengths is None or lengths.num_samples < _MIN_SAMPLES:
            return most
        return max(1, min(most, lengths.quantile(self._quantile)))

    def learn(self, request: GenerationRequest, num_output_tokens: int) -> None:
        """Learn the output length of a request that ended by itself; one that was cancelled teaches nothing."""
        tenant = request.scheduling.tenant
        lengths = self._seen.get(tenant)
        if lengths is None:
            lengths = self._seen[tenant] = _Lengths()
            if len(self._seen) > _MAX_TENANTS:
                self._seen.popitem(last=False)
        self._seen.move_to_end(tenant)
        lengths.add(num_output_tokens)


class _Lengths:
    """A histogram of output lengths in steps of a quarter octave, in which old samples fade."""

    def __init__(self) -> None:
        self._weights = [0.0] * _NUM_BUCKETS
        self._unit = 1.0  # of the next sample: it grows, instead of all others shrinking
        self._total = 0.0

    @property
    def num_samples(self) -> float:
        """Return the number of samples by weight; never above 1 / (1 - _FORGET)."""
        return self._total / self._unit if self._total else 0.0

    def add(self, num_tokens: int) -> None:
        self._unit /= _FORGET
        self._total += self._unit
        self._weights[_bucket_of(num_tokens)] += self._unit
        if self._unit > 1e100:
            self._weights = [weight / self._unit for weight in self._weights]
            self._total, self._unit = self._total / self._unit, 1.0

    def quantile(self, fraction: float) -> int:
        """Return the upper end of the bucket that a quantile falls in."""
        wanted, seen = fraction * self._total, 0.0
        last = 0
        for bucket, weight in enumerate(self._weights):
            if weight:
                last = bucket
                seen += weight
                if seen >= wanted:
                    break
        return int(2 ** (last / _BUCKETS_PER_OCTAVE))


def _bucket_of(num_tokens: int) -> int:
    """Return the first bucket with an upper end, 2 ** (bucket / 4), that is not below `num_tokens`."""
    return min(_NUM_BUCKETS - 1, math.ceil(_BUCKETS_PER_OCTAVE * math.log2(max(1, num_tokens)) - 1e-9))
