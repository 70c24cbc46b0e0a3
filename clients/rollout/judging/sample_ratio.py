# SPDX-License-Identifier: Apache-2.0
"""The test for a sample ratio mismatch: arms that got fewer requests than their shares; exact at every look.

Fewer answers of one arm than its share says that what is missing is not missing by chance: requests that never end,
clients that die of an arm, a split that is broken. What the others say is no sample then, and no figure holds.
Source: Lindon and Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022.
"""

import math
from collections.abc import Mapping

ALPHA = 0.001
_CONCENTRATION = 100.0  # of the mixture around the shares: narrow where a mismatch of some percent is looked for


def log_evidence(counts: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """Return the logarithm of the evidence, by the counts, that the arms' true shares are not `shares`.

    Args:
        counts: by arm; an arm that is not named has none.
        shares: by arm, above 0, that add up to 1.

    Returns:
        natural logarithm of a mixture over Dirichlet(100 shares) of the likelihood ratio.
    """
    total = sum(counts.get(arm, 0) for arm in shares)
    found = math.lgamma(_CONCENTRATION) - math.lgamma(_CONCENTRATION + total)
    for arm, share in shares.items():
        count, prior = counts.get(arm, 0), _CONCENTRATION * share
        found += math.lgamma(prior + count) - math.lgamma(prior) - count * math.log(share)
    return found


def mismatch(counts: Mapping[str, int], shares: Mapping[str, float], *, alpha: float = ALPHA) -> str:
    """Return a sentence about a mismatch; "" while chance explains the counts.

    Args:
        alpha: chance of a false alarm, over all looks.
    """
    if log_evidence(counts, shares) < math.log(1 / alpha):
        return ""
    total = sum(counts.get(arm, 0) for arm in shares)
    found = ", ".join(f"{arm} {counts.get(arm, 0) / total:.1%} for {share:.1%}" for arm, share in shares.items())
    return f"sample ratio mismatch: {found} of {total}; what is missing is not so by chance, and no figure holds"
