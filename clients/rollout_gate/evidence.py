# SPDX-License-Identifier: Apache-2.0
"""The evidence of all requests so far: sums by arm, metric, block of time and key, without any single request.

It is JSON, so that a controller can write it down and go on after a restart. It belongs to one split of the traffic:
begin anew with each, as the hour changes both the split and the latencies, and would look like a difference between the
arms. A look costs as much as there are blocks (`clients.rollout_gate.sums.block_list.MAX_BLOCKS`).
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import LOGARITHMS, METRICS
from clients.rollout_gate.pairs import Pairs
from clients.rollout_gate.sample import Counts, Level, Run, Sample, Scores
from clients.rollout_gate.statistics.fading import BLOCKS_PER_FADE, Times
from clients.rollout_gate.statistics.groups import group_of
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import unit_bucket
from clients.rollout_gate.sums.mean_sums import MeanSums
from clients.rollout_gate.sums.sums_json import read_into
from clients.rollout_gate.sums.sums_json import written as written_sums
from clients.rollout_gate.sums.timeline import Timeline
from clients.rollout_gate.traffic_sums import Portion, TrafficSums
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import RequestError, SpecError
from trireme.base.known_types import known


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """The evidence as it is kept.

    Attributes:
        settings: settings of the spec on which the sums depend.
        num_requests: of the candidate and the baseline.
        sums: of all metrics, as `clients.rollout_gate.sums.sums_json` writes them.
        pairs: scores of held-out prompts, by metric.
        tenants: names of the groups that are tenants.
        prompts: by name of a held-out prompt, the arm that has answered and its score; None: both have.
    """

    settings: dict[str, float | None]
    num_requests: tuple[int, int]
    timeline: Timeline
    sums: dict[str, Any]
    pairs: dict[str, Pairs] = {}
    tenants: list[str] = []
    prompts: dict[str, tuple[str, float] | None] = {}


class Evidence:
    """The evidence while it is added to or looked at.

    Args:
        spec: settings.
    """

    def __init__(self, spec: GateSpec) -> None:
        self.num_requests = (0, 0)
        self.timeline = Timeline()
        self.sums = TrafficSums(spec)
        self.pairs: dict[str, Pairs] = {}
        self.tenants: list[str] = []
        self.prompts: dict[str, tuple[str, float] | None] = {}

    def until_now(self) -> "Evidence":
        """Return a copy for a look, in which the open block is closed if it is full."""
        if not self.timeline.is_full:
            return self
        found = copy.deepcopy(self)  # closed blocks are shared: nothing changes them
        found.sums.close()
        found.timeline.close()
        return found


def settings_of(spec: GateSpec) -> dict[str, float | None]:
    """Return the settings that may not change between two portions."""
    return {
        "ttft_target_ms": spec.ttft_target_ms,
        "slow_factor": spec.slow_factor,
        "slow_decode_factor": spec.slow_decode_factor,
        "fade_s": spec.fade_s,
        "effects.quality": spec.effects.quality,
        # The bounds of figures depend on them.
        **{
            f"effects.{name}": float(getattr(spec.effects, name))
            for name, metric in METRICS.items()
            if metric.kind in LOGARITHMS
        },
    }


def read(evidence: Mapping[str, object] | None, spec: GateSpec) -> Evidence:
    """Return the evidence that JSON's types hold; None: nothing has been seen.

    Raises:
        SpecError: it is not evidence, or it was gathered with other settings.
    """
    found = Evidence(spec)
    if evidence is None:
        return found
    try:
        kept = msgspec.convert(evidence, known(Kept), str_keys=True)
        _check_settings(kept.settings, spec)
        read_into(found.sums, kept.sums)
    except (msgspec.ValidationError, KeyError, ValueError, TypeError, IndexError) as exc:
        raise SpecError(
            f"the evidence cannot be read: {exc}; begin the step anew, with none", field="evidence"
        ) from exc
    found.num_requests, found.timeline = kept.num_requests, kept.timeline
    found.pairs, found.tenants, found.prompts = kept.pairs, kept.tenants, kept.prompts
    return found


def _check_settings(settings: Mapping[str, float | None], spec: GateSpec) -> None:
    for name, value in settings_of(spec).items():
        if settings.get(name) != value:
            raise SpecError(
                f"the evidence was gathered with {name} {settings.get(name)}, and the spec has {value}; begin the "
                "step anew, with none",
                field=name,
            )


def written(evidence: Evidence, spec: GateSpec) -> dict[str, object]:
    """Return the evidence in JSON's types."""
    kept = Kept(
        settings_of(spec),
        evidence.num_requests,
        evidence.timeline,
        written_sums(evidence.sums),
        evidence.pairs,
        evidence.tenants,
        evidence.prompts,
    )
    found: dict[str, object] = msgspec.to_builtins(kept, str_keys=True)
    return found


def add(evidence: Evidence, outcomes: Sequence[tuple[bool, Outcome]], spec: GateSpec, at_s: float | None) -> None:
    """Add a portion of outcomes that came at a time; each outcome with whether it is the candidate's.

    An outcome that names a prompt is of the held-out set: it tells of quality, once for each prompt, and of no traffic.
    """
    traffic = [(is_candidate, each) for is_candidate, each in outcomes if not each.prompt]
    if traffic:
        if evidence.timeline.reach(at_s, spec.fade_s / BLOCKS_PER_FADE):
            evidence.sums.close()
            evidence.timeline.close()
        num_candidate = sum(is_candidate for is_candidate, each in traffic if not each.is_feedback)
        num_baseline = sum(not is_candidate for is_candidate, each in traffic if not each.is_feedback)
        evidence.timeline.count(num_candidate, num_baseline)
        known = evidence.num_requests
        evidence.num_requests = (known[0] + num_candidate, known[1] + num_baseline)
        evidence.sums.add(_portion(traffic, spec, evidence.timeline.last_s, evidence.tenants))
    for is_candidate, outcome in outcomes:
        if outcome.prompt:
            _pair(evidence, is_candidate, outcome, spec)


def _portion(traffic: Sequence[tuple[bool, Outcome]], spec: GateSpec, at_s: float, tenants: list[str]) -> Portion:
    values, work = {}, {}
    for name, metric in METRICS.items():
        if metric.kind in ("score", "groups") or metric.far_over:
            continue
        only = [name == "disliked" or not each.is_feedback for _, each in traffic]
        found = [metric.of(each, spec) if is_of else None for (_, each), is_of in zip(traffic, only, strict=True)]
        if metric.is_optional and all(value is None for value in found):
            continue
        values[name] = np.array([np.nan if value is None else value for value in found])
        if metric.work is not None:
            work[name] = np.array([metric.work(each) for _, each in traffic])
    return Portion(
        values,
        work,
        np.array([is_candidate for is_candidate, _ in traffic]),
        np.array([unit_bucket(each.unit) for _, each in traffic]),
        np.array([group_of(each.stratum, each.tenant, tenants) for _, each in traffic]),
        np.full(len(traffic), at_s),
    )


def _pair(evidence: Evidence, is_candidate: bool, outcome: Outcome, spec: GateSpec) -> None:
    score = METRICS["quality"].of(outcome, spec)
    arm = "candidate" if is_candidate else "baseline"
    known = evidence.prompts.get(outcome.prompt, ("", 0.0))
    if score is None or known is None:
        return
    if not 0 <= score <= 1:
        raise RequestError(
            f"score must be 0 to 1, got {score!r} for prompt {outcome.prompt!r}", field="score", value=score
        )
    other, other_score = known
    if other in ("", arm):  # asked again: the newest answer counts
        evidence.prompts[outcome.prompt] = (arm, score)
        return
    evidence.prompts[outcome.prompt] = None
    difference = score - other_score if is_candidate else other_score - score
    evidence.pairs.setdefault("quality", Pairs()).add(difference, spec.effects.quality)


def sample_of(evidence: Evidence) -> Sample:
    """Return the sums as the tests take them; arrays have no leading dimensions."""
    found = evidence.until_now()
    num_requests = np.array(evidence.num_requests, dtype=np.float64)
    elapsed_s, num_blocks = np.array(found.timeline.elapsed_s), np.array(float(found.timeline.num_closed))
    scores = {name: one.scores() for name, one in evidence.pairs.items()}
    return sample_of_sums(found.sums, num_requests, Times(elapsed_s, num_blocks), scores, evidence.tenants)


def sample_of_sums(
    sums: TrafficSums,
    num_requests: Floats,
    times: Times,
    scores: Mapping[str, Scores],
    tenants: Sequence[str] = (),
) -> Sample:
    """Return sums of traffic as the tests take them."""
    means = {name: one for name, one in sums.means.items() if one.is_fitted and one.sums.num.any()}
    events = {name: one for name, one in sums.events.items() if one.num.any()}
    in_blocks = {name: one.blocks.differences() for name, one in events.items() if one.blocks is not None}
    return Sample(
        num_requests=num_requests,
        times=times,
        levels={name: (_level(one, 0), _level(one, 1)) for name, one in means.items()},
        differences={name: one.differences() for name, one in means.items()} | in_blocks,
        counts={name: Counts(one.events, one.num) for name, one in events.items()},
        scores=scores,
        spreads={name: one.spread() for name, one in means.items()}
        | {name: one.spread() for name, one in events.items()},
        incidents={name: one.incidents for name, one in events.items() if not METRICS[name].is_two_sided},
        groups={
            f"{name}_of_some": differences
            for name, one in means.items()
            if (differences := one.in_groups()) is not None
        },
        tenants=tenants,
        plain={name: one.plain() for name, one in means.items()},
        runs={name: Run(one.run, one.run_began_s) for name, one in events.items()},
    )


def _level(sums: MeanSums, arm: int) -> Level:
    num = sums.sums.num[..., arm]
    return Level(num, sums.total[..., arm] / np.maximum(num, 1))
