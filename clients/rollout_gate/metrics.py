# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, one row each: what is read from an outcome, how it is tested, its part of the error budget.

A new metric is a row here, a field of `clients.rollout_gate.gate_spec.EffectSizes` and a test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.statistics.work import decode_work, prefill_work, prompt_work
from ensemble_configs.split.outcome import Outcome

# log_mean: of a positive figure's logarithm, within strata; share: of requests to which something happened; score: of
# prompts that both arms answered, in pairs; groups: of a `log_mean`, by tenant and by length of prompt.
Kind = Literal["log_mean", "share", "score", "groups"]
LOGARITHMS = ("log_mean", "groups")  # kinds whose changes are logarithms


@dataclass(frozen=True)
class Metric:
    """A row of the table.

    Attributes:
        title: name in a report.
        of: the figure of one outcome, for `share` 0 or 1; None: the outcome says nothing about it.
        work: what of a `log_mean` is taken out before the arms are compared; None: nothing.
        weight: part of `GateSpec.alpha`, beside the other rows' weights.
        is_two_sided: less is as bad as more.
        is_optional: not every rollout has it; it can fail one, and no pass waits for it.
        bound: of a `log_mean`, in standard deviations: figures beyond count as much as one there.
        is_of_queue: figures are large together, or events come together, while an arm's queue is long.
        is_of_outages: events of the `share` come together while an arm, or what it needs, is out of order.
        far_over: the `log_mean` of which an event of the `share` is a figure far over its like, by a
            factor of `GateSpec`; "": no such event.
    """

    title: str
    kind: Kind
    of: Callable[[Outcome, GateSpec], float | None]
    work: Callable[[Outcome], tuple[float, ...]] | None = None
    weight: float = 1.0
    is_two_sided: bool = False
    is_optional: bool = False
    is_of_queue: bool = False
    is_of_outages: bool = False
    far_over: str = ""
    bound: float = 1.5

    @property
    def num_features(self) -> int:
        """Return the number of features of the work."""
        return 0 if self.work is None else len(self.work(Outcome(arm="")))


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def _ttft(outcome: Outcome, _: GateSpec) -> float | None:
    """Return the TTFT without the queue, where the server tells how long that was."""
    if outcome.ttft_ms is None or outcome.queue_ms is None:
        return _log(outcome.ttft_ms)
    return _log(max(outcome.ttft_ms - outcome.queue_ms, outcome.prefill_ms or 0.0))


def _output_tokens(outcome: Outcome, _: GateSpec) -> float | None:
    return None if outcome.error else _log(outcome.num_tokens)


def _over_target(outcome: Outcome, spec: GateSpec) -> float | None:
    if outcome.ttft_ms is None or spec.ttft_target_ms is None:
        return None
    return float(outcome.ttft_ms > spec.ttft_target_ms)


def _nothing(outcome: Outcome, spec: GateSpec) -> None:
    """Return nothing: the metric follows from another one's sums."""


def _cut(outcome: Outcome, _: GateSpec) -> float | None:
    return None if outcome.error or not outcome.finish_reason else float(outcome.finish_reason == "length")


METRICS: dict[str, Metric] = {
    "ttft": Metric("TTFT", "log_mean", _ttft, prefill_work, weight=9, is_of_queue=True),
    "tpot": Metric(
        "TPOT", "log_mean", lambda outcome, _: _log(outcome.tpot_ms), decode_work, weight=11, is_of_queue=True
    ),
    "output_tokens": Metric(
        "output length", "log_mean", _output_tokens, prompt_work, weight=1.5, is_two_sided=True, bound=4
    ),
    "ttft_over_target": Metric(
        "requests over the TTFT target", "share", _over_target, is_optional=True, is_of_queue=True, is_of_outages=True
    ),
    "ttft_of_some": Metric("TTFT of one tenant or length of prompt", "groups", _nothing, is_optional=True),
    "tpot_of_some": Metric("TPOT of one tenant or length of prompt", "groups", _nothing, is_optional=True),
    "slow": Metric(
        "first tokens far later than their like", "share", _nothing, weight=3, is_of_outages=True, far_over="ttft"
    ),
    "slow_decode": Metric(
        "answers far slower than their like", "share", _nothing, weight=2, is_of_outages=True, far_over="tpot"
    ),
    "errors": Metric("errors", "share", lambda outcome, _: float(outcome.error != ""), weight=7, is_of_outages=True),
    "empty": Metric("answers without text", "share", lambda o, _: None if o.error else float(o.is_empty), weight=2),
    "looping": Metric("answers that loop", "share", lambda o, _: None if o.error else float(o.is_looping), weight=3),
    "cut": Metric("answers cut by their length", "share", _cut, is_two_sided=True),
    "disliked": Metric(
        "disliked answers",
        "share",
        lambda outcome, _: None if outcome.is_disliked is None else float(outcome.is_disliked),
        is_optional=True,
    ),
    "quality": Metric("score of the held-out prompts", "score", lambda o, _: o.score, is_optional=True),
}

# Shares of the candidate alone that are bounded whatever the baseline does, and each one's part of the error budget.
GUARDED = ("errors", "empty", "looping")
_GUARD_WEIGHT = 0.2
_TOTAL_WEIGHT = sum(metric.weight for metric in METRICS.values()) + _GUARD_WEIGHT * len(GUARDED)


def alpha_of(name: str, spec: GateSpec) -> float:
    """Return a metric's part of the chance of a false alarm.

    All parts and the guards' add up to `spec.alpha` (Bonferroni).
    """
    return spec.alpha * METRICS[name].weight / _TOTAL_WEIGHT


def guard_alpha(spec: GateSpec) -> float:
    """Return each guard's part of the chance of a false alarm."""
    return spec.alpha * _GUARD_WEIGHT / _TOTAL_WEIGHT


def effect_of(name: str, spec: GateSpec) -> float:
    """Return the change from which a metric is too much worse: of `LOGARITHMS` as a logarithm, else as in the spec."""
    effect = float(getattr(spec.effects, name))
    return math.log1p(effect) if METRICS[name].kind in LOGARITHMS else effect
