# SPDX-License-Identifier: Apache-2.0
"""docs/observability.md and docs/reference/metrics.md name every metric and every alert that there is, and no other."""

import re

import triton_python_backend_utils as pb_utils
from prometheus_here import ROOT

from observability.rules.alerts import alert_groups
from observability.rules.objectives import Objectives
from observability.rules.rule_files import Alert
from observability.rules.scaling import scaling_records
from serving.telemetry import request_metrics, split_metrics
from serving.telemetry.engine_metrics import EngineMetrics
from serving.telemetry.request_metrics import RequestMetrics

PAGE = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
NAME = re.compile(r"\b(?:trireme|nv_trt_llm|nv_llm)_\w+")


PARTS = ("_bucket", "_sum", "_count")


def families() -> set[str]:
    requests = RequestMetrics(pb_utils.MetricFamily, model="m", version="1")
    engine = EngineMetrics(pb_utils.MetricFamily, model="m", version="1")
    parts = {f"{requests._gaps.families[0].name.removesuffix('_bucket')}{part}": part for part in PARTS}
    names = {family.name for family in requests._families}
    assert parts.keys() <= names
    at_start = {name.removesuffix(parts.get(name, "")) for name in names} | set(engine._metrics._families)
    later = {*request_metrics._LOOKUPS, request_metrics._PREFILLS[0]}  # there with their first value
    return at_start | later | set(split_metrics.FAMILIES)


def test_the_reference_has_every_metric_and_no_other() -> None:
    assert set(NAME.findall(REFERENCE)) == families()


def test_every_metric_that_the_page_names_exists() -> None:
    named = set(NAME.findall(PAGE.partition("## Metrics")[2]))
    recorded = set(re.findall(r":(trireme_\w+):", PAGE)) | {record.record for record in scaling_records()}
    assert named - recorded <= families()


def test_every_alert_is_in_the_table() -> None:
    names = {rule.name for group in alert_groups(Objectives()) for rule in group.rules if isinstance(rule, Alert)}
    assert set(re.findall(r"\[(Trireme\w+)\]", PAGE)) == names
