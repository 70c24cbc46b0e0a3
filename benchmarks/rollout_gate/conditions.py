# SPDX-License-Identifier: Apache-2.0
"""The conditions of simulated rollouts, one row each, and the faults of candidates.

None was made for the gate: they are those of production traffic that gates are known to fail on. Standard deviations
are of natural logarithms; both arms have each condition by itself unless a row says that they share it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Times in which errors come together.

    Attributes:
        every_s: mean time between two beginnings.
        last_s: mean length.
        share: share of requests that fail meanwhile.
    """

    every_s: float
    last_s: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The traffic and the engines of both arms.

    Attributes:
        ttft_sd, tpot_sd: spread of requests of equal work.
        output_sd: spread of answers' lengths.
        pareto: tail index of both times, in place of the normal distribution; None: normal.
        outliers: share of requests with both times a hundred times as long.
        hits: share of prompts of which nine tenths are in the cache.
        is_work_known: the server tells tokens and cache hits; else all that is known of a prompt is its length.
        own_batch_sd: spread of each engine's batch, which fades in 80 s: queues of their own.
        regime: by how many times an engine's times are longer in its slow regime; it changes every `regime_s` or so.
        drift_sd, burst_sd: spread of factors that both arms share, which fade in 600 and in 60 s.
        num_keys: users, each on one arm; 0: requests have no key.
        key_sd: spread of users: half of it in TTFT, a quarter in TPOT, all of it in answers' lengths.
        error_bursts: of each arm by itself; None: errors come by chance alone.
        errors: share of requests that fail by chance.
    """

    ttft_sd: float = 0.25
    tpot_sd: float = 0.12
    output_sd: float = 0.6
    pareto: float | None = None
    outliers: float = 0.0
    hits: float = 0.0
    is_work_known: bool = True
    own_batch_sd: float = 0.0
    regime: float = 1.0
    regime_s: float = 120.0
    drift_sd: float = 0.0
    burst_sd: float = 0.0
    num_keys: int = 0
    key_sd: float = 0.0
    error_bursts: Bursts | None = None
    errors: float = 0.001


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The faults of a candidate; by default none.

    Attributes:
        ttft, tpot, length: by how many times longer.
        of_tenant: by how many times both times are longer, for the tenant that has 5 % of the requests.
        of_long: by how many times TTFT is longer, for prompts of more than a thousand tokens.
        errors: share of requests that fail, where the baseline has none.
        slow: share of requests with ten times the TTFT.
        slow_decode: share of requests with four times the TPOT.
        garbled: share of answers; they loop.
        error_bursts: of the candidate alone.
    """

    ttft: float = 1.0
    tpot: float = 1.0
    length: float = 1.0
    of_tenant: float = 1.0
    of_long: float = 1.0
    errors: float = 0.0
    slow: float = 0.0
    slow_decode: float = 0.0
    garbled: float = 0.0
    error_bursts: Bursts | None = None


_STRONG, _MILD = 1.0, 0.3
_FEW_KEYS = {_STRONG: 1000, _MILD: 200}
CONDITIONS: dict[str, Conditions] = {
    "plain": Conditions(),
    "Pareto 2.2": Conditions(pareto=2.2),
    "5 % of requests 100 times as long": Conditions(outliers=0.05),
    "prefix hits and misses": Conditions(hits=0.6),
    "prefix hits and misses that nobody tells": Conditions(hits=0.6, is_work_known=False),
    "own queues": Conditions(own_batch_sd=0.5),
    "own queues, prefix hits and misses": Conditions(own_batch_sd=0.5, hits=0.6),
    "own regimes, 15 % slower, 2 minutes": Conditions(regime=1.15),
    "shared drift": Conditions(drift_sd=0.3),
    "shared bursts": Conditions(burst_sd=0.5),
    "errors in bursts of 5 s": Conditions(error_bursts=Bursts(every_s=400, last_s=5, share=0.8)),
    "errors in bursts of 30 s": Conditions(error_bursts=Bursts(every_s=600, last_s=30, share=0.5)),
    "errors in bursts of 2 minutes": Conditions(error_bursts=Bursts(every_s=1800, last_s=120, share=0.3)),
    **{
        f"{num} users, {'strong' if sd == _STRONG else 'mild'} differences": Conditions(num_keys=num, key_sd=sd)
        for sd in (_STRONG, _MILD)
        for num in (60, 200, 300, 1000, 5000)
    },
}
# Conditions in which equal releases cannot be proven equal within 4,000 requests of each arm: few users tell of few,
# and bursts of errors are as few as they are.
UNPROVABLE = tuple(
    name
    for name, given in CONDITIONS.items()
    if given.error_bursts is not None or 0 < given.num_keys <= _FEW_KEYS.get(given.key_sd, 0)
)
FAULTS: dict[str, Fault] = {
    "prefill 10 % longer": Fault(ttft=1.1),
    "decode 5 % longer": Fault(tpot=1.05),
    "1 % errors, the baseline has none": Fault(errors=0.01),
    "2 % of requests with ten times the TTFT": Fault(slow=0.02),
    "20 % of requests with four times the TPOT": Fault(slow_decode=0.2),
    "answers 20 % shorter": Fault(length=0.8),
    "3 % of answers garbled": Fault(garbled=0.03),
    "one tenant of 5 %: twice as slow": Fault(of_tenant=2.0),
    "prompts of over 1,000 tokens: TTFT 50 % longer": Fault(of_long=1.5),
    "errors in bursts, the baseline has none": Fault(error_bursts=Bursts(every_s=60, last_s=5, share=0.8)),
}
"""Faults by name; each is tried under the conditions in `POWER_CONDITIONS`."""
POWER_CONDITIONS = ("plain", "own queues", "prefix hits and misses", "own queues, prefix hits and misses")
