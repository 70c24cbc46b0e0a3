# SPDX-License-Identifier: Apache-2.0
"""The content of a route of the Gateway API: weights of two backends in its rules, who set them, and who takes them.

Pure: a route is the object that the API server gives, as JSON data.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from clients.rollout.export.definition import WEIGHT_SUM
from clients.rollout.weights.weights import Claim, Present, RouteTaken

Route = Mapping[str, Any]
ROLLOUT, WEIGHT = "trireme/rollout", "trireme/rollout-weight"  # annotations
_DEFAULT_WEIGHT = 1  # "if not specified, defaults to 1": gateway-api.sigs.k8s.io/guides/traffic-splitting


def present_in(route: Route, *, stable: str, candidate: str) -> Present:
    """Return the weights of a route.

    Raises:
        RouteTaken: no rule splits between both backends, or one with others too, or its rules split differently.
    """
    rules = route.get("spec", {}).get("rules") or []
    for rule in rules:
        names = [each["name"] for each in rule.get("backendRefs") or []]
        if {stable, candidate} < set(names):
            others = ", ".join(name for name in names if name not in (stable, candidate))
            raise RouteTaken(
                f"a rule of {name_of(route)} splits with {others}, too, and weights of {WEIGHT_SUM:,} are of two; take "
                "the others out",
                field="weights",
                reason="taken",
            )
    found = {_weight(*pair) for pair in _pairs(rules, stable, candidate)}
    if not found:
        raise RouteTaken(
            f"{name_of(route)} has no rule with the backends {stable} and {candidate}; name those that it has, with "
            "--stable-service and --candidate-service",
            field="candidate_service",
            value=candidate,
            reason="taken",
        )
    if len(found) > 1:
        raise RouteTaken(
            f"the rules of {name_of(route)} give {candidate} different weights: "
            f"{', '.join(f'{each:g}' for each in sorted(found))} of {WEIGHT_SUM:,}; give it one weight",
            field="weights",
            reason="taken",
        )
    return Present(found.pop(), _claim(route), last_manager(route))


def with_weight(route: Route, weight: int, owner: str, *, stable: str, candidate: str) -> dict[str, Any]:
    """Return the JSON merge patch that gives the candidate a weight, if the route is still the one that was read.

    A merge patch replaces lists as a whole (RFC 7386), so it has all rules; a `resourceVersion` in it that is no longer
    the object's is refused with 409 (kubernetes.io/docs/reference/using-api/api-concepts, "Patch and apply").
    """
    rules = deepcopy(route["spec"]["rules"])
    for of_stable, of_candidate in _pairs(rules, stable, candidate):
        of_stable["weight"], of_candidate["weight"] = WEIGHT_SUM - weight, weight
    return {**_marked(route, {ROLLOUT: owner, WEIGHT: str(weight)}), "spec": {"rules": rules}}


def without_claim(route: Route) -> dict[str, Any]:
    """Return the JSON merge patch that takes a rollout's name away; null removes a key (RFC 7386)."""
    return _marked(route, {ROLLOUT: None, WEIGHT: None})


def why_not_taken(route: Route) -> str:
    """Return what a Gateway has yet to say, or says against this generation of a route; "": all have taken it.

    Each parent that the route names must say Accepted and ResolvedRefs of this generation, and not PartiallyInvalid.
    Conditions of an earlier generation are of the weights before (gateway-api.sigs.k8s.io, `RouteStatus`). Entries of
    parents that the route no longer names may stay, and count for nothing.
    """
    generation = int(route["metadata"].get("generation", 0))
    said = (route.get("status") or {}).get("parents") or []
    for parent in route["spec"].get("parentRefs") or []:
        answers = [_verdict(each, generation) for each in said if _is_same_parent(each["parentRef"], parent, route)]
        if not answers:
            return f"no controller says anything of its Gateway {parent['name']}"
        if all(answers):
            return min(answers, key=_is_old)  # rather a refusal than silence
    return "" if route["spec"].get("parentRefs") else "it names no Gateway"


def is_refusal(why_not: str) -> bool:
    """Return whether a reason of `why_not_taken` is the Gateway's word against these weights."""
    return why_not.startswith(_SAYS)


def last_manager(route: Route) -> str:
    """Return who changed the rules last, and when, by `managedFields`; "": not known.

    The list of rules is one field, and whoever changes a field owns it in place of all others
    (kubernetes.io/docs/reference/using-api/server-side-apply, "Merge strategy" and "Field management").
    """
    entries = [
        each
        for each in route["metadata"].get("managedFields") or []
        if not each.get("subresource") and "f:rules" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    if not entries:
        return ""
    last = max(entries, key=lambda each: str(each.get("time", "")))  # RFC 3339 in UTC sorts as text
    return " ".join(part for part in (last.get("manager", ""), last.get("time", "")) if part)


def name_of(route: Route) -> str:
    """Return a route's kind, namespace and name, for people."""
    return f"{route['kind']} {route['metadata']['namespace']}/{route['metadata']['name']}"


_SAYS = "the Gateway says "


def _pairs(rules: Sequence[Any], stable: str, candidate: str) -> Iterator[tuple[Any, Any]]:
    """Yield the backends of each rule that splits between both; a rule for one of them alone pins requests."""
    for rule in rules:
        by_name = {each["name"]: each for each in rule.get("backendRefs") or []}
        if stable in by_name and candidate in by_name:
            yield by_name[stable], by_name[candidate]


def _weight(of_stable: Mapping[str, Any], of_candidate: Mapping[str, Any]) -> float:
    stable, candidate = (int(each.get("weight", _DEFAULT_WEIGHT)) for each in (of_stable, of_candidate))
    return WEIGHT_SUM * candidate / (stable + candidate) if candidate else 0.0


def _claim(route: Route) -> Claim | None:
    notes = route["metadata"].get("annotations") or {}
    if ROLLOUT not in notes:
        return None
    text = str(notes.get(WEIGHT, ""))
    return Claim(str(notes[ROLLOUT]), int(text) if text.isdecimal() else -1)


def _marked(route: Route, notes: Mapping[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": route["metadata"]["resourceVersion"], "annotations": dict(notes)}}


def _is_same_parent(one: Mapping[str, Any], other: Mapping[str, Any], route: Route) -> bool:
    home = route["metadata"]["namespace"]
    return all(
        (one.get(field) or default) == (other.get(field) or default)
        for field, default in (("name", ""), ("namespace", home), ("sectionName", ""), ("port", 0))
    )


def _verdict(said: Mapping[str, Any], generation: int) -> str:
    """Return what one controller says against a generation, or has not said yet; "": it has taken it."""
    conditions = {
        each["type"]: each
        for each in said.get("conditions") or []
        if int(each.get("observedGeneration", 0)) >= generation
    }
    for kind, good in (("Accepted", "True"), ("ResolvedRefs", "True"), ("PartiallyInvalid", "False")):
        found = conditions.get(kind)
        if found is None and kind != "PartiallyInvalid":  # that one is there only where it is true
            return f"{said.get('controllerName', 'a controller')} has not said {kind} of these weights yet"
        if found is not None and found["status"] != good:
            return f"{_SAYS}{kind} {found['status']}: {found.get('reason', '')} {found.get('message', '')}".strip()
    return ""


def _is_old(why_not: str) -> bool:
    return not is_refusal(why_not)
