# SPDX-License-Identifier: Apache-2.0
"""The dashboards as Grafana reads them: whole, and with queries that Prometheus can parse."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_here import FILES, needs_prometheus, run

from observability.dashboards.panels import Dashboard, dashboards, filled_in
from observability.rules.objectives import Objectives

DASHBOARDS = dashboards(Objectives())


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafanas_json_has_every_panel_and_query(name: str) -> None:
    dashboard, document = DASHBOARDS[name], json.loads((FILES / f"dashboards/{name}.json").read_text())
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in panels] == [panel.title for panel in dashboard.panels]
    assert [[target["expr"] for target in panel["targets"]] for panel in panels] == [
        list(panel.queries.values()) for panel in dashboard.panels
    ]
    assert document["uid"] == dashboard.uid
    variables = {variable["name"] for variable in document["templating"]["list"]}
    assert {"datasource", "model"} <= variables
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps([panel["targets"] for panel in panels])))
    assert used <= variables, "a variable that nobody fills in"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    document = json.loads((FILES / f"dashboards/{name}.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@needs_prometheus
@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_prometheus_can_parse_every_query(dashboard: Dashboard, tmp_path: Path) -> None:
    queries = [expr for panel in dashboard.panels for expr in panel.queries.values()]
    rules = [
        {"record": f"q{index}", "expr": filled_in(expr, dashboard, window="1m")} for index, expr in enumerate(queries)
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"SUCCESS: {len(queries)} rules found" in run("promtool", "check", "rules", tmp_path / "rules.yml")
