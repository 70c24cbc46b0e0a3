# SPDX-License-Identifier: Apache-2.0
"""The candidate's weight in a configuration of Envoy's routes, and in the one that a running Envoy goes by."""

import json
import urllib.request
from http.client import HTTPException
from typing import Any

from clients.rollout.export.definition import WEIGHT_SUM
from clients.rollout.export.envoy_routes import CANDIDATE, ROUTES, STABLE
from trireme.base.errors import Unavailable

_ANSWER_S = 5.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is beside us, and behind no proxy


def weight_in_force(admin: str) -> float | None:
    """Return the candidate's weight that an Envoy goes by; None: it has no routes yet.

    Its main thread says so, and hands them to its workers within milliseconds.
    Source: Envoy's documentation, "Administration interface", `GET /config_dump?resource=`.

    Args:
        admin: ``host:port``.

    Raises:
        Unavailable: it does not answer.
    """
    url = f"http://{admin}/config_dump?resource=dynamic_route_configs"
    try:
        with _OPENER.open(url, timeout=_ANSWER_S) as answer:
            found = json.load(answer).get("configs", [])
        routes = [each["route_config"] for each in found if each.get("route_config", {}).get("name") == ROUTES]
        return candidate_weight(routes[0]) if routes else None
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise Unavailable(
            f"Envoy's admin interface {admin} does not say its routes: {exc}; start it, or name another with "
            "--envoy-admin",
            reason="unreachable",
            field="envoy_admin",
            value=admin,
        ) from exc


def candidate_weight(routes: Any) -> float:
    """Return the candidate's part of 10,000 in a `RouteConfiguration`, as JSON data.

    Raises:
        LookupError, TypeError: no route of it splits between both clusters.
        ValueError: its routes split differently.
    """
    found = set()
    for host in routes["virtual_hosts"]:
        for route in host["routes"]:
            clusters = route.get("route", {}).get("weighted_clusters", {}).get("clusters", [])
            by_name = {each["name"]: int(each.get("weight", 0)) for each in clusters}
            if {CANDIDATE, STABLE} == set(by_name):
                found.add(WEIGHT_SUM * by_name[CANDIDATE] / (sum(by_name.values()) or 1))
    if len(found) > 1:
        raise ValueError(f"different weights of the candidate, {sorted(found)}")
    if not found:
        raise LookupError("no route with weights of both")
    return found.pop()
