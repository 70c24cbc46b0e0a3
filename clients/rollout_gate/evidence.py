# SPDX-License-Identifier: Apache-2.0
"""The evidence of all requests so far: sums by arm, metric, stratum and scale of time, without any single request.

It is JSON, so that a controller can write it down and go on after a restart; what has been added at one time gives the
same sums in whatever portions it came, but for the reference of `slow`, which is what was known before a portion. A
look costs as much as there are strata and doublings of the time (`clients.rollout_gate.blocks`). It belongs to one
split of the traffic: begin anew with each, as the hour changes both the split and the latencies, and would look like a
difference between the arms.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from clients.rollout_gate.blocks import Blocks, Sums, Timeline
from clients.rollout_gate.fading import BLOCKS_PER_FADE, Differences, Times, differences_of, own_variance
from clients.rollout_gate.findings import Counts, Level, Sample, Scores
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.mean_test import Floats
from clients.rollout_gate.metrics import METRICS, Reference
from clients.rollout_gate.score_test import BETS, gains
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import SpecError

_WITHIN = ("freedom", "m2", "weight")
MIN_SLOW_REFERENCE = 30  # requests of the baseline in a stratum, before its mean says what is slow there


class Count(msgspec.Struct):
    """The number of events, and of requests that could have been an event."""

    events: int = 0
    num: int = 0


class Pairs(msgspec.Struct):
    """The sums of scores that both arms got for one prompt (`clients.rollout_gate.findings.Scores`)."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0
    against_no_worse: list[float] = msgspec.field(default_factory=lambda: [0.0] * BETS.size)
    against_worse: list[float] = msgspec.field(default_factory=lambda: [0.0] * BETS.size)


class Arm(msgspec.Struct):
    """The sums of one arm by metric; the means by stratum, too."""

    num_requests: int = 0
    means: dict[str, dict[int, Sums]] = {}
    counts: dict[str, Count] = {}


class Evidence(msgspec.Struct, forbid_unknown_fields=True):
    """The sums of all requests so far.

    Attributes:
        settings: settings of the spec on which the sums depend.
        timeline: differences of the arms, block of time by block of time.
        prompts: by name of a held-out prompt, the arm that has answered and its score; None: both have.
    """

    settings: dict[str, float | None]
    candidate: Arm
    baseline: Arm
    timeline: Timeline
    pairs: dict[str, Pairs] = {}
    prompts: dict[str, tuple[str, float] | None] = {}


def settings_of(spec: GateSpec) -> dict[str, float | None]:
    """Return the settings that may not change between two portions."""
    return {
        "ttft_target_ms": spec.ttft_target_ms,
        "slow_factor": spec.slow_factor,
        "fade_s": spec.fade_s,
        "effects.quality": spec.effects.quality,
    }


def read(evidence: Mapping[str, object] | None, spec: GateSpec) -> Evidence:
    """Return the evidence that JSON's types hold; None: nothing has been seen.

    Raises:
        SpecError: it is not evidence, or it was gathered with other settings.
    """
    if evidence is None:
        blocks = {name: Blocks() for name, metric in METRICS.items() if metric.is_in_blocks}
        return Evidence(settings_of(spec), Arm(), Arm(), Timeline(blocks=blocks))
    try:
        found = msgspec.convert(evidence, Evidence, str_keys=True)
    except msgspec.ValidationError as exc:
        raise SpecError(
            f"the evidence cannot be read: {exc}; begin the step anew, with none", field="evidence"
        ) from exc
    for name, value in settings_of(spec).items():
        if found.settings.get(name) != value:
            raise SpecError(
                f"the evidence was gathered with {name} {found.settings.get(name)}, and the spec has {value}; begin "
                "the step anew, with none",
                field=name,
            )
    return found


def written(evidence: Evidence) -> dict[str, object]:
    """Return the evidence in JSON's types."""
    found: dict[str, object] = msgspec.to_builtins(evidence, str_keys=True)
    return found


def add(evidence: Evidence, outcomes: Sequence[tuple[bool, Outcome]], spec: GateSpec, at_s: float | None) -> None:
    """Add a portion of outcomes that came at a time; each outcome with whether it is the candidate's.

    An outcome that names a prompt is of the held-out set: it tells of quality, once for each prompt, and of no traffic.
    """
    reference = Reference(spec.ttft_target_ms, slow_limits_ms(evidence.baseline, spec))
    if any(not outcome.prompt for _, outcome in outcomes):
        evidence.timeline.reach(at_s, spec.fade_s / BLOCKS_PER_FADE)
    for is_candidate, outcome in outcomes:
        if outcome.prompt:
            _pair(evidence, is_candidate, outcome, reference, spec)
        else:
            _add_one(evidence, is_candidate, outcome, reference)


def slow_limits_ms(baseline: Arm, spec: GateSpec) -> dict[int, float]:
    """Return the TTFT from which a request is slow, by stratum, in milliseconds.

    Strata without enough requests of the baseline are left out.
    """
    known = baseline.means.get("ttft", {})
    return {
        stratum: spec.slow_factor * math.exp(sums.mean)
        for stratum, sums in known.items()
        if sums.num >= MIN_SLOW_REFERENCE
    }


def _add_one(evidence: Evidence, is_candidate: bool, outcome: Outcome, reference: Reference) -> None:
    arm = evidence.candidate if is_candidate else evidence.baseline
    if not outcome.is_feedback:
        arm.num_requests += 1
        evidence.timeline.count(is_candidate=is_candidate)
    for name, metric in METRICS.items():
        if outcome.is_feedback and name != "disliked":
            continue
        value = None if metric.kind == "score" else metric.of(outcome, reference)
        if value is None:
            continue
        if metric.is_in_blocks:
            evidence.timeline.blocks[name].add(value, outcome.stratum, is_candidate=is_candidate)
        if metric.kind == "log_mean":
            arm.means.setdefault(name, {}).setdefault(outcome.stratum, Sums()).add(value)
        else:
            count = arm.counts.setdefault(name, Count())
            count.events += int(value)
            count.num += 1


def _pair(evidence: Evidence, is_candidate: bool, outcome: Outcome, reference: Reference, spec: GateSpec) -> None:
    score = METRICS["quality"].of(outcome, reference)
    arm = "candidate" if is_candidate else "baseline"
    known = evidence.prompts.get(outcome.prompt, ("", 0.0))
    if score is None or known is None:
        return
    other, other_score = known
    if other in ("", arm):  # asked again: the newest answer counts
        evidence.prompts[outcome.prompt] = (arm, score)
        return
    evidence.prompts[outcome.prompt] = None
    difference = score - other_score if is_candidate else other_score - score
    pairs = evidence.pairs.setdefault("quality", Pairs())
    no_worse, worse = gains(np.array(difference), spec.effects.quality)
    pairs.num += 1
    pairs.total += difference
    pairs.squares += difference**2
    pairs.against_no_worse = (np.array(pairs.against_no_worse) + no_worse).tolist()
    pairs.against_worse = (np.array(pairs.against_worse) + worse).tolist()


def sample_of(evidence: Evidence) -> Sample:
    """Return the sums as the tests take them; arrays have no leading dimensions."""
    arms = (evidence.candidate, evidence.baseline)
    timeline = evidence.timeline.until_now()
    levels, counts = {}, {}
    for name, metric in METRICS.items():
        if metric.kind == "log_mean" and any(name in arm.means for arm in arms):
            levels[name] = (_level(arms[0], name), _level(arms[1], name))
        if any(name in arm.counts for arm in arms):
            found = [arm.counts.get(name, Count()) for arm in arms]
            counts[name] = Counts(_floats([one.events for one in found]), _floats([one.num for one in found]))
    scores = {
        name: Scores(
            np.array(float(pairs.num)),
            np.array(pairs.total),
            np.array(pairs.squares),
            _floats(pairs.against_no_worse),
            _floats(pairs.against_worse),
        )
        for name, pairs in evidence.pairs.items()
    }
    return Sample(
        num_requests=_floats([arm.num_requests for arm in arms]),
        times=Times(np.array(timeline.elapsed_s), np.array(float(timeline.num_closed))),
        levels=levels,
        differences={name: _differences(one) for name, one in timeline.blocks.items() if name in {**levels, **counts}},
        counts=counts,
        scores=scores,
    )


def _level(arm: Arm, name: str) -> Level:
    known = arm.means.get(name, {}).values()
    num = sum(one.num for one in known)
    return Level(np.array(float(num)), np.array(sum(one.num * one.mean for one in known) / max(num, 1)))


def _differences(blocks: Blocks) -> Differences:
    within = [[_floats([getattr(arm, name) for arm in arms]) for arms in blocks.within.values()] for name in _WITHIN]
    freedom, m2, weight = (np.array(one).reshape(-1, 2) for one in within)
    return differences_of(
        np.array(blocks.total),
        np.array(blocks.weight),
        own_variance(freedom, m2, weight),
        num_pairs=_floats([scale.num for scale in blocks.scales]),
        squares=_floats([scale.squares for scale in blocks.scales]),
    )


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)
