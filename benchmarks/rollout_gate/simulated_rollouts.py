# SPDX-License-Identifier: Apache-2.0
"""The gate's verdicts on many simulated rollouts at once, look by look, by the gate's own code."""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from clients.rollout_gate.evidence import sample_of_sums
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.sample import Sample, Scores
from clients.rollout_gate.statistics.fading import Times
from clients.rollout_gate.traffic_sums import Portion, TrafficSums
from clients.rollout_gate.verdict import Look, look_at

PER_LOOK = 20  # requests of each arm
LOOK_S = 10.0
_THREADS = "OPENBLAS_NUM_THREADS"


class Seen(NamedTuple):
    """The requests of rollouts between two looks, and the scores of all held-out prompts so far."""

    portion: Portion
    scores: Mapping[str, Scores] = {}


@dataclass
class Tally:
    """The verdicts on rollouts, in order; -1: never.

    Attributes:
        failed_at: the first look that fails it, whether or not it had passed before.
        passed_at: the first look that passes it, whether or not it had failed before.
        failed_by: by metric or guard, how many rollouts it fails at some look.
        open_at_end: by metric, of how many rollouts it is not proven fine at the last look.
    """

    failed_at: list[int] = field(default_factory=list)
    passed_at: list[int] = field(default_factory=list)
    failed_by: dict[str, int] = field(default_factory=dict)
    open_at_end: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        """Add the verdicts on more rollouts."""
        self.failed_at += other.failed_at
        self.passed_at += other.passed_at
        for mine, more in ((self.failed_by, other.failed_by), (self.open_at_end, other.open_at_end)):
            for name, count in more.items():
                mine[name] = mine.get(name, 0) + count


def judge(seen: Iterable[Seen], rollouts: int, spec: GateSpec, *, look_every: int = 1) -> Tally:
    """Judge rollouts side by side.

    Args:
        seen: what comes between two looks, which lasts `LOOK_S` and is a block.
        rollouts: number of rollouts, the leading dimension of what is seen.
        look_every: blocks until the gate is asked again.
    """
    failed, passed = np.full(rollouts, -1), np.full(rollouts, -1)
    by: dict[str, NDArray[np.bool_]] = {}
    look: Look | None = None
    for number, sample in samples(seen, rollouts, spec):
        if (number + 1) % look_every:
            continue
        look = look_at(sample(), spec)
        failed = np.where((failed < 0) & look.is_failed, number, failed)
        passed = np.where((passed < 0) & look.is_passed, number, passed)
        flags = {name: finding.is_worse for name, finding in look.findings.items()}
        flags |= {f"guard of {name}": is_over for name, is_over in look.guards.items()}
        for name, is_worse in flags.items():
            by[name] = by.get(name, np.zeros(rollouts, bool)) | is_worse
    is_open = {} if look is None else {name: ~finding.is_fine for name, finding in look.findings.items()}
    return Tally(failed.tolist(), passed.tolist(), _counted(by), _counted(is_open))


def samples(seen: Iterable[Seen], rollouts: int, spec: GateSpec) -> Iterable[tuple[int, Any]]:
    """Yield the number of each look, and a function that returns the gate's sums by then (`Sample`)."""
    sums = TrafficSums(spec, (rollouts,))
    for number, (portion, scores) in enumerate(seen):
        sums.add(portion)
        sums.close()

        def sample(number: int = number, scores: Mapping[str, Scores] = scores) -> Sample:
            num = np.full((rollouts, 2), float(PER_LOOK * (number + 1)))
            times = Times(np.full(rollouts, LOOK_S * number), np.full(rollouts, number + 1.0))
            return sample_of_sums(sums, num, times, scores)

        yield number, sample


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """Yield a process for each processor, with one thread of linear algebra each: matrices are small here."""
    known = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"  # is read where numpy is imported, so that processes must begin anew
    try:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            yield pool
    finally:
        del os.environ[_THREADS]
        if known is not None:
            os.environ[_THREADS] = known


def _counted(flags: Mapping[str, NDArray[np.bool_]]) -> dict[str, int]:
    return {name: int(each.sum()) for name, each in flags.items() if each.any()}


def share_of(happened: NDArray[np.bool_]) -> dict[str, float]:
    """Return a share with its one-sided 95 % bounds.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26(4), 1934.
    """
    count, size = int(happened.sum()), happened.size
    lower = float(beta.ppf(0.05, count, size - count + 1)) if count else 0.0
    upper = float(beta.ppf(0.95, count + 1, size - count)) if count < size else 1.0
    return {"count": count, "of": size, "share": count / size, "lower": lower, "upper": upper}


def times_of(looks: NDArray[np.int64]) -> dict[str, float] | None:
    """Return requests and seconds until the verdicts that happened; -1: it did not."""
    looks = looks[looks >= 0]
    if not looks.size:
        return None
    median, late = np.quantile(looks + 1, [0.5, 0.95], method="higher")
    return {
        "median_requests": int(median) * PER_LOOK,
        "p95_requests": int(late) * PER_LOOK,
        "median_s": float(median * LOOK_S),
        "p95_s": float(late * LOOK_S),
    }


def verdicts_of(tally: Tally, *, is_equal: bool) -> dict[str, Any]:
    """Return the shares of rollouts that failed and passed, and when.

    A rollout of a fault ends at its first verdict, so that one which passes first is not detected. One of equal
    releases counts as rolled back if any look up to the last would do so, though it may have passed long before.
    """
    failed, passed = np.array(tally.failed_at), np.array(tally.passed_at)
    is_first = (failed >= 0) & ((passed < 0) | (failed <= passed))
    is_failed = failed >= 0 if is_equal else is_first
    is_passed = (passed >= 0) & ~is_first
    return {
        "rolled_back": share_of(is_failed),
        "passed": share_of(is_passed),
        "to_rollback": times_of(failed[is_failed]),
        "to_pass": times_of(passed[is_passed]),
        "failed_by": dict(sorted(tally.failed_by.items(), key=lambda one: -one[1])),
        "open_at_end": dict(sorted(tally.open_at_end.items(), key=lambda one: -one[1])),
    }
