# SPDX-License-Identifier: Apache-2.0
"""Sequential tests of an event's rate: higher in one arm than in the other, or higher than a limit.

They are exact however often one looks and however rare the event is. All arrays have any leading dimensions.

Given that an event happened, and if it is as likely in both arms, it is the candidate's with the probability that a
request is. A bet on that, mixed over all larger probabilities, is the test: Lindon and Malek, "Anytime-valid inference
for multinomial count data", NeurIPS 2022. The candidate's share of the requests is taken as it was, not as it was
planned: of common events that makes the test shy, of rare ones nothing. Rates are bounded by Robbins' beta-binomial
mixture ("Statistical methods related to the law of the iterated logarithm", Annals of Mathematical Statistics 41,
1970). Neither is in scipy or statsmodels; the special functions are.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincc, betaln

from clients.rollout_gate.statistics.mean_test import Floats, boundary, tuning

_PRIOR = 0.5  # Beta(1/2, 1/2): Jeffreys'
_NORMAL_FROM = 30  # events of both arms, and as many requests without one: a bound for large samples is the tighter
_SMALLEST = 1e-300
_BISECTIONS = 26  # to 1.5e-8


def log_evidence_over(events: Floats, others: Floats, share: Floats) -> Floats:
    """Return the logarithm of the evidence that events come with a probability of more than `share`.

    log of the integral of t^events (1-t)^others over Beta(1/2, 1/2) cut at share, over share^events (1-share)^others.
    Where the probability is at most `share`, it exceeds log(1 / alpha) at any time with a chance of at most alpha
    (Ville's inequality).

    Args:
        events: [...] requests with the event (or the candidate's events).
        others: [...] requests without it (or the baseline's events).
        share: [...] in [0, 1]; 0 or 1: nothing can be told.
    """
    inside = np.clip(share, 1e-9, 1 - 1e-9)
    tail, cut = betaincc(events + _PRIOR, others + _PRIOR, inside), betaincc(_PRIOR, _PRIOR, inside)
    mixed = betaln(events + _PRIOR, others + _PRIOR) - betaln(_PRIOR, _PRIOR)
    found = mixed + np.log(np.maximum(tail, _SMALLEST)) - np.log(cut)
    found = found - events * np.log(inside) - others * np.log1p(-inside)
    # A tail too small to be told: what was seen is far below `share`, and all above it explains it worse than share.
    found = np.where(tail > _SMALLEST, found, np.minimum(found, 0.0))
    return np.where((share > 0) & (share < 1), found, 0.0)


def rate_bound(events: Floats, num: Floats, alpha: float, *, is_upper: bool) -> Floats:
    """Return the rate that is crossed at any time with a chance of at most `alpha`.

    It is 1 (upper) or 0 (lower) where nothing was seen.

    Robbins' mixture: of the rates p with B(x + 1/2, n - x + 1/2) / B(1/2, 1/2) < p^x (1 - p)^(n - x) / alpha the last.
    """
    if events.size > 1:  # of many looks, most have the same few counts
        pairs, where = np.unique(events + 1j * num, return_inverse=True)
        if pairs.size < events.size:
            return rate_bound(pairs.real, pairs.imag, alpha, is_upper=is_upper)[where].reshape(events.shape)
    observed = events / np.maximum(num, 1.0)
    mixed = betaln(events + _PRIOR, num - events + _PRIOR) - betaln(_PRIOR, _PRIOR)
    inner, outer = observed, np.full_like(observed, 1.0 if is_upper else 0.0)
    for _ in range(_BISECTIONS):  # the likelihood falls from `observed` outwards
        middle = np.clip((inner + outer) / 2, 1e-12, 1 - 1e-12)
        likelihood = events * np.log(middle) + (num - events) * np.log1p(-middle)
        is_within = mixed < likelihood - np.log(alpha)
        inner, outer = np.where(is_within, middle, inner), np.where(is_within, outer, middle)
    return np.where(num > 0, outer, 1.0 if is_upper else 0.0)


def excess_bound(events: NDArray[np.float64], num: NDArray[np.float64], effect: float, alpha: float) -> Floats:
    """Return an upper bound of the candidate's rate less the baseline's that holds however often one looks.

    Few events: the difference of Robbins' bounds, each arm at half of `alpha`. Many events, which are nearly normal:
    the bound of `clients.rollout_gate.statistics.mean_test`, which is narrower, with the variance that the candidate
    would have if its rate were the baseline's and the effect: few events that were seen are no proof that few are to be
    seen.

    Args:
        events: [..., 2] events of the candidate and the baseline.
        num: [..., 2] requests of them.
        effect: excess that the bound shall exclude where there is none; the bound is narrow there.
        alpha: chance of an error, of both arms together.
    """
    upper = rate_bound(events[..., 0], num[..., 0], alpha / 2, is_upper=True)
    lower = rate_bound(events[..., 1], num[..., 1], alpha / 2, is_upper=False)
    total, seen = events.sum(axis=-1), num.sum(axis=-1)
    is_many = (np.minimum(total, seen - total) >= _NORMAL_FROM) & (num.min(axis=-1) > 0)
    size = np.maximum(num, 1.0)
    rate = events / size
    feared = np.stack([np.clip(rate[..., 1] + effect, rate[..., 0], 1.0), rate[..., 1]], axis=-1)
    variance = np.maximum(feared * (1 - feared) / size, 1e-12).sum(axis=-1)
    normal = rate[..., 0] - rate[..., 1] + boundary(1 / variance, tuning(effect, alpha), alpha)
    return np.where(is_many, normal, upper - lower)
