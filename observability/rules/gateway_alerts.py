# SPDX-License-Identifier: Apache-2.0
"""Alerts about gateways: what callers get, who answers in place of a model, and what waits for the ledger."""

from observability.rules.objectives import Objectives
from observability.rules.promql import REPLICA
from observability.rules.rule_files import Alert

_FAULTS = 'code=~"server_error|timeout|unavailable"'
_ANSWERS = "gen_ai_server_request_duration_seconds_count"
_WINDOW = "5m"


def gateway_alerts(objectives: Objectives) -> tuple[Alert, ...]:
    """Return the alerts about gateways."""
    return (_failing(objectives), _falling_back(objectives), _moving(objectives), _ledger_behind(objectives))


def _failing(targets: Objectives) -> Alert:
    faults = f"sum without ({REPLICA}, code) (increase(trireme_gateway_errors_total{{{_FAULTS}}}[{_WINDOW}]))"
    answers = (
        f"sum without ({REPLICA}, gen_ai_operation_name, gen_ai_request_model, error_type) "
        f'(increase({_ANSWERS}{{error_type=""}}[{_WINDOW}]))'
    )
    return Alert(
        name="TriremeGatewayFails",
        # A request that found no database of keys is an error, and no answer.
        expr=f"""
            {faults}
            / ({faults} + ({answers} or 0 * {faults}))
            > {targets.error_share:g}
            and
            {faults} >= {targets.min_requests}
        """,
        lasts="5m",
        severity="page",
        summary="the gateway fails requests",
        description="{{ $value | humanizePercentage }} of what callers asked in five minutes ended in an error of ours "
        f"(server_error, timeout, unavailable); {targets.error_share:.2%} may.",
    )


def _falling_back(targets: Objectives) -> Alert:
    others = f"sum without ({REPLICA}, answered_by) (increase(trireme_gateway_fallbacks_total[{_WINDOW}]))"
    of_model = f"sum without ({REPLICA}, gen_ai_operation_name, error_type) (increase({_ANSWERS}[{_WINDOW}]))"
    return Alert(
        name="TriremeFallbacks",
        expr=f"""
            {others}
            / ({of_model} > 0)
            > {targets.fallback_share:g}
            and
            {of_model} >= {targets.min_requests}
        """,
        lasts="5m",
        severity="ticket",
        summary="{{ $labels.gen_ai_request_model }}: others answer in its place",
        description="{{ $value | humanizePercentage }} of the answers of five minutes came from another model, or from "
        f"a managed API, which sees the prompts and has prices of its own; {targets.fallback_share:.0%} may.",
    )


def _moving(targets: Objectives) -> Alert:
    return Alert(
        name="TriremeStreamsMove",
        expr=f"""
            sum without ({REPLICA}) (increase(trireme_gateway_stream_gap_seconds_count[15m])) > {targets.moved_streams}
        """,
        lasts="5m",
        severity="ticket",
        summary="streams go on at other servers, again and again",
        description="{{ $value | humanize }} streams of a quarter of an hour lost their server and went on at another "
        "one. Callers saw a gap; their prompts and answers were computed again.",
    )


def _ledger_behind(targets: Objectives) -> Alert:
    return Alert(
        name="TriremeLedgerBehind",
        expr=f"trireme_gateway_ledger_waiting_bytes > {targets.ledger_waiting_bytes}",
        lasts="10m",
        severity="ticket",
        summary="{{ $labels.instance }}: requests wait for the ledger's database",
        description="{{ $value | humanize1024 }}B of the journal are not in the database. Budgets count what is there; "
        "the journal grows by some 500 bytes a request, on the gateway's own disk.",
    )
