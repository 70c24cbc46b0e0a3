# SPDX-License-Identifier: Apache-2.0
"""An `AnalysisTemplate` of Argo Rollouts, which asks the rollout API for the gate's verdict.

The rollout is what judges and goes from share to share; Argo follows it with its weights. Its step `step` is over when
the rollout has left it, the last one when the gate says `pass`, or a person has promoted. How Argo counts:

- A measurement of which both conditions are false is inconclusive; it is what "not yet" looks like, so `count` of them
  are allowed but the last, and a run that ends without a verdict is inconclusive: Argo pauses, and never promotes.
  `inconclusiveLimit` is below `count` also for versions before 1.8, which do not know `consecutiveSuccessLimit`.
- `failureLimit` 0: the first fail ends it, and Argo goes back to the stable release.
- `consecutiveSuccessLimit` 1: the first success ends it.
- An API that does not answer is an error, which Argo counts apart: after `consecutiveErrorLimit` in a row, ten
  seconds between two, the run has failed. A rollout without its process takes no new requests from clients either.
"""

from clients.rollout.export.definition import Definition, last_judged_step
from clients.rollout.records.state import Phase
from trireme.base.errors import RequestError

METRIC = "trireme-gate"
STEP, URL = "step", "url"
LONGEST_INTERVAL_S = 30  # the API answers for a minute after the end (`clients.rollout.rollout_api`)
_ERRORS = 4
_TIMEOUT_S = 5
_GOOD = (Phase.PROMOTING, Phase.SETTLING, Phase.PROMOTED)
_BAD = (Phase.ROLLING_BACK, Phase.ROLLED_BACK)


def analysis_template(
    definition: Definition, *, name: str, namespace: str | None, url: str, interval_s: int, max_wait_s: int
) -> dict[str, object]:
    """Return the `AnalysisTemplate` as Kubernetes takes it.

    Args:
        url: address of the rollout API, as Argo's controller reaches it.
        interval_s: time between two measurements.
        max_wait_s: time at one step until Argo pauses for want of a verdict.

    Raises:
        RequestError: the longest wait is shorter than the interval.
    """
    if max_wait_s < interval_s:
        raise RequestError(
            f"max_wait_s ({max_wait_s}) must be at least interval_s ({interval_s}), or nothing would be measured; "
            "make --max-wait-s longer",
            field="max_wait_s",
            value=max_wait_s,
        )
    count = max_wait_s // interval_s
    success, failure = conditions(definition)
    metric = {
        "name": METRIC,
        "interval": f"{interval_s}s",
        "count": count,
        "failureLimit": 0,
        "inconclusiveLimit": count - 1,
        "consecutiveSuccessLimit": 1,
        "consecutiveErrorLimit": _ERRORS,
        "successCondition": success,
        "failureCondition": failure,
        "provider": {"web": {"url": f"{{{{args.{URL}}}}}/judgement", "jsonPath": "{$}", "timeoutSeconds": _TIMEOUT_S}},
    }
    args = [{"name": URL, "value": url}, {"name": STEP, "value": str(last_judged_step(definition.shares))}]
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"args": args, "metrics": [metric]},
    }


def conditions(definition: Definition) -> tuple[str, str]:
    """Return the conditions of success and of failure, in Argo's expression language, on the rollout API's answer.

    The API of another rollout, which has the address later, meets neither condition.
    """
    is_ours = "" if definition.rollout is None else f"result.rollout == {definition.rollout} && "
    good = f"result.phase in {_listed(_GOOD)}"
    bad = f"result.phase in {_listed(_BAD)}"
    has_left = f"result.step > {{{{args.{STEP}}}}}"
    last = last_judged_step(definition.shares)
    # A rollout that a person has paused, or that is held, waits for a person whatever the gate says.
    has_passed = f'(result.verdict == "pass" && result.step == {last} && result.phase == "{Phase.RUNNING}")'
    success = f"{is_ours}({good} || {has_left} || {has_passed})"
    failure = f'{is_ours}({bad} || (result.verdict == "fail" && !({good})))'  # Argo asks for it first
    return success, failure


def _listed(phases: tuple[Phase, ...]) -> str:
    return "[" + ", ".join(f'"{phase}"' for phase in phases) + "]"
