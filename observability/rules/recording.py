# SPDX-License-Identifier: Apache-2.0
"""Recording rules: what alerts, dashboards and autoscalers ask for, worked out once.

`model:` is of a model version over its replicas, `engine:` of one engine, `slo:` of a model over its versions; what
autoscalers ask for is in `scaling`.
"""

from observability.rules.objectives import Objectives
from observability.rules.promql import REPLICA, bucket, quantile, rate, ratio
from observability.rules.rule_files import Group, Record
from observability.rules.scaling import scaling_records

TTFT = "trireme_time_to_first_token_seconds"
TPOT = "trireme_time_per_output_token_seconds"
REQUESTS = "trireme_requests_total"
ERRORS = f'{REQUESTS}{{finish_reason="error"}}'

# Of the error budget; two for each speed of burning it, so that an alert ends soon after its cause.
BUDGET_WINDOWS = ("5m", "30m", "1h", "6h")


def recording_groups(objectives: Objectives) -> tuple[Group, ...]:
    """Return the groups of recording rules; each group only needs what is before it."""
    return (
        Group(name="trireme-latency", rules=_latencies()),
        Group(name="trireme-requests", rules=_requests()),
        Group(name="trireme-engine", rules=_engine()),
        Group(name="trireme-budget", rules=_budget(objectives)),
        Group(name="trireme-scaling", rules=scaling_records()),
    )


def _latencies() -> tuple[Record, ...]:
    return tuple(
        Record(record=f"model:{metric}:p{100 * q:g}_5m", expr=quantile(q, metric, "5m"))
        for metric in (TTFT, TPOT)
        for q in (0.5, 0.99)
    )


def _requests() -> tuple[Record, ...]:
    errors, requests = (rate(metric, "5m", without="finish_reason") for metric in (ERRORS, REQUESTS))
    increase = f"sum without ({REPLICA}, finish_reason) (increase({REQUESTS}[5m]))"
    return (
        Record(record="model:trireme_requests:increase5m", expr=increase),
        Record(record="model:trireme_requests:error_ratio_rate5m", expr=ratio(errors, requests)),
        Record(
            record="model:trireme_requests_waiting:sum", expr=f"sum without ({REPLICA}) (trireme_requests_waiting)"
        ),
        Record(
            record="model:trireme_output_tokens:rate1m", expr=rate("trireme_engine_output_tokens_total", "1m")
        ),
        Record(
            record="model:trireme_prompt_tokens:rate1m", expr=rate("trireme_engine_prompt_tokens_total", "1m")
        ),
        Record(record="model:trireme_preemptions:rate5m", expr=rate("trireme_preemptions_total", "5m")),
    )  # fmt: skip


def _engine() -> tuple[Record, ...]:
    """Return rules for engines that had work in the last minute; MBU and MFU of those whose figures are known."""

    def each(name: str) -> str:
        return f"rate(trireme_engine_{name}_total[1m])"

    read = (
        f"({each('steps')} * trireme_engine_weight_bytes "
        f"+ {each('kv_read_tokens')} * trireme_engine_kv_bytes_per_token)"
    )
    done = f"({each('prompt_tokens')} + {each('output_tokens')}) * trireme_engine_flops_per_token"
    in_steps = f"({each('step_seconds')} > 0)"
    return (
        Record(
            record="engine:trireme_mbu:ratio_rate1m",
            expr=f"{read}\n/ {in_steps}\n/ trireme_engine_peak_bandwidth_bytes_per_second",
        ),
        Record(record="engine:trireme_mfu:ratio_rate1m", expr=f"{done}\n/ {in_steps}\n/ trireme_engine_peak_flops"),
        Record(record="engine:trireme_step_seconds:mean1m", expr=ratio(each("step_seconds"), each("steps"))),
        Record(record="engine:trireme_batch_sequences:mean1m", expr=ratio(each("batch_sequences"), each("steps"))),
        Record(
            record="engine:trireme_prefill_time:ratio_rate1m",
            expr=ratio(each("prefill_step_seconds"), each("step_seconds")),
        ),
    )


def _budget(objectives: Objectives) -> tuple[Record, ...]:
    rules = []
    bound = bucket(objectives.ttft_bucket_s)
    for window in BUDGET_WINDOWS:
        errors, requests = (rate(metric, window, without="version, finish_reason") for metric in (ERRORS, REQUESTS))
        in_time = rate(f"{TTFT}_bucket{bound}", window, without="version, le")
        answered = rate(f"{TTFT}_count", window, without="version")
        name = f"slo:trireme_bad_requests:ratio_rate{window}"
        rules.append(Record(record=name, expr=ratio(errors, requests), labels=(("slo", "availability"),)))
        rules.append(Record(record=name, expr=f"1 - {ratio(in_time, answered)}", labels=(("slo", "ttft"),)))
        increase = f"sum without ({REPLICA}, version, finish_reason) (increase({REQUESTS}[{window}]))"
        rules.append(Record(record=f"slo:trireme_requests:increase{window}", expr=increase))
    return tuple(rules)
