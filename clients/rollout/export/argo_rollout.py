# SPDX-License-Identifier: Apache-2.0
"""The canary strategy of a `Rollout` of Argo Rollouts, as a patch for the user's own `Rollout`.

A rollout's shares become steps, each followed by the analysis that waits for it
(`clients.rollout.export.analysis_template`).
"""

from clients.rollout.export.analysis_template import STEP
from clients.rollout.export.definition import WEIGHT_SUM, Definition, weights
from trireme.base.errors import RequestError

GATEWAY_PLUGIN = "argoproj-labs/gatewayAPI"


def argo_rollout(
    definition: Definition,
    *,
    template: str,
    stable_service: str,
    candidate_service: str,
    route: str | None,
    namespace: str | None,
) -> dict[str, object]:
    """Return a patch for `kubectl patch rollout NAME --type merge --patch-file`.

    Args:
        template: the name of the AnalysisTemplate.
        route: the HTTPRoute's and the GRPCRoute's name, whose weights the Gateway API plugin sets; None: Argo splits by
            the number of pods.
        namespace: namespace of the routes; None: `default`.

    Raises:
        RequestError: a share needs finer weights than there are.
    """
    out_of = _finest(definition.shares, has_router=route is not None)
    canary: dict[str, object] = {"stableService": stable_service, "canaryService": candidate_service}
    if route is not None:
        canary["trafficRouting"] = {
            **({"maxTrafficWeight": out_of} if out_of != 100 else {}),
            "plugins": {
                GATEWAY_PLUGIN: {
                    "httpRoutes": [{"name": route}],
                    "grpcRoutes": [{"name": route}],
                    "namespace": namespace or "default",
                }
            },
        }
    canary["steps"] = _steps(definition.shares, template, out_of)
    return {"spec": {"strategy": {"canary": canary}}}


def _steps(shares: tuple[float, ...], template: str, out_of: int) -> list[dict[str, object]]:
    judged = shares[:-1] or shares
    steps: list[dict[str, object]] = []
    for number, share in enumerate(shares):
        steps.append({"setWeight": weights(share, out_of=out_of)[0]})
        if number < len(judged):
            args = [{"name": STEP, "value": str(number)}]
            steps.append({"analysis": {"templates": [{"templateName": template}], "args": args}})
    return steps


def _finest(shares: tuple[float, ...], *, has_router: bool) -> int:
    """Return the sum of Argo's weights: 100, or `WEIGHT_SUM` where a share needs finer ones and a router takes them."""
    broken = [share for share in shares if abs(share * 100 - round(share * 100)) > 1e-6]
    if not broken:
        return 100
    if not has_router:
        raise RequestError(
            f"steps have a share of {100 * broken[0]:g} %: without a traffic router Argo's weights are whole "
            "percentages; add --with-gateway-api, or choose whole percentages",
            field="steps",
            value=100 * broken[0],
        )
    return WEIGHT_SUM
