# SPDX-License-Identifier: Apache-2.0
"""Alerts about what requests run on: engines, queues, KV cache, autoscalers, GPUs.

Others are about upkeep, and about metrics that are missing.
"""

from observability.rules.objectives import Objectives
from observability.rules.promql import AUTOSCALER
from observability.rules.rule_files import Alert
from observability.rules.scaling import scaling_alert

_OF_ENGINE = "{{ $labels.model }} version {{ $labels.version }} on {{ $labels.instance }}"
_OF_MODEL = "{{ $labels.model }} version {{ $labels.version }}"


def server_alerts(objectives: Objectives) -> tuple[Alert, ...]:
    """Return the alerts about what requests run on."""
    return (*_presence(), *_capacity(objectives), scaling_alert(), _idle_gpus(objectives), *_upkeep(objectives))


def _presence() -> tuple[Alert, ...]:
    return (
        Alert(
            name="TriremeEngineDead",
            expr="trireme_engine_up == 0",
            lasts="1m",
            severity="page",
            summary=f"{_OF_ENGINE}: the engine is dead and does not come back",
            description="Its process has died or hung, and could not be started again for a minute. Requests are "
            "refused meanwhile.",
        ),
        Alert(
            name="TriremeServerDown",
            expr='up{job=~".*trireme.*"} == 0',
            lasts="1m",
            severity="page",
            summary="{{ $labels.instance }}: no metrics from the server",
            description="Prometheus has not reached the metrics of {{ $labels.instance }} for a minute.",
        ),
        Alert(
            name="TriremeNoData",
            # The family appears when an engine is loaded; a server without one has nothing to tell either.
            expr="absent(trireme_engine_up)",
            lasts="5m",
            severity="page",
            summary="no metrics from any engine",
            description="Nothing has been heard of any engine for five minutes, so no other alert can fire: all "
            "servers are gone, none has loaded its model, or Prometheus does not find them.",
        ),
    )


def _capacity(targets: Objectives) -> tuple[Alert, ...]:
    waiting = "model:trireme_requests_waiting:sum"
    return (
        Alert(
            name="TriremeQueueGrowing",
            # A bounded queue that is full does not grow; it does not become shorter either. Means, for a queue goes up
            # and down by itself, and one scrape below any limit would begin the time anew.
            expr=f"""
                avg_over_time({waiting}[5m]) > {targets.max_waiting}
                and
                avg_over_time({waiting}[5m])
                >= 0.9 * (avg_over_time({waiting}[5m] offset 5m) or 0 * avg_over_time({waiting}[5m]))
            """,
            lasts="5m",
            severity="ticket",
            summary=f"{_OF_MODEL}: the queue does not become shorter",
            description="{{ $value | humanize }} requests wait, mean of five minutes, and it does not become fewer.",
        ),
        Alert(
            name="TriremeKvCacheFull",
            expr=f"avg_over_time(trireme_kv_cache_usage_fraction[5m]) > {targets.kv_cache_share:g}",
            lasts="5m",
            severity="ticket",
            summary=f"{_OF_ENGINE}: the KV cache is full",
            description="{{ $value | humanizePercentage }} of the blocks are in use, mean of five minutes. New "
            "requests wait, or running ones are preempted.",
        ),
        Alert(
            name="TriremePreemptions",
            expr=f"model:trireme_preemptions:rate5m > {targets.preemptions_per_s:g}",
            lasts="5m",
            severity="ticket",
            summary=f"{_OF_MODEL}: running requests are preempted",
            description="{{ $value | humanize }} requests a second give up their KV blocks and are computed again.",
        ),
    )


def _idle_gpus(targets: Objectives) -> Alert:
    # In `by`, so that two exporters of the same cluster are one; a label that nothing has is the same everywhere.
    of_hpa = "max by (cluster, namespace, horizontalpodautoscaler)"
    current, least = (
        f"{of_hpa} (kube_horizontalpodautoscaler_{name}_replicas{{{AUTOSCALER}}})"
        for name in ("status_current", "spec_min")
    )
    return Alert(
        name="TriremeGpuIdle",
        # DCGM's share of time in which any kernel ran: of a GPU below half of that, half is paid for nothing. It says
        # nothing of how well the time is used; that is MBU and MFU. One replica that is kept off hours does not count.
        expr=f"""
            avg by (cluster, namespace) (avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[30m]))
            < {targets.gpu_active_share:g}
            and on (cluster, namespace)
            ({current} > {least})
        """,
        lasts="30m",
        severity="ticket",
        summary="{{ $labels.namespace }}: GPUs are idle, and there are more replicas than the minimum",
        description="The GPUs were active for {{ $value | humanizePercentage }} of half an hour; "
        f"{targets.gpu_active_share:.0%} is expected.",
    )


def _upkeep(targets: Objectives) -> tuple[Alert, ...]:
    volatile = 'fstype!~"tmpfs|overlay|squashfs|ramfs"'
    days = "86400"
    return (
        Alert(
            name="TriremeCertificateExpires",
            # cert-manager's, or what a blackbox exporter saw of the address itself.
            expr=f"""
                (certmanager_certificate_expiration_timestamp_seconds or probe_ssl_earliest_cert_expiry) - time()
                < {targets.certificate_days} * {days}
            """,
            lasts="1h",
            severity="ticket",
            summary="a certificate ends soon: "
            "{{ if $labels.name }}{{ $labels.name }}{{ else }}{{ $labels.instance }}{{ end }}",
            description=f"It ends in {{{{ $value | humanizeDuration }}}}; {targets.certificate_days} days before it "
            "should have been renewed.",
        ),
        Alert(
            name="TriremeDiskFull",
            expr=f"""
                min without (device) (
                  node_filesystem_avail_bytes{{{volatile}}} / node_filesystem_size_bytes{{{volatile}}}
                ) < {targets.disk_free_share:g}
            """,
            lasts="15m",
            severity="ticket",
            summary="{{ $labels.instance }}: {{ $labels.mountpoint }} is nearly full",
            description="{{ $value | humanizePercentage }} of the disk are free. Releases, logs and the rollout's "
            "records are written there.",
        ),
    )
