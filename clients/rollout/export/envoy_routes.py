# SPDX-License-Identifier: Apache-2.0
"""Envoy's routes between a stable and a candidate endpoint: by weight, by key, or as a header asks.

A key's place is Envoy's own hash of it, salted by the rollout, modulo the weights' sum; the candidate takes the lowest
places, so as its share grows keys only move into it. The places are not those of `clients.rollout.routing.split`.
"""

import re

from clients.rollout.export.definition import WEIGHT_SUM, weights
from trireme.base.errors import RequestError

STABLE, CANDIDATE = "stable", "candidate"  # the clusters' names, and what RELEASE_HEADER says
RELEASE_HEADER, KEY_HEADER = "x-trireme-release", "x-trireme-key"
ROUTES = "trireme"
_ROUTE_TYPE = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
_SALT = re.compile(r"[A-Za-z0-9._-]{0,64}")


def check_salt(salt: str) -> None:
    """Raise a RequestError for a salt that cannot stand in a pattern's replacement.

    The chart's schema holds an equal rule.
    """
    if not _SALT.fullmatch(salt):
        raise RequestError(
            f"salt must be at most 64 letters, digits, dots, dashes and underscores, got {salt!r}; choose another",
            field="salt",
            value=salt,
        )


def envoy_routes(share: float, *, salt: str) -> dict[str, object]:
    """Return a `RouteConfiguration`.

    Raises:
        RequestError: the share is finer than the weights, or the salt cannot stand in a pattern's replacement.
    """
    check_salt(salt)
    candidate, stable = weights(share)
    split = {
        **_UNBOUNDED,
        "hash_policy": [
            {
                "header": {
                    "header_name": KEY_HEADER,
                    "regex_rewrite": {"pattern": {"regex": "^"}, "substitution": f"{salt}:"},
                }
            }
        ],
        "weighted_clusters": {
            "use_hash_policy": True,  # of a request without a key the place is by chance
            "clusters": [
                {"name": CANDIDATE, "weight": candidate, **_header(CANDIDATE)},  # first: it takes the lowest places
                {"name": STABLE, "weight": stable, **_header(STABLE)},
            ],
        },
    }
    routes = [_of_release(CANDIDATE), _of_release(STABLE), {"match": _grpc(), "route": split}]
    return {"name": ROUTES, "virtual_hosts": [{"name": ROUTES, "domains": ["*"], "routes": routes}]}


def routes_file(share: float, *, salt: str) -> dict[str, object]:
    """Return the document that Envoy reads routes from while it runs.

    Raises:
        RequestError: `envoy_routes` refuses the share or the salt.
    """
    resource = {"@type": _ROUTE_TYPE, **envoy_routes(share, salt=salt)}
    return {"version_info": f"{weights(share)[0]} of {WEIGHT_SUM}", "resources": [resource]}


# Answers stream for as long as they take, and a stream may wait for its next request.
_UNBOUNDED: dict[str, object] = {"timeout": "0s", "idle_timeout": "0s"}


def _grpc() -> dict[str, object]:
    return {"prefix": "/", "grpc": {}}


def _of_release(release: str) -> dict[str, object]:
    header = {"name": RELEASE_HEADER, "string_match": {"exact": release}}
    return {"match": {**_grpc(), "headers": [header]}, "route": {**_UNBOUNDED, "cluster": release}, **_header(release)}


def _header(release: str) -> dict[str, object]:
    """Return the header with which an answer says which release gave it, for programs that report outcomes."""
    action = "OVERWRITE_IF_EXISTS_OR_ADD"
    return {"response_headers_to_add": [{"header": {"key": RELEASE_HEADER, "value": release}, "append_action": action}]}
