# SPDX-License-Identifier: Apache-2.0
"""Metrics for autoscalers in Kubernetes: how many full servers a server's requests make, and their KV caches.

A sum over pods, not a mean: how many servers are wanted then does not depend on how many there are, and one that loads
changes nothing. The chart asks KEDA to work out the same (`helm/trireme/templates/_scaling.tpl`); Kubernetes' own
autoscaler gets these through prometheus-adapter, which has no use for names with colons.
"""

from observability.rules.rule_files import Alert, Record

LOAD = "trireme_server_load"
KV_USE = "trireme_server_kv_use"
PREFILL_TIME = "trireme_server_prefill_time"

_OF_SERVER = "cluster, namespace, server, service"  # a server is what a Service of the chart leads to
# A scrape that fails leaves the pod's last value for so long; so does a pod that is gone.
_WINDOW = "3m"
_AUTOSCALER = 'horizontalpodautoscaler=~"trireme-.+"'  # the chart's: trireme-SERVICE


def scaling_records() -> tuple[Record, ...]:
    """Return the recording rules, of pods alone: elsewhere nothing says which replicas are of one server."""
    requests = f"({_last('trireme_requests_running')} + {_last('trireme_requests_waiting')})"
    # Counts for servers that compute prompts for others: they have few requests at a time, and no time left.
    prefill_time = 'rate(trireme_engine_prefill_step_seconds_total{pod!=""}[2m])'
    load = f"{requests}\n    / ({_last('trireme_engine_max_num_seqs')} > 0)"
    return (
        Record(record=LOAD, expr=_sum_of_fullest(load)),
        Record(record=KV_USE, expr=_sum_of_fullest(_last("trireme_kv_cache_usage_fraction"))),
        Record(record=PREFILL_TIME, expr=_sum_of_fullest(prefill_time)),
    )


def _last(metric: str) -> str:
    return f'last_over_time({metric}{{pod!=""}}[{_WINDOW}])'


def _sum_of_fullest(of_model: str) -> str:
    # NaN is not >= 0: of what is not known nothing is recorded. prometheus-adapter would make a number of it.
    return (
        f"sum by ({_OF_SERVER}) (\n  max by ({_OF_SERVER}, pod) (\n    {of_model}\n  )\n) >= 0"
    )  # fmt: skip


def scaling_alert() -> Alert:
    """Return the alert for an autoscaler that would not notice load.

    Either nothing is recorded for servers that are ready, or the autoscaler has no answer.
    """
    of_service = "by (cluster, namespace, service)"

    def by_service(series: str, name: str, pattern: str) -> str:
        return f'max {of_service} (label_replace({series}, "service", "$1", "{name}", "{pattern}"))'

    def of_autoscaler(metric: str, selector: str = "") -> str:
        series = f"kube_horizontalpodautoscaler_{metric}{{{_AUTOSCALER}{selector}}}"
        return by_service(series, "horizontalpodautoscaler", "trireme-(.+)")

    ready = " or ".join(
        (
            by_service("kube_deployment_status_replicas_ready", "deployment", "(.+)"),
            by_service("kube_statefulset_status_replicas_ready", "statefulset", "(.+)-lws"),
        )
    )
    # KEDA's own count, for it hides an answer that it lacks from the autoscaler. With its operator scraped as most are,
    # the namespace of the object is in another label.
    errors = (
        'label_replace(increase(keda_scaled_object_errors_total[5m]), "namespace", "$1", "exported_namespace", "(.+)")'
    )
    failing = " or ".join(
        (
            of_autoscaler("status_condition", ',condition="ScalingActive",status="false"') + " == 1",
            by_service(errors, "scaledObject", "trireme-(.+)") + " > 0",
        )
    )
    replicas = of_autoscaler("status_current_replicas")
    return Alert(
        name="TriremeScalingBlind",
        expr=f"""
            ({replicas}
            and ({ready}) > 0
            unless max {of_service} ({LOAD}))
            or
            ({replicas}
            and ({failing}))
        """,
        lasts="10m",
        severity="ticket",
        summary="{{ $labels.namespace }}/{{ $labels.service }}: its autoscaler does not see the load",
        description="{{ $value }} servers run, and their number does not follow the load: nothing is recorded of their "
        "requests, or the autoscaler has no answer from Prometheus.",
    )
