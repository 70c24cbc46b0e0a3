# SPDX-License-Identifier: Apache-2.0
"""The gate on hard traffic: false rollbacks of equal releases, passes, and how many faults are found.

`python -m benchmarks.rollout_gate.hard_trials`. A version against itself counts as rolled back if any look would do so,
even after a pass; a fault counts as found if the first verdict fails it.
"""

import copy
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import beta

from benchmarks.rollout_gate.conditions import CONDITIONS, FAULTS, POWER_CONDITIONS, Conditions, Fault
from benchmarks.rollout_gate.hard_traffic import LOOK_S, PER_LOOK, HardTraffic
from benchmarks.support.report import environment, write_result
from clients.rollout_gate.evidence import sample_of_sums
from clients.rollout_gate.fading import Times
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.traffic_sums import TrafficSums
from clients.rollout_gate.verdict import Look, look_at

SPEC = GateSpec()
_CHUNK = 250
_LOOK_EVERY = 5  # blocks: a controller looks twice a second, and sees the same blocks


@dataclass(frozen=True)
class Trial:
    """A number of rollouts of one kind."""

    conditions: str
    fault: str = ""  # "": a version against itself
    rollouts: int = 10_000
    looks: int = 200


@dataclass
class Tally:
    """The looks at which rollouts failed and passed first, -1 for never, and how many rollouts each metric failed."""

    failed_at: list[int] = field(default_factory=list)
    passed_at: list[int] = field(default_factory=list)
    failed_by: dict[str, int] = field(default_factory=dict)
    open_at_end: dict[str, int] = field(default_factory=dict)


def trials(share: float) -> list[Trial]:
    """Return every trial, with a share of its rollouts."""
    num, few = max(1, round(10_000 * share)), max(1, round(2_000 * share))
    equal = [Trial(name, rollouts=num) for name in CONDITIONS]
    return equal + [Trial(name, fault, few, 100) for fault in FAULTS for name in POWER_CONDITIONS]


def run(trial: Trial, *, seed: int) -> Tally:
    """Simulate the rollouts of a trial."""
    tally = Tally()
    conditions, fault = CONDITIONS[trial.conditions], FAULTS.get(trial.fault, Fault())
    rng = np.random.default_rng([seed, zlib.crc32(f"{trial.conditions}|{trial.fault}".encode())])
    for begin in range(0, trial.rollouts, _CHUNK):
        _run_some(tally, conditions, fault, min(_CHUNK, trial.rollouts - begin), trial.looks, rng)
    return tally


def _run_some(
    tally: Tally, conditions: Conditions, fault: Fault, rollouts: int, looks: int, rng: np.random.Generator
) -> None:
    traffic = HardTraffic(conditions, fault, rollouts=rollouts, rng=rng)
    sums = TrafficSums(SPEC, (rollouts,))
    failed, passed = np.full(rollouts, -1), np.full(rollouts, -1)
    by: dict[str, np.ndarray[Any, Any]] = {}
    look: Look | None = None
    for number, portion in enumerate(traffic.portions(looks)):
        sums.add(portion)
        if (number + 1) % _LOOK_EVERY == 0:
            closed = copy.deepcopy(sums)
            closed.close()
            num = np.full((rollouts, 2), float(PER_LOOK * (number + 1)))
            times = Times(np.full(rollouts, LOOK_S * number), np.full(rollouts, number + 1.0))
            look = look_at(sample_of_sums(closed, num, times), SPEC)
            failed = np.where((failed < 0) & look.is_failed, number, failed)
            passed = np.where((passed < 0) & look.is_passed, number, passed)
            flags = {name: finding.is_worse for name, finding in look.findings.items()}
            for name, is_worse in (flags | {f"guard of {name}": over for name, over in look.guards.items()}).items():
                by[name] = by.get(name, np.zeros(rollouts, bool)) | is_worse
        sums.close()
    tally.failed_at += failed.tolist()
    tally.passed_at += passed.tolist()
    for name, is_worse in by.items():
        tally.failed_by[name] = tally.failed_by.get(name, 0) + int(is_worse.sum())
    if look is not None:
        for name, finding in look.findings.items():
            tally.open_at_end[name] = tally.open_at_end.get(name, 0) + int((~finding.is_fine).sum())


def figures_of(trial: Trial, tally: Tally) -> dict[str, Any]:
    """Return the shares that failed and passed, each with one-sided 95 % bounds, and when."""
    failed, passed = np.array(tally.failed_at), np.array(tally.passed_at)
    is_first = (failed >= 0) & ((passed < 0) | (failed <= passed))
    is_failed = is_first if trial.fault else failed >= 0
    is_passed = (passed >= 0) & ~is_first
    return {
        **asdict(trial),
        "requests": trial.looks * PER_LOOK,
        "rolled_back": share_of(is_failed),
        "passed": share_of(is_passed),
        "median_requests_to_fail": _median(failed[is_failed]),
        "median_requests_to_pass": _median(passed[is_passed]),
        "failed_by": {name: count for name, count in sorted(tally.failed_by.items()) if count},
        "open_at_end": {name: count for name, count in sorted(tally.open_at_end.items()) if count},
    }


def share_of(happened: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return a share with its one-sided 95 % bounds.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26(4), 1934.
    """
    count, size = int(happened.sum()), happened.size
    lower = float(beta.ppf(0.05, count, size - count + 1)) if count else 0.0
    upper = float(beta.ppf(0.95, count + 1, size - count)) if count < size else 1.0
    return {"count": count, "of": size, "share": count / size, "lower": lower, "upper": upper}


def _median(looks: np.ndarray[Any, Any]) -> int | None:
    return int(np.median(looks + 1)) * PER_LOOK if looks.size else None


def main(
    share: Annotated[float, typer.Option(min=0.0001, max=1, help="Share of the full number of rollouts.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = 7,
    only: Annotated[str, typer.Option(help="Part of a condition's or fault's name; no result is written.")] = "",
) -> None:
    """Run the trials, and write them to benchmarks/results."""
    began = environment()
    planned = [trial for trial in trials(share) if only in f"{trial.conditions}|{trial.fault}"]
    found = []
    with ProcessPoolExecutor() as pool:
        for trial, tally in zip(planned, pool.map(partial(run, seed=seed), planned), strict=True):
            found.append(figures_of(trial, tally))
            shown = found[-1]
            print(
                f"{trial.conditions} | {trial.fault or 'equal'}: rolled back {shown['rolled_back']['share']:.4f} (at most "
                f"{shown['rolled_back']['upper']:.4f}), passed {shown['passed']['share']:.3f} by "
                f"{shown['median_requests_to_pass']}; {shown['failed_by']}; open {shown['open_at_end']}",
                flush=True,
            )
    if not only:
        result = {
            "benchmark": "gate_hard_trials",
            "environment": began,
            "seed": seed,
            "look_s": LOOK_S,
            "trials": found,
        }
        print(write_result("gate_hard_trials", {**result, "spec": SPEC.model_dump(mode="json")}))


if __name__ == "__main__":
    typer.run(main)
