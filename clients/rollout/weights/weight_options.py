# SPDX-License-Identifier: Apache-2.0
"""The options of `trireme rollout start` for weights, and the fields of a plan that follow from them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trireme.base.errors import RequestError

WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="ROUTER",
        help="With --second-server: whose weights the rollout moves. envoy:FILE, the file that an Envoy reads its "
        "routes from; gateway:NAMESPACE/ROUTE, an HTTPRoute or GRPCRoute of Kubernetes, or both of one name.",
        show_default="clients split",
    ),
]
AdminOption = Annotated[
    list[str] | None,
    typer.Option(
        "--envoy-admin",
        metavar="HOST:PORT",
        help="With --weights envoy:...: admin interface of an Envoy, which is waited for; several times for several.",
    ),
]
StableServiceOption = Annotated[
    str | None, typer.Option(help="With --weights gateway:...: the route's backend of the first server.")
]
CandidateServiceOption = Annotated[
    str | None, typer.Option(help="With --weights gateway:...: the route's backend of the second server.")
]


def weight_fields(
    weights: str | None, *, admins: list[str] | None, stable_service: str | None, candidate_service: str | None
) -> dict[str, Any]:
    """Return the fields of a plan; none without weights.

    Raises:
        RequestError: an option is given without weights.
    """
    given = {"envoy_admin": admins, "stable_service": stable_service, "candidate_service": candidate_service}
    if weights is None:
        for name, value in given.items():
            if value:
                raise RequestError(
                    f"--{name.replace('_', '-')} is for --weights; give that, or leave it out", field=name
                )
        return {}
    kind, _, rest = weights.partition(":")
    if kind == "envoy" and rest:
        weights = f"envoy:{Path(rest).absolute()}"  # the rollout may go on in another folder
    return {
        "weights": weights,
        "envoy_admins": tuple(admins or ()),
        "stable_service": stable_service or "",
        "candidate_service": candidate_service or "",
    }
