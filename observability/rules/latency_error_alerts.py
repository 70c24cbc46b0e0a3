# SPDX-License-Identifier: Apache-2.0
"""Alerts about what users get: latency, errors, the error budget, a canary."""

from observability.rules.objectives import Objectives
from observability.rules.promql import CANARY, STABLE, as_stable
from observability.rules.recording import TPOT, TTFT
from observability.rules.rule_files import Alert

_ERROR_RATIO = "model:trireme_requests:error_ratio_rate5m"
_BAD = "slo:trireme_bad_requests:ratio_rate"
_MOST_BAD = 0.9  # no share is above 1: a budget of a tenth could not burn 14.4 times as fast
_OF_MODEL = "{{ $labels.model }} version {{ $labels.version }}"


def latency_error_alerts(objectives: Objectives) -> tuple[Alert, ...]:
    """Return the alerts about what users get."""
    return (*_of_all(objectives), *_of_budget(objectives), *_of_canary(objectives))


def _of_all(targets: Objectives) -> tuple[Alert, ...]:
    enough = f"model:trireme_requests:increase5m >= {targets.min_requests}"
    return (
        Alert(
            name="TriremeTtftP99High",
            expr=f"model:{TTFT}:p99_5m > {targets.ttft_p99_s:g}\nand\n{enough}",
            lasts="5m",
            severity="page",
            summary=f"{_OF_MODEL}: the first token comes late",
            description="p99 of the time to the first token is {{ $value | humanizeDuration }}, over five minutes; "
            f"the target is {targets.ttft_p99_s:g}s.",
        ),
        Alert(
            name="TriremeTpotP99High",
            expr=f"model:{TPOT}:p99_5m > {targets.tpot_p99_s:g}\nand\n{enough}",
            lasts="5m",
            severity="ticket",
            summary=f"{_OF_MODEL}: tokens come slowly",
            description="p99 of the time per output token is {{ $value | humanizeDuration }}, over five minutes; "
            f"the target is {targets.tpot_p99_s:g}s.",
        ),
        Alert(
            name="TriremeErrorRateHigh",
            expr=f"{_ERROR_RATIO} > {targets.error_share:g}\nand\n{enough}",
            lasts="5m",
            severity="page",
            summary=f"{_OF_MODEL}: requests fail",
            description="{{ $value | humanizePercentage }} of the requests of five minutes ended in an error; "
            f"{targets.error_share:.2%} may.",
        ),
    )


def _of_budget(targets: Objectives) -> tuple[Alert, ...]:
    """Return the alerts of the error budget.

    Each has two windows: the long one says that it matters, the short one that it still goes on.
    """

    def burns(speed: float, windows: tuple[str, str]) -> str:
        # The budget of a target is what it leaves: the labels say which one a series is of. Of fewer requests than are
        # judged, one that fails would be all of the budget.
        enough = f"ignoring (slo) slo:trireme_requests:increase{windows[0]} >= {targets.min_requests}"
        budgets = {"availability": targets.error_share, "ttft": round(1 - targets.ttft_share, 6)}
        return "\nor\n".join(
            "("
            + "\nand\n".join(
                f'{_BAD}{window}{{slo="{slo}"}} > {min(speed * budget, _MOST_BAD):g}' for window in windows
            )
            + f"\nand {enough})"
            for slo, budget in budgets.items()
        )

    described = "{{ $value | humanizePercentage }} of the requests of %s missed the target of {{ $labels.slo }}."
    return (
        Alert(
            name="TriremeBudgetBurnFast",
            expr=burns(targets.fast_burn, ("1h", "5m")),
            lasts="2m",
            severity="page",
            summary="{{ $labels.model }}: the error budget of {{ $labels.slo }} burns fast",
            description=described % "an hour",
        ),
        Alert(
            name="TriremeBudgetBurnSlow",
            expr=burns(targets.slow_burn, ("6h", "30m")),
            lasts="15m",
            severity="ticket",
            summary="{{ $labels.model }}: the error budget of {{ $labels.slo }} burns steadily",
            description=described % "six hours",
        ),
    )


def _of_canary(targets: Objectives) -> tuple[Alert, ...]:
    """Return the alerts of a canary, silent where the stable release does as badly: other alerts tell of that.

    No judgement: that is the rollout's gate, on raw samples. These are for rollouts whose controller is not there, or
    that a person holds.
    """

    def only_canary(series: str, limit: float) -> str:
        canary, stable = as_stable(f"{series}{{{CANARY}}}"), f"max without (version) ({series}{{{STABLE}}})"
        enough = as_stable(f"model:trireme_requests:increase5m{{{CANARY}}}")
        bad = f"(\n{canary} > {limit:g}\nand\n{enough} >= {targets.min_requests}\n)"
        return f"{bad}\nunless ignoring (version)\n{stable} > {limit:g}"

    of_canary = "{{ $labels.model }}: the canary, version {{ $labels.version }},"
    return (
        Alert(
            name="TriremeCanaryFails",
            expr=only_canary(_ERROR_RATIO, targets.error_share),
            lasts="2m",
            severity="page",
            summary=f"{of_canary} fails requests, and the stable release does not",
            description="{{ $value | humanizePercentage }} of its requests of five minutes ended in an error; "
            f"{targets.error_share:.2%} may.",
        ),
        Alert(
            name="TriremeCanarySlow",
            expr=only_canary(f"model:{TTFT}:p99_5m", targets.ttft_p99_s),
            lasts="2m",
            severity="page",
            summary=f"{of_canary} is late, and the stable release is not",
            description="p99 of its time to the first token is {{ $value | humanizeDuration }}, over five minutes; "
            f"the target is {targets.ttft_p99_s:g}s.",
        ),
    )
