# SPDX-License-Identifier: Apache-2.0
"""The weights that a rollout's plan names, ``envoy:FILE`` or ``gateway:NAMESPACE/ROUTE``, ready to be moved."""

import re
from pathlib import Path
from typing import Any

from clients.envoy_parts import check_yaml_name, read_address
from clients.rollout.export.definition import weights as weights_of_share
from clients.rollout.export.envoy_routes import check_salt
from clients.rollout.records.rollout_plan import Plan
from clients.rollout.weights.envoy_file import EnvoyFile
from clients.rollout.weights.gateway_route import GatewayRoute
from clients.rollout.weights.route_api import KINDS, KubernetesRoute
from clients.rollout.weights.several_routes import SeveralRoutes
from clients.rollout.weights.weights import Weights
from trireme.base.errors import RequestError

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ROUTE = re.compile(rf"(?P<namespace>{_LABEL})/(?P<name>{_LABEL}(?:\.{_LABEL})*)")


def check_weights(plan: Plan) -> None:
    """Check before a rollout begins that it can move the weights that its plan names: the candidate has nothing yet.

    Raises:
        RequestError: they are no weights, or somebody else moves them.
        ServingError: they cannot be read or set.
    """
    check_named(plan)
    weights_named(plan).check()


def check_named(plan: Plan) -> None:
    """Check the weights that a plan names, as far as the plan alone says.

    Raises:
        RequestError: they are no weights, an option is missing, or a share cannot be written as a weight.
    """
    kind, _, rest = plan.weights.partition(":")
    if kind == "envoy" and rest:
        check_yaml_name(Path(rest), "weights")
        check_salt(plan.salt)
        for admin in plan.envoy_admins:
            read_address(admin, field="envoy_admin")
        _refuse(plan, "gateway", ("stable_service", "candidate_service"))
    elif kind == "gateway" and _ROUTE.fullmatch(rest):
        _refuse(plan, "envoy", ("envoy_admins",))
        _check_services(plan)
    else:
        raise RequestError(
            "weights must be envoy:FILE, the routes file of an Envoy, or gateway:NAMESPACE/ROUTE, an HTTPRoute or "
            f"GRPCRoute; got {plan.weights!r}",
            field="weights",
            value=plan.weights,
        )
    for share in plan.shares:
        weights_of_share(share)


def _refuse(plan: Plan, kind: str, fields: tuple[str, ...]) -> None:
    for field in fields:
        if getattr(plan, field):
            raise RequestError(
                f"--{field.removesuffix('s').replace('_', '-')} is for --weights {kind}:..., and the weights are "
                f"{plan.weights}; leave it out",
                field=field,
            )


def _check_services(plan: Plan) -> None:
    for field in ("stable_service", "candidate_service"):
        if not re.fullmatch(_LABEL, getattr(plan, field)):
            raise RequestError(
                f"--{field.replace('_', '-')} must be the name of a backend of the route, as its backendRefs have it; "
                f"got {getattr(plan, field)!r}",
                field=field,
                value=getattr(plan, field),
            )
    if plan.stable_service == plan.candidate_service:
        raise RequestError(
            f"stable_service and candidate_service are both {plan.stable_service}; name the candidate's",
            field="candidate_service",
            value=plan.candidate_service,
        )


def weights_named(plan: Plan, *, configuration: Any = None) -> Weights:
    """Return the weights that a plan names.

    Args:
        configuration: of Kubernetes' client library; None: as the process has it.

    Raises:
        SpecError: the library is not installed, or nothing says where the API server is.
        Unavailable: the API server does not answer now.
    """
    kind, _, rest = plan.weights.partition(":")
    if kind == "envoy":
        return EnvoyFile(Path(rest), salt=plan.salt, admins=plan.envoy_admins)
    namespace, _, name = rest.partition("/")
    apis = [KubernetesRoute(each, namespace, name, configuration=configuration) for each in KINDS]
    there = [api for api in apis if api.exists()] or apis  # of a rollout that goes on, one without routes is held
    return SeveralRoutes(
        [GatewayRoute(api, stable=plan.stable_service, candidate=plan.candidate_service) for api in there]
    )
