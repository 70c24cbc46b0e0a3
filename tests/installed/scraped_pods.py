# SPDX-License-Identifier: Apache-2.0
"""The scrape configuration of the chart's PodMonitor, as prometheus-operator makes it, without a cluster."""

from typing import Any

# As discovery calls what a pod says of itself; the operator's own rules make these three labels of it.
_OF_POD = (
    ("__meta_kubernetes_namespace", "namespace"),
    ("__meta_kubernetes_pod_container_name", "container"),
    ("__meta_kubernetes_pod_name", "pod"),
)


def relabel_configs(monitor: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the relabelling of a PodMonitor with one endpoint.

    Source: prometheus-operator 0.93.0, pkg/prometheus/promcfg.go.
    """
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    own = [{"source_labels": [source], "target_label": target} for source, target in _OF_POD]
    name = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return [
        *own,
        {"target_label": "job", "replacement": name},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *({names.get(key, key): value for key, value in rule.items()} for rule in endpoint["relabelings"]),
    ]


def discovered(address: str, *, pod: str, server: str, namespace: str = "llm") -> dict[str, Any]:
    """Return a pod as discovery finds it, in a file that Prometheus reads."""
    return {
        "targets": [address],
        "labels": {
            "__meta_kubernetes_namespace": namespace,
            "__meta_kubernetes_pod_container_name": "triton",
            "__meta_kubernetes_pod_name": pod,
            "__meta_kubernetes_pod_label_trireme_server": server,
        },
    }
