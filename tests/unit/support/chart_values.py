# SPDX-License-Identifier: Apache-2.0
"""Values of the chart for tests of a part of it: servers in a few words."""

from typing import Any

from chart_here import DIGEST


def server(**more: Any) -> dict[str, Any]:
    """Return the values of a server that answers, as `trireme render --helm` writes them."""
    return {
        "replicas": 1,
        "nodes": 1,
        "gpus": 1,
        "longestAnswerSeconds": 60,
        "endSeconds": 30,
        "releaseDirs": [],
        "models": [{"name": "chat", "release": 1, "tritonNames": ["ensemble"]}],
        "extraModels": [],
        "deployment": "name: chat\n",
        **more,
    }


def values(servers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return values with images; what else a site says is in `more`."""
    return {
        "image": {"repository": "registry.example/trireme", "digest": DIGEST},
        "multiNode": {"sshSecret": "ssh"},
        "servers": servers,
        **more,
    }


ENVOY = {"enabled": True, "image": {"digest": DIGEST}}
