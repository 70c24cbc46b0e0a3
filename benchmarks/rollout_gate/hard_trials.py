# SPDX-License-Identifier: Apache-2.0
"""The gate on hard traffic: false rollbacks of equal releases, passes, and how many faults are found.

`python -m benchmarks.rollout_gate.hard_trials`. A version against itself counts as rolled back if any look would do so,
even after a pass; a fault counts as found if the first verdict fails it.
"""

import zlib
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.rollout_gate.conditions import CONDITIONS, FAULTS, POWER_CONDITIONS, Fault
from benchmarks.rollout_gate.hard_traffic import HardTraffic
from benchmarks.rollout_gate.simulated_rollouts import LOOK_S, PER_LOOK, Seen, Tally, judge, processes, verdicts_of
from benchmarks.support.report import environment, write_result
from clients.rollout_gate.gate_spec import GateSpec

SPEC = GateSpec()
SEED = 7
_CHUNK = 250
_LOOK_EVERY = 5  # blocks: a controller looks twice a second, and sees the same blocks


@dataclass(frozen=True)
class Trial:
    """A number of rollouts of one kind."""

    conditions: str
    fault: str = ""  # "": a version against itself
    rollouts: int = 10_000
    looks: int = 200


def trials(share: float) -> list[Trial]:
    """Return every trial, with a share of its rollouts."""
    num, few = max(1, round(10_000 * share)), max(1, round(2_000 * share))
    equal = [Trial(name, rollouts=num) for name in CONDITIONS]
    return equal + [Trial(name, fault, few, 100) for fault in FAULTS for name in POWER_CONDITIONS]


def run(trial: Trial, *, seed: int) -> Tally:
    """Simulate the rollouts of a trial."""
    found, conditions, fault = Tally(), CONDITIONS[trial.conditions], FAULTS.get(trial.fault, Fault())
    rng = np.random.default_rng([seed, zlib.crc32(f"{trial.conditions}|{trial.fault}".encode())])
    for begin in range(0, trial.rollouts, _CHUNK):
        rollouts = min(_CHUNK, trial.rollouts - begin)
        traffic = HardTraffic(conditions, fault, rollouts=rollouts, rng=rng)
        found.add(judge(map(Seen, traffic.portions(trial.looks)), rollouts, SPEC, look_every=_LOOK_EVERY))
    return found


def figures_of(trial: Trial, tally: Tally) -> dict[str, Any]:
    """Return the shares that failed and passed, each with one-sided 95 % bounds, and when."""
    return {**asdict(trial), "requests": trial.looks * PER_LOOK, **verdicts_of(tally, is_equal=not trial.fault)}


def study(share: float = 1.0, *, seed: int = SEED, only: str = "") -> Path | None:
    """Run the trials, print them, and write the result unless they are a part; return its path."""
    began, found = environment(), []
    planned = [trial for trial in trials(share) if only in f"{trial.conditions}|{trial.fault}"]
    with processes() as pool:
        for trial, tally in zip(planned, pool.map(partial(run, seed=seed), planned), strict=True):
            found.append(figures_of(trial, tally))
            print(_line(found[-1]), flush=True)
    if only:
        return None
    result = {"benchmark": "gate_hard_trials", "environment": began, "seed": seed, "look_s": LOOK_S, "trials": found}
    more = {"look_every": _LOOK_EVERY, "spec": SPEC.model_dump(mode="json")}
    return write_result("gate_hard_trials", {**result, **more})


def _line(found: dict[str, Any]) -> str:
    back, passed = found["rolled_back"], found["passed"]
    return (
        f"{found['conditions']} | {found['fault'] or 'equal'}: rolled back {back['share']:.4f} "
        f"({back['lower']:.4f} to {back['upper']:.4f}), passed {passed['share']:.3f}, {found['to_pass']}; "
        f"{found['failed_by']}; open {found['open_at_end']}"
    )


def main(
    share: Annotated[float, typer.Option(min=0.0001, max=1, help="Share of the full number of rollouts.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = SEED,
    only: Annotated[str, typer.Option(help="Part of a condition's or fault's name; no result is written.")] = "",
) -> None:
    """Run the trials, and write them to benchmarks/results."""
    if (path := study(share, seed=seed, only=only)) is not None:
        print(path)


if __name__ == "__main__":
    typer.run(main)
