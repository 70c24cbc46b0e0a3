# SPDX-License-Identifier: Apache-2.0
"""Cases of the alerts about what users get."""

from collections.abc import Mapping

from observability.rules.alert_cases import Case, Phases, histogram, requests
from observability.rules.recording import TPOT, TTFT

_ENSEMBLE = {"model": "ensemble", "version": "1"}
_CANARY = {"model": "ensemble", "version": "2"}
_STEADY: Phases = ((200, 20), (200, 30), (200, 70))
_NONE: Phases = ((0, 20), (0, 30), (0, 70))
_BAD: Phases = ((0, 20), (200, 30), (0, 70))
_GOOD: Phases = ((200, 20), (0, 30), (200, 70))
_STARTS_BAD: Phases = ((200, 20), (200, 30), (0, 70))  # and only then becomes good
_STARTS_GOOD: Phases = ((0, 20), (0, 30), (200, 70))
_ALL_GOOD = requests(good=_STEADY, bad=_NONE)
_LATE_FOR_A_WHILE = histogram(
    TTFT, (1.0, 2.5), fast=((100, 20), (60, 21), (100, 20)), slow=((0, 20), (40, 21), (0, 20))
)


def _burns_fast(series: Mapping[str, str], *, slo: str, missed: str) -> Case:
    return Case(
        alert="TriremeBudgetBurnFast",
        series=series,
        labels={"model": "ensemble", "slo": slo},
        summary=f"ensemble: the error budget of {slo} burns fast",
        description=f"{missed} of the requests of an hour missed the target of {slo}.",
        fires_at=40,
        resolved_at=50,
    )


SERVICE_CASES = (
    Case(
        alert="TriremeTtftP99High",
        series={**histogram(TTFT, (1.0, 2.5), fast=_GOOD, slow=_BAD), **_ALL_GOOD},
        labels=_ENSEMBLE,
        summary="ensemble version 1: the first token comes late",
        description="p99 of the time to the first token is 2.485s, over five minutes; the target is 1s.",
    ),
    Case(
        alert="TriremeTpotP99High",
        series={**histogram(TPOT, (0.1, 0.15), fast=_GOOD, slow=_BAD), **_ALL_GOOD},
        labels=_ENSEMBLE,
        summary="ensemble version 1: tokens come slowly",
        description="p99 of the time per output token is 149.5ms, over five minutes; the target is 0.1s.",
    ),
    Case(
        alert="TriremeErrorRateHigh",
        # 0.5 % is within the budget.
        series=requests(good=((199, 20), (190, 30), (199, 70)), bad=((1, 20), (10, 30), (1, 70))),
        labels=_ENSEMBLE,
        summary="ensemble version 1: requests fail",
        description="5% of the requests of five minutes ended in an error; 1.00% may.",
    ),
    _burns_fast(
        # Half of the time until the 40th minute went wrong; ten minutes later the last five are clean.
        requests(good=((100, 20), (0, 21), (100, 20)), bad=((0, 20), (100, 21), (0, 20))),
        slo="availability",
        missed="52.5%",
    ),
    _burns_fast({**_LATE_FOR_A_WHILE, **_ALL_GOOD}, slo="ttft", missed="21%"),
    _burns_fast(
        # As Prometheus 3 writes the bound of one second.
        {
            **{name.replace('le="1"', 'le="1.0"'): values for name, values in _LATE_FOR_A_WHILE.items()},
            **_ALL_GOOD,
        },
        slo="ttft",
        missed="21%",
    ),
    _burns_fast(
        # One request in ten minutes, and each fails: of so few nothing is judged.
        requests(good=((0, 20), (0, 21), (100, 20)), bad=((0.1, 20), (100, 21), (0, 20))),
        slo="availability",
        missed="100%",
    ),
    Case(
        alert="TriremeBudgetBurnSlow",
        # One in ten, which is too few for the fast alert, for most of the time that there is.
        series=requests(good=((100, 60), (90, 201), (100, 60)), bad=((0, 60), (10, 201), (0, 60))),
        labels={"model": "ensemble", "slo": "availability"},
        summary="ensemble: the error budget of availability burns steadily",
        description="7.731% of the requests of six hours missed the target of availability.",
        silent_at=70,
        fires_at=260,
        resolved_at=300,
    ),
    Case(
        alert="TriremeCanaryFails",
        # Both releases fail at first: that is not the canary's fault.
        series={
            **requests(good=_STARTS_GOOD, bad=_STARTS_BAD, model="ensemble_canary", version="2"),
            **requests(good=_BAD, bad=_GOOD),
        },
        labels=_CANARY,
        summary="ensemble: the canary, version 2, fails requests, and the stable release does not",
        description="100% of its requests of five minutes ended in an error; 1.00% may.",
    ),
    Case(
        alert="TriremeCanarySlow",
        series={
            **histogram(
                TTFT, (1.0, 2.5), fast=_STARTS_GOOD, slow=_STARTS_BAD, model="ensemble_canary", version="2"
            ),
            **requests(good=_STEADY, bad=_NONE, model="ensemble_canary", version="2"),
            **histogram(TTFT, (1.0, 2.5), fast=_BAD, slow=_GOOD),
        },
        labels=_CANARY,
        summary="ensemble: the canary, version 2, is late, and the stable release is not",
        description="p99 of its time to the first token is 2.485s, over five minutes; the target is 1s.",
    ),
)  # fmt: skip
