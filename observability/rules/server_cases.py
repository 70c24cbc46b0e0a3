# SPDX-License-Identifier: Apache-2.0
"""Cases of the alerts about what requests run on."""

from collections.abc import Mapping

from observability.rules.alert_cases import Case, counter, gauge

_ENGINE = 'model="tensorrt_llm",version="1",instance="a:8002"'
_LABELS = {"model": "tensorrt_llm", "version": "1", "instance": "a:8002"}
_OF_MODEL = {"model": "tensorrt_llm", "version": "1"}
_UP = f"trireme_engine_up{{{_ENGINE}}}"
_WAITING = f"trireme_requests_waiting{{{_ENGINE}}}"
_HPA = 'namespace="llm",horizontalpodautoscaler="trireme-chat"'
_HPAS = "kube_horizontalpodautoscaler"
_DISK = 'instance="node-1",device="/dev/nvme0n1p1",mountpoint="/data",fstype="ext4"'
_DAY = 86400
_POD = 'model="tensorrt_llm",version="1",namespace="llm",server="chat",service="chat",pod="chat-1"'
_ONE_SERVER = {f"trireme_engine_max_num_seqs{{{_POD}}}": "8x150", f"trireme_requests_waiting{{{_POD}}}": "0x150"}


def _blind(*, series: Mapping[str, str], num_servers: int) -> Case:
    """Return a case of the alert about an autoscaler, always for one server."""
    return Case(
        alert="TriremeScalingBlind",
        series={**series, **_ONE_SERVER},
        labels={"namespace": "llm", "service": "chat"},
        summary="llm/chat: its autoscaler does not see the load",
        description=f"{num_servers} servers run, and their number does not follow the load: nothing is recorded of "
        "their requests, or the autoscaler has no answer from Prometheus.",
    )


PLATFORM_CASES = (
    Case(
        alert="TriremeEngineDead",
        # One that is back within a minute is none to wake up for.
        series={_UP: gauge((1, 10), (0, 1), (1, 9), (0, 30), (1, 70))},
        labels=_LABELS,
        summary="tensorrt_llm version 1 on a:8002: the engine is dead and does not come back",
        description="Its process has died or hung, and could not be started again for a minute. Requests are refused "
        "meanwhile.",
        silent_at=11,
    ),
    Case(
        alert="TriremeServerDown",
        series={
            'up{job="trireme",instance="a:8002"}': gauge((1, 20), (0, 30), (1, 70)),
            'up{job="node",instance="a:9100"}': gauge((0, 120)),  # not ours
        },
        labels={"job": "trireme", "instance": "a:8002"},
        summary="a:8002: no metrics from the server",
        description="Prometheus has not reached the metrics of a:8002 for a minute.",
    ),
    Case(
        alert="TriremeNoData",
        series={_UP: gauge((1, 20), (None, 30), (1, 70))},
        summary="no metrics from any engine",
        description="Nothing has been heard of any engine for five minutes, so no other alert can fire: all servers "
        "are gone, none has loaded its model, or Prometheus does not find them.",
        silent_at=28,
    ),
    Case(
        alert="TriremeQueueGrowing",
        # A long queue that becomes shorter is on its way to none.
        series={_WAITING: "200-9x19 5+5x29 0x70"},
        labels=_OF_MODEL,
        summary="tensorrt_llm version 1: the queue does not become shorter",
        description="117.5 requests wait, mean of five minutes, and it does not become fewer.",
    ),
    Case(
        alert="TriremeQueueGrowing",
        # It is far from steady, and empty now and then.
        series={_WAITING: f"{gauge((4, 20))} {' '.join(['2', '60', '30', '0', '45'] * 6)} {gauge((0, 70))}"},
        labels=_OF_MODEL,
        summary="tensorrt_llm version 1: the queue does not become shorter",
        description="23.17 requests wait, mean of five minutes, and it does not become fewer.",
    ),
    Case(
        alert="TriremeQueueGrowing",
        # A bounded queue that is full does not grow any more, of two replicas.
        series={_WAITING: gauge((4, 20), (64, 30), (0, 70)), _WAITING.replace("a:", "b:"): gauge((2, 120))},
        labels=_OF_MODEL,
        summary="tensorrt_llm version 1: the queue does not become shorter",
        description="66 requests wait, mean of five minutes, and it does not become fewer.",
    ),
    Case(
        alert="TriremeKvCacheFull",
        series={f"trireme_kv_cache_usage_fraction{{{_ENGINE}}}": gauge((0.94, 20), (0.97, 30), (0.5, 70))},
        labels=_LABELS,
        summary="tensorrt_llm version 1 on a:8002: the KV cache is full",
        description="97% of the blocks are in use, mean of five minutes. New requests wait, or running ones are "
        "preempted.",
    ),
    Case(
        alert="TriremeKvCacheFull",
        # It is below the limit every other minute.
        series={
            f"trireme_kv_cache_usage_fraction{{{_ENGINE}}}": f"{gauge((0.9, 20))} {'0.94 1 ' * 15}{gauge((0.5, 70))}"
        },
        labels=_LABELS,
        summary="tensorrt_llm version 1 on a:8002: the KV cache is full",
        description="97% of the blocks are in use, mean of five minutes. New requests wait, or running ones are "
        "preempted.",
    ),
    Case(
        alert="TriremePreemptions",
        # Its server is started again at the 40th minute: the counter begins anew, and that is no negative rate.
        series={
            f"trireme_preemptions_total{{{_ENGINE}}}": f"{counter((3, 20), (60, 20))} {counter((60, 10), (0, 70))}"
        },
        labels=_OF_MODEL,
        summary="tensorrt_llm version 1: running requests are preempted",
        description="1 requests a second give up their KV blocks and are computed again.",
        fires_at=49,
    ),
    _blind(
        # Before, the server still loads and has nothing to tell: that is no reason. Another is heard all the time.
        series={
            f"trireme_requests_running{{{_POD}}}": gauge((2, 2), (None, 50), (2, 70)),
            f"{_HPAS}_status_current_replicas{{{_HPA}}}": gauge((1, 122)),
            'kube_deployment_status_replicas_ready{namespace="llm",deployment="chat"}': gauge((0, 20), (1, 102)),
            **{
                name.replace("chat", "small"): values
                for name, values in {f"trireme_requests_running{{{_POD}}}": gauge((2, 122)), **_ONE_SERVER}.items()
            },
            f"{_HPAS}_status_current_replicas{{{_HPA}}}".replace("chat", "small"): gauge((1, 122)),
            'kube_deployment_status_replicas_ready{namespace="llm",deployment="small"}': gauge((1, 122)),
        },
        num_servers=1,
    ),
    _blind(
        # Of a server on several nodes; a group of two pods is one of its replicas. All that is known has other labels.
        series={
            f"trireme_requests_running{{{_POD}}}": gauge((2, 20), (None, 30), (2, 70)),
            f"trireme_requests_running{{{_POD.replace(',service=', ',svc=')}}}": gauge((2, 120)),
            f"{_HPAS}_status_current_replicas{{{_HPA}}}": gauge((3, 120)),
            'kube_statefulset_status_replicas_ready{namespace="llm",statefulset="chat-lws"}': gauge((3, 120)),
            'kube_statefulset_status_replicas_ready{namespace="llm",statefulset="chat-lws-0"}': gauge((1, 120)),
        },
        num_servers=3,
    ),
    _blind(
        # Prometheus knows the load, and the autoscaler does not: the adapter is wrong, or KEDA asks another address.
        series={
            f"trireme_requests_running{{{_POD}}}": gauge((2, 120)),
            f"{_HPAS}_status_current_replicas{{{_HPA}}}": gauge((3, 120)),
            f'{_HPAS}_status_condition{{{_HPA},condition="ScalingActive",status="false"}}': gauge(
                (0, 20), (1, 30), (0, 70)
            ),
        },
        num_servers=3,
    ),
    _blind(
        # KEDA tells its errors alone, in the labels of a scraped operator. A single one at first is nothing.
        series={
            f"trireme_requests_running{{{_POD}}}": gauge((2, 120)),
            f"{_HPAS}_status_current_replicas{{{_HPA}}}": gauge((3, 120)),
            'keda_scaled_object_errors_total{namespace="keda",exported_namespace="llm",scaledObject="trireme-chat"}': (
                "0x9 1x10 4+4x29 120x70"
            ),
        },
        num_servers=3,
    ),
    Case(
        alert="TriremeGpuIdle",
        # As idle with one replica, which is the minimum: nobody can do anything about that.
        series={
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{namespace="llm",pod="chat-1",gpu="0"}': gauge((0.3, 80), (0.8, 70)),
            f"{_HPAS}_status_current_replicas{{{_HPA}}}": gauge((1, 40), (3, 110)),
            f"{_HPAS}_spec_min_replicas{{{_HPA}}}": gauge((1, 150)),
        },
        labels={"namespace": "llm"},
        summary="llm: GPUs are idle, and there are more replicas than the minimum",
        description="The GPUs were active for 30% of half an hour; 50% is expected.",
        silent_at=39,
        fires_at=75,
        resolved_at=120,
    ),
    Case(
        alert="TriremeGpuIdle",
        # A gateway beside the engines has more replicas than its minimum, for reasons of its own. Of two clusters with
        # the same names one is as busy as it should be; the other's autoscaler is told of by two exporters.
        series={
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{cluster="a",namespace="llm",gpu="0"}': gauge((0.3, 80), (0.8, 70)),
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{cluster="b",namespace="llm",gpu="0"}': gauge((0.9, 150)),
            **{
                f'{_HPAS}_{name}_replicas{{cluster="{cluster}",instance="{exporter}",{_HPA}}}': values
                for cluster, exporter in (("a", "x"), ("a", "y"), ("b", "x"))
                for name, values in (
                    ("status_current", gauge((1, 40), (3, 110))),
                    ("spec_min", gauge((1, 150))),
                )
            },
            f'{_HPAS}_status_current_replicas{{cluster="a",namespace="llm",horizontalpodautoscaler="gateway"}}': gauge(
                (3, 150)
            ),
            f'{_HPAS}_spec_min_replicas{{cluster="a",namespace="llm",horizontalpodautoscaler="gateway"}}': gauge(
                (1, 150)
            ),
        },
        labels={"cluster": "a", "namespace": "llm"},
        summary="llm: GPUs are idle, and there are more replicas than the minimum",
        description="The GPUs were active for 30% of half an hour; 50% is expected.",
        silent_at=39,
        fires_at=75,
        resolved_at=120,
    ),
    Case(
        alert="TriremeCertificateExpires",
        # Time begins at 0 here: fourteen days are left after half an hour.
        series={
            'certmanager_certificate_expiration_timestamp_seconds{name="gateway",namespace="llm"}': gauge(
                (14 * _DAY + 1800, 120), (90 * _DAY, 30)
            )
        },
        labels={"name": "gateway", "namespace": "llm"},
        summary="a certificate ends soon: gateway",
        description="It ends in 13d 22h 50m 0s; 14 days before it should have been renewed.",
        silent_at=29,
        fires_at=100,
        resolved_at=125,
    ),
    Case(
        alert="TriremeDiskFull",
        series={
            f"node_filesystem_avail_bytes{{{_DISK}}}": gauge((11e9, 20), (8e9, 30), (50e9, 70)),
            f"node_filesystem_size_bytes{{{_DISK}}}": gauge((100e9, 120)),
        },
        labels={"instance": "node-1", "mountpoint": "/data", "fstype": "ext4"},
        summary="node-1: /data is nearly full",
        description="8% of the disk are free. Releases, logs and the rollout's records are written there.",
    ),
)
