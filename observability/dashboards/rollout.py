# SPDX-License-Identifier: Apache-2.0
"""The dashboard of a rollout: the canary beside the stable release. The verdict is the gate's, not a graph's."""

from observability.dashboards.panels import RATE, Dashboard, Panel, panel
from observability.rules.promql import CANARY, STABLE
from observability.rules.recording import TPOT, TTFT

# The ways that clients take to a release; the graph and the steps behind them have versions, too.
_ROUTES = 'model=~".*ensemble(_canary)?|.*tensorrt_llm_bls"'
_REQUESTS = "trireme_requests_total"


def rollout_dashboard() -> Dashboard:
    """Return the dashboard's title, rows and panels."""
    return Dashboard(
        uid="trireme-rollout",
        title="Trireme: rollout",
        description="A canary (ensemble_canary) beside the stable release, by version. docs/rollouts.md",
        rows=(("Traffic", _traffic()), ("How it answers", _answers()), ("Its engines", _engines())),
    )


def _traffic() -> tuple[Panel, ...]:
    canary = f"sum(rate({_REQUESTS}{{{CANARY}}}{RATE}))"
    both = f"sum(rate({_REQUESTS}{{{_ROUTES}}}{RATE}))"
    return (
        panel("Requests", "reqps", f"sum by (model, version) (rate({_REQUESTS}{{{_ROUTES}}}{RATE}))"),
        panel(
            "The canary's share",
            "percentunit",
            (f"{canary} / ({both} > 0)", "of all requests"),
            description="Share of the requests that ended.",
        ),
        panel(
            "Errors",
            "percentunit",
            f"model:trireme_requests:error_ratio_rate5m{{{_ROUTES}}}",
        ),
    )


def _answers() -> tuple[Panel, ...]:
    def percentile(q: float, histogram: str) -> str:
        return (
            f"histogram_quantile({q:g}, sum by (le, model, version) (rate({histogram}_bucket{{{_ROUTES}}}{RATE}))) >= 0"
        )

    mean = "sum by (model, version) (rate(nv_llm_output_token_len_{}{{{}}}{}))"
    return (
        panel("p50 of the time to first token", "s", percentile(0.5, TTFT)),
        panel("p99 of the time to first token", "s", percentile(0.99, TTFT)),
        panel("p50 of the time per output token", "s", percentile(0.5, TPOT)),
        panel(
            "Mean output length",
            "none",
            f"{mean.format('sum', _ROUTES, RATE)} / ({mean.format('count', _ROUTES, RATE)} > 0)",
            description="A release that answers shorter is not the same release.",
        ),
        panel(
            "How answers end",
            "reqps",
            (
                f"sum by (finish_reason, version) (rate({_REQUESTS}{{{_ROUTES}}}{RATE}))",
                "{{version}} {{finish_reason}}",
            ),
        ),
        panel(
            "p99 of the time to first token, canary over stable",
            "none",
            (
                f"max(model:{TTFT}:p99_5m{{{CANARY}}}) / max(model:{TTFT}:p99_5m{{{STABLE}}})",
                "ratio",
            ),
            description="From histograms, so coarse. The gate judges raw samples.",
        ),
    )


def _engines() -> tuple[Panel, ...]:
    return (
        panel("Engine up", "none", "min by (model, version) (trireme_engine_up)", is_number=True),
        panel("Output tokens", "none", "model:trireme_output_tokens:rate1m", description="Tokens a second."),
        panel("Requests that wait", "none", "model:trireme_requests_waiting:sum"),
    )
