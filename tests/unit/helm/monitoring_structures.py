# SPDX-License-Identifier: Apache-2.0
"""The structure that prometheus-operator takes of a PodMonitor and a PrometheusRule.

Only the fields that the chart uses, and nothing beside them, as in `kubernetes_structures`; the project's own schemas
were met when these were written (prometheus-operator 0.93.0, 2026-08).
"""

from typing import Annotated, Literal

from kubernetes_structures import Count, Name, Strict
from pydantic import Field, model_validator

Duration = Annotated[
    str,
    Field(
        pattern=r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
        min_length=1,
    ),
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63)]
PrometheusLabel = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


class Metadata(Strict):
    name: Name
    namespace: Name
    labels: dict[str, LabelValue]


class Relabeling(Strict):
    action: Literal["replace"] = "replace"
    source: Annotated[list[PrometheusLabel] | None, Field(alias="sourceLabels")] = None
    regex: str = "(.*)"
    target: Annotated[PrometheusLabel, Field(alias="targetLabel")]
    replacement: str = "$1"


class SecretKey(Strict):
    name: Name
    key: Annotated[str, Field(min_length=1)]


class Authorization(Strict):
    credentials: SecretKey


class SecretOfTls(Strict):
    secret: SecretKey


class TlsConfig(Strict):
    server_name: Annotated[str, Field(alias="serverName", min_length=1)]
    ca: SecretOfTls


class PodMetricsEndpoint(Strict):
    port: Annotated[str, Field(max_length=15)]
    scheme: Literal["http", "https"] = "http"
    authorization: Authorization | None = None
    tls: Annotated[TlsConfig | None, Field(alias="tlsConfig")] = None
    path: Annotated[str, Field(pattern=r"^/")] = "/metrics"
    interval: Duration
    relabelings: list[Relabeling]


class Selector(Strict):
    labels: Annotated[dict[str, LabelValue], Field(alias="matchLabels", min_length=1)]


class PodMonitorSpec(Strict):
    selector: Selector
    endpoints: Annotated[list[PodMetricsEndpoint], Field(alias="podMetricsEndpoints", min_length=1)]


class PodMonitor(Strict):
    api: Annotated[Literal["monitoring.coreos.com/v1"], Field(alias="apiVersion")]
    kind: Literal["PodMonitor"]
    metadata: Metadata
    spec: PodMonitorSpec


class Rule(Strict):
    record: str | None = None
    alert: str | None = None
    expr: str
    lasts: Annotated[Duration | None, Field(alias="for")] = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Rule":
        assert (self.record is None) != (self.alert is None)
        return self


class RuleGroup(Strict):
    name: Annotated[str, Field(min_length=1)]
    interval: Duration | None = None
    limit: Count | None = None
    rules: Annotated[list[Rule], Field(min_length=1)]


class PrometheusRuleSpec(Strict):
    groups: list[RuleGroup]


class PrometheusRule(Strict):
    api: Annotated[Literal["monitoring.coreos.com/v1"], Field(alias="apiVersion")]
    kind: Literal["PrometheusRule"]
    metadata: Metadata
    spec: PrometheusRuleSpec
