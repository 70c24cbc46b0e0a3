# SPDX-License-Identifier: Apache-2.0
"""Deployments and sites whose every combination the chart's tests render, and what they ask of the result."""

import functools
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chart_here import (
    IMAGES,
    Documents,
    Values,
    deployment_values,
    merged,
)

PICKERS = dict.fromkeys(("chat", "chat-2", "code", "draft"), "picker")
CLIENTS: dict[str, Any] = {"clients": [{"podSelector": {"matchLabels": {"app": "web"}}}]}
CANARY = {"traffic": {"chat": {"candidate": "chat-2", "candidateWeight": 2500, "salt": "7"}}}


@functools.cache
def deployments() -> dict[str, dict[str, Any]]:
    """Values of deployments, by what is particular about them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def of(name: str, *models: Mapping[str, Any]) -> dict[str, Any]:
            path = folder / f"{name}.yaml"
            path.write_text(json.dumps({"name": name, "models": list(models)}))
            return merged(deployment_values(path), IMAGES)

        model = {"tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}

        def engine(name: str, **more: Any) -> dict[str, Any]:
            return {"name": name, **model, **more}

        trt = {"provider": "tensorrt", "tp_size": 4, "gpus_per_node": 4}
        return {
            "one": of("one", engine("chat")),
            "canary": of("canary", engine("chat", other_releases=[{"release": 2, **model}])),
            "several": of("several", engine("chat", prefix=""), engine("code"), engine("draft", endpoints=[])),
            "gpus": of("gpus", {"name": "chat", "release_dir": "/releases/chat", "engine": trt}),
            "nodes": merged(
                of("nodes", {"name": "chat", "release_dir": "/releases/chat", "engine": {**trt, "pp_size": 2}}),
                {"multiNode": {"sshSecret": "keys"}},
            ),
        }


SITES: dict[str, Values] = {
    "plain": {},
    "all of security": {
        "controlKey": {"secret": "control"},
        "remoteControl": {"secret": "rollouts"},
        "imagePullSecrets": ["pull"],
        "network": {
            **CLIENTS,
            "monitoring": [{"namespaceSelector": {}}],
            "egress": [{"ports": [{"port": 4318}]}],
            "rollouts": [{"podSelector": {}}],
        },
    },
    "TLS of Triton's own": {
        "grpcTls": {
            "directory": "/etc/trireme/grpc-tls",
            "isMutual": True,
            "secret": "triton-tls",
            "serverName": "chat.models.svc",
            "envoySecret": "envoy-client",
        },
        "envoy": {"enabled": True},
        "gatewayApi": {"backendTls": {"caConfigMap": "triton-ca"}},
    },
    "no policies": {"network": {"enabled": False}, "spread": {"topologyKeys": []}},
    "pulled to a host path": {
        "releases": {"pull": {"enabled": True, "claim": "r", "cacheHostPath": "/nvme", "cacheClaim": ""}}
    },
    "pulled to a claim": {
        "releases": {"pull": {"enabled": True, "claim": "r", "cacheClaim": "nvme", "cacheHostPath": ""}}
    },
    "envoy": {"envoy": {"enabled": True}, "network": CLIENTS},
    "envoy, all of it": {
        "envoy": {
            "enabled": True,
            "adaptiveConcurrency": {"enabled": True},
            "tls": {"secret": "tls"},
            "accessLog": False,
        },
        "network": {**CLIENTS, "monitoring": [{"podSelector": {}}]},
        "imagePullSecrets": ["pull"],
    },
    "gateway": {"gatewayApi": {"enabled": True, "gateways": [{"name": "g", "namespace": "n"}]}},
    "gateway, TLS of Triton's own": {
        "grpcTls": {
            "directory": "/etc/trireme/grpc-tls",
            "isMutual": True,
            "secret": "triton-tls",
            "serverName": "chat.models.svc",
        },
        "gatewayApi": {
            "enabled": True,
            "gateways": [{"name": "g", "namespace": "n"}],
            "backendTls": {"caConfigMap": "triton-ca", "version": "v1alpha3"},
        },
    },
    "gateway, pool": {
        "gatewayApi": {
            "enabled": True,
            "gateways": [{"name": "g", "sectionName": "web"}],
            "hostnames": ["llm.example.com"],
            "inferencePool": {"enabled": True, "endpointPickers": PICKERS},
        }
    },
    "rollouts": {
        "remoteControl": {"secret": "rollouts"},
        "rollouts": {"enabled": True, "access": "key-of-rollouts"},
    },
    "rollouts in a database": {
        "remoteControl": {"secret": "rollouts"},
        "rollouts": {
            "enabled": True,
            "access": "key-of-rollouts",
            "store": {"url": "postgresql://rollouts@db:5432/chat", "secret": "database"},
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"port": 5432}]}],
            "priorityClassName": "high",
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"operator": "Exists"}],
        },
        "gatewayApi": {"enabled": True, "gateways": [{"name": "g"}]},
    },
    "openai": {"openai": {"enabled": True, "tls": {"secret": "openai-tls"}, "keys": {"secret": "openai-keys"}}},
    "openai, all of it": {
        "openai": {
            "enabled": True,
            "tls": {"secret": "openai-tls", "serverName": "llm.example.com"},
            "keys": {"url": "postgresql://gateway@db.data:5432/gateway", "secret": ""},
            "ledger": {"url": "postgresql://gateway@db.data:5432/gateway", "journal": {"storageClass": "fast"}},
            "limits": {"url": "redis://redis.data:6379/0"},
            "databaseSecret": "gateway-db",
            "redisSecret": "gateway-redis",
            "clients": [{"podSelector": {"matchLabels": {"app": "web"}}}],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}], "ports": [{"port": 5432}, {"port": 6379}]}],
            "metricsSecret": "gateway-metrics",
            "scaling": {"enabled": True, "targetRequests": 40},
            "route": {"enabled": True, "hostnames": ["llm.example.com"], "caConfigMap": "openai-ca"},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "hostnames": ["llm.example.com", "llm.example.org"],
                "tlsSecret": "llm-tls",
                "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
            },
            "extraOptions": ["--no-affinity"],
            "extraVolumes": [{"name": "apis", "secret": {"secretName": "apis"}}],
            "extraVolumeMounts": [{"name": "apis", "mountPath": "/etc/apis", "readOnly": True}],
            "podAnnotations": {"a": "b"},
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "high",
        },
        "network": {"monitoring": [{"namespaceSelector": {}}]},
        "gatewayApi": {"enabled": True, "gateways": [{"name": "g"}]},
        "monitoring": {"podMonitor": {"enabled": True}},
    },
    "keda": {"scaling": {"kind": "keda", "office": {"enabled": True}}},
    "hpa": {"scaling": {"kind": "hpa"}},
    "watched": {
        "monitoring": {
            "podMonitor": {"enabled": True},
            "rules": {"enabled": True},
            "dashboards": {"enabled": True},
            "labels": {"release": "prometheus"},
        },
        "envoy": {"enabled": True},
    },
    "placed": {
        "priorityClassName": "high",
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"operator": "Exists"}],
        "rollout": {"spareGpus": 8},
        "drain": {"timeoutSeconds": 60},
        "multiNode": {
            "exclusiveTopologyKey": "rack",
            "networkResources": {"rdma/ib": 4},
            "env": [{"name": "A", "value": "b"}],
        },
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "extraEnv": [{"name": "B", "value": "c"}],
        "service": {"annotations": {"a": "b"}},
    },
}


DEPLOYMENTS = ("one", "canary", "several", "gpus", "nodes")


def combined(servers: Mapping[str, Values], deployment: str, site: str) -> dict[str, Any]:
    traffic: Values = CANARY if deployment == "canary" else {}
    return merged(servers[deployment], SITES[site], traffic)


def pods_of(documents: Documents) -> Iterator[dict[str, Any]]:
    """Return the pods' templates; those of a group with the label that its controller adds."""
    for document in documents:
        match document["kind"]:
            case "Deployment" | "StatefulSet":
                yield document["spec"]["template"]
            case "LeaderWorkerSet":
                spec = document["spec"]["leaderWorkerTemplate"]
                for index, role in enumerate(("leader", "worker")):
                    template = spec[f"{role}Template"]
                    label = {"leaderworkerset.sigs.k8s.io/worker-index": str(index)}
                    yield merged(template, {"metadata": {"labels": label}})


def selects(labels: Mapping[str, str], pod: Mapping[str, Any]) -> bool:
    return bool(labels.items() <= pod["metadata"]["labels"].items())


def without_labels(document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "metadata": {key: document["metadata"][key] for key in ("name", "namespace")}}
