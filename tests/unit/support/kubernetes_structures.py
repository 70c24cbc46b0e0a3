# SPDX-License-Identifier: Apache-2.0
"""The structure that Kubernetes takes of what `trireme rollout export` writes, as its documentation has it.

Only the fields that are used, and nothing beside them: one by another name, of another type or in another place is
refused. (Argo Rollouts and the Gateway API publish schemas of their own; both were met when these were written.)
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Duration = Annotated[str, Field(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(Strict):
    name: Name
    namespace: Name | None = None


class Argument(Strict):
    name: Name
    value: str


class Web(Strict):
    url: str
    json_path: Annotated[str, Field(alias="jsonPath")]
    timeout_s: Annotated[int, Field(alias="timeoutSeconds", ge=1)]


class Provider(Strict):
    web: Web


class Metric(Strict):
    name: Name
    interval: Duration
    count: Annotated[int, Field(ge=1)]
    failure_limit: Annotated[Count, Field(alias="failureLimit")]
    inconclusive_limit: Annotated[Count, Field(alias="inconclusiveLimit")]
    consecutive_success_limit: Annotated[Count, Field(alias="consecutiveSuccessLimit")]
    consecutive_error_limit: Annotated[Count, Field(alias="consecutiveErrorLimit")]
    success: Annotated[str, Field(alias="successCondition")]
    failure: Annotated[str, Field(alias="failureCondition")]
    provider: Provider

    @model_validator(mode="after")
    def _has_limits_within_its_count(self) -> "Metric":  # or Argo refuses the template
        assert self.count >= self.failure_limit + self.consecutive_success_limit
        assert self.count >= self.inconclusive_limit
        return self


class AnalysisSpec(Strict):
    args: list[Argument]
    metrics: Annotated[list[Metric], Field(min_length=1)]


class AnalysisTemplate(Strict):
    api: Annotated[Literal["argoproj.io/v1alpha1"], Field(alias="apiVersion")]
    kind: Literal["AnalysisTemplate"]
    metadata: Metadata
    spec: AnalysisSpec


class TemplateRef(Strict):
    name: Annotated[Name, Field(alias="templateName")]


class AnalysisStep(Strict):
    templates: Annotated[list[TemplateRef], Field(min_length=1)]
    args: list[Argument]


class Step(Strict):
    weight: Annotated[Count | None, Field(alias="setWeight")] = None
    analysis: AnalysisStep | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Step":
        assert (self.weight is None) != (self.analysis is None)
        return self


class TrafficRouting(Strict):
    max_weight: Annotated[int, Field(alias="maxTrafficWeight", ge=1)] = 100
    plugins: dict[str, dict[str, Any]]


class Canary(Strict):
    stable: Annotated[Name, Field(alias="stableService")]
    canary: Annotated[Name, Field(alias="canaryService")]
    routing: Annotated[TrafficRouting | None, Field(alias="trafficRouting")] = None
    steps: Annotated[list[Step], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_weights_that_argo_takes(self) -> "Canary":
        most = self.routing.max_weight if self.routing else 100
        assert all(step.weight is None or step.weight <= most for step in self.steps)
        assert self.stable != self.canary
        return self


class Strategy(Strict):
    canary: Canary


class RolloutSpec(Strict):
    strategy: Strategy


class RolloutPatch(Strict):
    spec: RolloutSpec


class ParentRef(Strict):
    name: Name
    namespace: Name | None = None
    section: Annotated[Name, Field(alias="sectionName")]


class BackendRef(Strict):
    """A Service with its port, or an InferencePool, which has its own."""

    name: Name
    group: Literal["inference.networking.k8s.io"] | None = None
    kind: Literal["InferencePool"] | None = None
    port: Port | None = None
    weight: Annotated[int, Field(ge=0, le=1_000_000)] = 1

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> "BackendRef":
        if (self.kind is None) == (self.port is None) or (self.kind is None) != (self.group is None):
            raise ValueError("a Service has a port; an InferencePool has a group, and none")
        return self


class HeaderMatch(Strict):
    name: str
    value: Annotated[str, Field(min_length=1)]


class Path(Strict):
    type: Literal["Exact", "PathPrefix", "RegularExpression"]
    value: str


class HttpMatch(Strict):
    path: Path
    headers: Annotated[list[HeaderMatch], Field(max_length=16)] = []


class Method(Strict):
    service: str


class GrpcMatch(Strict):
    method: Method
    headers: Annotated[list[HeaderMatch], Field(max_length=16)] = []


class Mirror(Strict):
    backend: Annotated[BackendRef, Field(alias="backendRef")]
    percent: Annotated[int, Field(ge=0, le=100)]


class HeaderModifier(Strict):
    remove: list[str]


class MirrorFilter(Strict):
    type: Literal["RequestMirror"]
    mirror: Annotated[Mirror, Field(alias="requestMirror")]


class HeaderFilter(Strict):
    type: Literal["RequestHeaderModifier"]
    headers: Annotated[HeaderModifier, Field(alias="requestHeaderModifier")]


RouteFilter = Annotated[MirrorFilter | HeaderFilter, Field(discriminator="type")]


class Timeouts(Strict):
    request: Duration


class HttpRule(Strict):
    matches: Annotated[list[HttpMatch], Field(max_length=64)]
    timeouts: Timeouts
    filters: list[RouteFilter] = []
    backends: Annotated[list[BackendRef], Field(alias="backendRefs", max_length=16)]


class GrpcRule(Strict):
    matches: Annotated[list[GrpcMatch], Field(max_length=64)] = []
    filters: list[RouteFilter] = []
    backends: Annotated[list[BackendRef], Field(alias="backendRefs", max_length=16)]


def _not_too_many(rules: list[Any]) -> list[Any]:
    """Refuse more than 128 matches in a route, a rule of their validation that counts over the whole route."""
    num_matches = sum(len(rule.matches) for rule in rules)
    if num_matches > 128:
        raise ValueError(f"{num_matches} matches in a route, and 128 are allowed")
    return rules


class HttpSpec(Strict):
    hostnames: list[str] = []
    parents: Annotated[list[ParentRef], Field(alias="parentRefs")]
    rules: Annotated[list[HttpRule], Field(max_length=16), AfterValidator(_not_too_many)]


class GrpcSpec(Strict):
    hostnames: list[str] = []
    parents: Annotated[list[ParentRef], Field(alias="parentRefs")]
    rules: Annotated[list[GrpcRule], Field(max_length=16), AfterValidator(_not_too_many)]


class HttpRoute(Strict):
    api: Annotated[Literal["gateway.networking.k8s.io/v1"], Field(alias="apiVersion")]
    kind: Literal["HTTPRoute"]
    metadata: Metadata
    spec: HttpSpec


class PolicyTarget(Strict):
    """A port of a Service."""

    group: Literal[""]
    kind: Literal["Service"]
    name: Name
    section: Annotated[Name, Field(alias="sectionName")]


class AuthorityRef(Strict):
    """The one kind that every implementation knows: a ConfigMap with ``ca.crt``."""

    group: Literal[""]
    kind: Literal["ConfigMap"]
    name: Name


class TlsValidation(Strict):
    authorities: Annotated[list[AuthorityRef], Field(alias="caCertificateRefs", min_length=1, max_length=1)]
    hostname: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class BackendTlsSpec(Strict):
    targets: Annotated[list[PolicyTarget], Field(alias="targetRefs", min_length=1, max_length=1)]
    validation: TlsValidation


class BackendTlsPolicy(Strict):
    """A policy as kubernetes-sigs/gateway-api has it in config/crd/standard.

    v1alpha3 has the same fields since 1.2.
    """

    api: Annotated[
        Literal["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha3"], Field(alias="apiVersion")
    ]
    kind: Literal["BackendTLSPolicy"]
    metadata: Metadata
    spec: BackendTlsSpec


class GrpcRoute(Strict):
    api: Annotated[Literal["gateway.networking.k8s.io/v1"], Field(alias="apiVersion")]
    kind: Literal["GRPCRoute"]
    metadata: Metadata
    spec: GrpcSpec
