# SPDX-License-Identifier: Apache-2.0
"""The rollout gate on many thousand simulated rollouts: false rollbacks, power, requests and time to a verdict.

`python -m benchmarks.rollout_gate.gate_trials` writes benchmarks/results/gate_trials_<date>.json, beside it one line
for each rollout, and the requests of one rollout of each kind; half an hour of processor time. What is simulated, and
how often it is looked at, is in `benchmarks.rollout_gate.gate_traffic`; what else judges the same traffic in
`benchmarks.rollout_gate.gate_comparators`.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console

from benchmarks.rollout_gate.gate_comparators import COMPARATORS
from benchmarks.rollout_gate.gate_traffic import Regression, Traffic, outcomes_of, seen_of, traffic_of
from benchmarks.rollout_gate.latency_models import LatencyModel, load_models
from benchmarks.rollout_gate.simulated_rollouts import (
    LOOK_S,
    PER_LOOK,
    Tally,
    judge,
    processes,
    share_of,
    times_of,
    verdicts_of,
)
from benchmarks.support.report import environment, write_result
from clients.rollout_gate.gate_spec import GateSpec

SPEC = GateSpec(ttft_target_ms=500)
SEED = 6
LOOK_EVERY = 5  # blocks: a controller looks twice a second, and sees the same blocks
_CHUNK = 100  # rollouts at once; bounds memory
_POWER_LOOKS = 100  # 2,000 requests of each arm
_OWN_LOOKS = 1_500  # 30,000 of them: what a regression takes that hides in each arm's own queue
_COMPARED = 1_000  # rollouts of a scenario that the others judge, too

NOTHING = Regression()
LONGER_TTFT = "TTFT 10 % longer"
REGRESSIONS = {
    LONGER_TTFT: Regression(ttft=1.1),
    "TPOT 5 % longer": Regression(tpot=1.05),
    "1 % errors, the baseline has none": Regression(errors=0.01, errors_of_both=0.0),
    "1 % errors more, the baseline has 0.1 %": Regression(errors=0.01, errors_of_both=0.001),
    "2 % of requests with ten times the TTFT": Regression(slow=0.02),
    "3 % of answers garbled, half of them loop": Regression(garbled=0.03),
    "answers 20 % shorter": Regression(length=0.8),
}


@dataclass(frozen=True)
class Scenario:
    """Rollouts of one kind.

    Attributes:
        looks: at which each ends, undecided.
        own: times the size that the bursts of each arm's own queue have in the model.
        own_fade: times as long as they fade there.
        is_compared: others judge it, too.
    """

    name: str
    model: str
    regression: Regression
    rollouts: int
    looks: int
    spread: float = 1.0
    own: float = 1.0
    own_fade: float = 1.0
    is_compared: bool = True


@dataclass
class Judged:
    """The gate's verdicts on a scenario's rollouts, and by comparator the first look that fails each, -1 for never."""

    tally: Tally = field(default_factory=Tally)
    others: dict[str, list[int]] = field(default_factory=dict)


def scenarios(share: float = 1.0) -> list[Scenario]:
    """Return the scenarios, with this share of their rollouts."""

    def num(rollouts: int) -> int:
        return max(1, round(rollouts * share))

    same_looks = SPEC.max_requests // PER_LOOK
    models = ("steady", "recorded_half_load", "recorded_bursty_full_load")
    found = [Scenario("A/A", model, NOTHING, num(10_000), same_looks) for model in (*models, "drift_and_bursts")]
    found.append(Scenario("A/A", "own_bursts", NOTHING, num(10_000), same_looks))
    for own, own_fade in ((1 / 3, 1.0), (2.0, 1.0), (1.0, 3.0)):
        found.append(
            Scenario(
                "A/A", "own_bursts", NOTHING, num(2_000), same_looks, own=own, own_fade=own_fade, is_compared=False
            )
        )
    for name, regression in REGRESSIONS.items():
        found += [Scenario(name, model, regression, num(2_000), _POWER_LOOKS) for model in models]
    longer = REGRESSIONS[LONGER_TTFT]
    found.append(Scenario(LONGER_TTFT, "own_bursts", longer, num(2_000), same_looks, is_compared=False))
    found.append(Scenario(LONGER_TTFT, "own_bursts", longer, num(300), _OWN_LOOKS, is_compared=False))
    wide = {name: REGRESSIONS[name] for name in (LONGER_TTFT, "TPOT 5 % longer")} | {"A/A": NOTHING}
    for name, regression in wide.items():
        found.append(Scenario(name, "steady", regression, num(500), 600, spread=2.0, is_compared=False))
    return found


def run(scenario: Scenario, *, seed: int = SEED) -> Judged:
    """Judge a scenario's rollouts by the gate's own code."""
    model = model_of(scenario)
    spec = SPEC.model_copy(update={"max_requests": max(SPEC.max_requests, scenario.looks * PER_LOOK)})
    found = Judged()
    for traffic in chunks(scenario, model, seed):
        found.tally.add(judge(seen_of(traffic, spec), len(traffic.stratum), spec, look_every=LOOK_EVERY))
        if scenario.is_compared and len(found.tally.failed_at) <= _COMPARED:
            for name, judged_by in COMPARATORS.items():
                found.others.setdefault(name, []).extend(judged_by(traffic).tolist())
    return found


def model_of(scenario: Scenario) -> LatencyModel:
    """Return the model with the scenario's spread, and the size and length of its bursts."""
    model = load_models()[scenario.model].spread(scenario.spread)
    return msgspec.structs.replace(
        model,
        own_burst_sd=model.own_burst_sd * scenario.own,
        own_burst_s=model.own_burst_s * scenario.own_fade,
    )


def chunks(scenario: Scenario, model: LatencyModel, seed: int) -> Iterator[Traffic]:
    """Yield a scenario's rollouts, some at a time; one seed gives one traffic."""
    name = f"{scenario.name}|{scenario.model}|{scenario.spread:g}|{scenario.own:g}|{scenario.own_fade:g}"
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    for begin in range(0, scenario.rollouts, _CHUNK):
        rollouts = min(_CHUNK, scenario.rollouts - begin)
        yield traffic_of(model, scenario.regression, rollouts=rollouts, looks=scenario.looks, rng=rng)


def figures_of(scenario: Scenario, judged: Judged) -> dict[str, Any]:
    """Return error rates with one-sided 95 % bounds, requests of each arm and seconds to the verdict.

    The other judges' rates are among them.
    """
    return {
        "scenario": scenario.name,
        "model": scenario.model,
        "spread": scenario.spread,
        "own": scenario.own,
        "own_fade": scenario.own_fade,
        "rollouts": scenario.rollouts,
        "max_requests": scenario.looks * PER_LOOK,
        "regression": asdict(scenario.regression),
        **verdicts_of(judged.tally, is_equal=scenario.name == "A/A"),
        "others": {
            name: {"rolled_back": share_of(np.array(found) >= 0), "to_rollback": times_of(np.array(found))}
            for name, found in judged.others.items()
        },
    }


def write_records(path: Path, done: Sequence[tuple[Scenario, Judged]], seed: int) -> None:
    """Write a line for each rollout, in the order in which they were drawn.

    It has the looks that would fail and pass it, -1 for never.
    """
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        header = {
            "seed": seed,
            "script": "python -m benchmarks.rollout_gate.gate_trials",
            "look_s": LOOK_S,
            "per_look": PER_LOOK,
        }
        file.write(msgspec.json.encode(header) + b"\n")
        for scenario, judged in done:
            file.write(msgspec.json.encode(asdict(scenario)) + b"\n")
            for one in zip(judged.tally.failed_at, judged.tally.passed_at, strict=True):
                file.write(msgspec.json.encode(one) + b"\n")


def write_requests(path: Path, seed: int, kinds: Sequence[Scenario]) -> None:
    """Write the requests of the first rollout of each kind, look by look, as the gate is told of them."""
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for scenario in kinds:
            traffic = next(chunks(scenario, model_of(scenario), seed))
            file.write(msgspec.json.encode({"scenario": scenario.name, "model": scenario.model, "seed": seed}) + b"\n")
            for look in range(min(scenario.looks, _POWER_LOOKS)):
                for outcome in outcomes_of(traffic, 0, look):
                    file.write(msgspec.json.encode(outcome) + b"\n")


def study(share: float = 1.0, *, seed: int = SEED) -> Path:
    """Run every scenario, write the result and its records, and print; return the result's path."""
    console, began, done = Console(), environment(), []
    with processes() as pool:
        planned = scenarios(share)
        for scenario, judged in zip(planned, pool.map(partial(run, seed=seed), planned), strict=True):
            done.append((scenario, judged))
            found = figures_of(scenario, judged)
            console.print(
                f"{scenario.name}, {scenario.model}, spread {scenario.spread:g}: {found['rolled_back']}, "
                f"{found['to_rollback']}, passed {found['passed']['share']:.3f}",
                markup=False,
            )
    result = {
        "benchmark": "gate_trials",
        "environment": began,
        "seed": seed,
        "spec": SPEC.model_dump(mode="json"),
        "look_s": LOOK_S,
        "requests_per_look": PER_LOOK,
        "look_every": LOOK_EVERY,
        "scenarios": [figures_of(*one) for one in done],
    }
    path = write_result("gate_trials", result)
    write_records(path.with_suffix(".jsonl.gz"), done, seed)
    steady = [one for one in scenarios() if one.model == "steady" and one.spread == 1]
    write_requests(path.with_name(path.stem.replace("trials", "requests") + ".jsonl.gz"), seed, steady)
    return path


def main(
    share: Annotated[float, typer.Option(min=0.0001, max=1, help="Share of the full number of rollouts.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.")] = SEED,
) -> None:
    """Run the study and write it to benchmarks/results."""
    print(study(share, seed=seed))


if __name__ == "__main__":
    typer.run(main)
